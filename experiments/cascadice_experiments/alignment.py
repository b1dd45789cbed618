"""How well estimates of influence follow the truth in a network that learns, with its test accuracy beside them.

    python -m cascadice_experiments.alignment                              the MLP, one hop, about a minute
    python -m cascadice_experiments.alignment mlp-16-gelu --every 32       a named setting, changed
    python -m cascadice_experiments.alignment --all --device cuda --json   MLP and CNN, kinked and smooth, up to 4 hops

The paper's alignment setting (CIFAR-10, exponential graph of 16, learning rate 0.1) from shared initial parameters. In
every so many rounds, everybody's update is a point: its true influence against each estimate of it.
"""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.engine import Metrics, Network, Round, evaluate, simulate
from cascadice.influence import Cascade, Evaluation, agreement, evaluate_on, first_order, path_integrated, truth
from cascadice.names import lookup
from cascadice.runs.config import Config, build, length
from cascadice.runs.recipes import paper
from cascadice_experiments.regimes import find


@dataclass(frozen=True)
class Setting:
    """A run of the paper's setting, and in which of its rounds influence is measured how far."""

    model: str = "mlp"
    batch_size: int = 128
    activation: str = "relu"
    pool: str = "max"
    epochs: float = 5.0
    nodes: int = 16
    hops: int = 1
    every: int = 4
    dtype: str = "float32"
    device: str = "cpu"


# 80 points or more each. Four hops measure one, two and three on the way.
_RUNS = (Setting(hops=4), Setting(batch_size=16, hops=4, every=16), Setting("cnn", epochs=30.0, hops=4, every=24))
_NAMED = {
    f"{run.model}-{run.batch_size}-{activation}": replace(run, activation=activation)
    for run, activation in product(_RUNS, ("relu", "gelu"))
}
# a max pool has kinks as ReLU has: only this one is a smooth CNN
SETTINGS: Mapping[str, Setting] = {**_NAMED, "cnn-128-smooth": replace(_NAMED["cnn-128-gelu"], pool="average")}

Estimator = Callable[[Network, Sequence[Round], Evaluation], Cascade]
TRUTH = "truth"
ESTIMATORS: Mapping[str, Estimator] = {
    TRUTH: truth,
    "first order": first_order,
    "path-integrated, 1 point": partial(path_integrated, points=1),
    "path-integrated, 2 points": partial(path_integrated, points=2),
    "path-integrated, 3 points": partial(path_integrated, points=3),
}


def configured(setting: Setting, source: str, root: str | None) -> Config:
    """The setting as the configuration of a run; digits are too few for more than 16 in a batch."""
    small = {} if source == "cifar10" else {"per_node": None, "batch_size": min(16, setting.batch_size)}
    changes: dict[str, Any] = {"batch_size": setting.batch_size, "epochs": setting.epochs, **small}
    # compiling for each of several short runs takes longer than the runs
    strategy = "vmap" if setting.device.startswith("cuda") else "auto"
    pool = (f"pool={setting.pool}",) if setting.model == "cnn" else ()
    options = (f"activation={setting.activation}", *pool)
    config = replace(paper(setting.model, source, "exponential", setting.nodes), **changes)
    return replace(
        config, data_root=root, model_options=options, device=setting.device, strategy=strategy, dtype=setting.dtype
    )


def measure(setting: Setting, source: str, root: str | None) -> dict[str, Any]:
    """Train, and compare estimates with the truth on the way: an entry in `results` for each number of hops."""
    start = time.perf_counter()
    config = configured(setting, source, root)
    network = build(config)
    assert network.partition is not None
    rounds = length(config, network.partition)
    _check(setting, rounds)
    found = follow(network, setting.hops, range(setting.every - 1, rounds, setting.every), [rounds - 1])
    return {
        **asdict(setting), "data": source, "batch_size": config.batch_size, "rounds": rounds,
        "points": len(found.node), "test_accuracy": float(found.judged[rounds - 1].accuracy.mean()),
        "results": compared(found.value), "seconds": time.perf_counter() - start,
    }  # fmt: skip


class Followed(NamedTuple):
    """A point for each update looked at: its round and participant, and `value[estimator][hops − 1, point]`.

    `judged[t]` is how good everybody was on the test data after round t.
    """

    round: Tensor
    node: Tensor
    value: Mapping[str, Tensor]
    judged: Mapping[int, Metrics]


def follow(
    network: Network,
    hops: int,
    scored: Collection[int],
    stops: Collection[int],
    estimators: Mapping[str, Estimator] = ESTIMATORS,
    judged_on: int = 256,
    tested_on: int | None = None,
) -> Followed:
    """Train to the last of `stops`, evaluate the network after each, compare estimates wherever a round of `scored` ends.

    Everybody's update is a point, `hops` rounds before that end. Influence is on the first `judged_on` test samples,
    accuracy on the first `tested_on`, or on all.
    """
    test = network.data.test
    yardstick = evaluate_on(network, test.subset(torch.arange(min(judged_on, len(test)))))
    held_out = test if tested_on is None else test.subset(torch.arange(min(tested_on, len(test))))
    points: list[dict[str, Tensor]] = []
    first, judged = [], {}
    # replayed rounds must be those that were trained; over one hop nothing is replayed
    with exact() if hops > 1 else nullcontext():
        for window in _windows(simulate(network, max(stops) + 1), hops):
            if (t := window[-1].t) in scored:
                points.append(scores(network, window, yardstick, estimators))
                first.append(window[0].t)
            if t in stops:
                judged[t] = evaluate(network, window[-1].after, held_out)
    value = {name: torch.cat([point[name] for point in points], dim=1) for name in estimators}
    everyone = torch.arange(network.nodes)
    return Followed(torch.tensor(first).repeat_interleave(network.nodes), everyone.repeat(len(first)), value, judged)


def exact() -> AbstractContextManager[None]:
    """Without TF32, which torch allows in convolutions: it rounds away the small differences influence is made of."""
    found: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return found


def _check(setting: Setting, rounds: int) -> None:
    for name in ("hops", "every"):
        if (value := getattr(setting, name)) < 1:
            raise ValueError(f"{name} must be at least 1; found {value}.")
    first = -(-setting.hops // setting.every) * setting.every
    if first > rounds:
        raise ValueError(
            f"with hops {setting.hops} and every {setting.every}, round {first} would be the first to be scored; "
            f"the run has {rounds}. Score more often, or train for more epochs."
        )


def _windows(rounds: Iterator[Round], size: int) -> Iterator[list[Round]]:
    """All runs of `size` consecutive rounds."""
    window: deque[Round] = deque(maxlen=size)
    for done in rounds:
        window.append(done)
        if len(window) == size:
            yield list(window)


def scores(
    network: Network, rounds: Sequence[Round], yardstick: Evaluation, estimators: Mapping[str, Estimator] = ESTIMATORS
) -> dict[str, Tensor]:
    """[hops, sources] by each estimator: the influence of every update in the first round up to so many hops."""
    with exact():
        found = {name: estimate(network, rounds, yardstick).value for name, estimate in estimators.items()}
    return {name: value.sum(2).cumsum(0)[1:] for name, value in found.items()}


def compared(found: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """For each number of hops, how each estimate agrees with the truth."""
    estimates = {name: value for name, value in found.items() if name != TRUTH}
    return [
        {"hops": hops, **{name: agreement(true, value[hops - 1])._asdict() for name, value in estimates.items()}}
        for hops, true in enumerate(found[TRUTH], start=1)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each setting and number of hops and, if asked, one JSON object last."""
    args = _parser().parse_args(arguments)
    given = {f.name: value for f in fields(Setting) if (value := getattr(args, f.name)) is not None}
    results = []
    try:
        named = SETTINGS.values() if args.all else [lookup(SETTINGS, name, "setting") for name in args.settings]
        source, root = find(args.data_root)
        if source == "digits":
            print("CIFAR-10 was not found (--data-root, $CASCADICE_DATA, the cache, ../shared/data): using digits.")
        print(HEADER)
        for setting in [replace(setting, **given) for setting in named or [Setting()]]:
            results.append(measure(setting, source, root))
            print(*_lines(results[-1]), sep="\n", flush=True)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "alignment", "results": results}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog=f"settings: {', '.join(SETTINGS)}"
    )
    parser.add_argument("settings", nargs="*", help="named settings; what the options say is changed in each")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--model", choices=["mlp", "cnn"])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--activation", help="relu, gelu, tanh, …")
    parser.add_argument("--pool", help="of the CNN: max or average")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--nodes", type=int, help="participants")
    parser.add_argument("--hops", type=int, help="greatest number of hops")
    parser.add_argument("--every", type=int, help="rounds between those that are scored")
    parser.add_argument("--dtype", help="float32 or float64")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


HEADER = (
    "Pearson / relative RMSE of          first order      1 point          2 points         3 points\n"
    "model activation   batch hops" + 71 * " " + "  points  test accuracy       s"
)


def _lines(measured: Mapping[str, Any]) -> Iterator[str]:
    for result in measured["results"]:
        kind = measured["activation"] + (" average" if measured["pool"] == "average" else "")
        setting = f"{measured['model']:5} {kind:12} {measured['batch_size']:5} {result['hops']:4}"
        found = (result[name] for name in ESTIMATORS if name != TRUTH)
        columns = "  ".join(f"{one['pearson']:6.4f} / {one['relative_rmse']:6.4f}" for one in found)
        rest = f"{measured['points']:6} {measured['test_accuracy']:14.3f} {measured['seconds']:7.0f}"
        yield f"{setting}      {columns}  {rest}"


if __name__ == "__main__":
    sys.exit(main())
