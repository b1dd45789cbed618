"""What influence costs: in training rounds and runs, against captum and kronfluence, against replay, and by hops.

    python benchmarks/influence.py                       # this machine's CPU
    python benchmarks/influence.py --device cuda --precision high
    python benchmarks/influence.py --parts peers --models cnn

All contenders run in one process and take turns. Evaluation batches are as large as training batches, so that an
evaluation gradient costs as much as a training gradient.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from timing import finish, interleaved, machine, parser, ratio, synchronize
from torch import Tensor
from training import build, several

import cascadice as cd
from cascadice import Network, Participants
from cascadice.engine import Operator
from cascadice.influence import Evaluation
from cascadice.influence.reverse_gossip import RoundAdjoint

NODES, BATCH = 16, 128
HORIZON = {"mlp": 20}  # rounds: 5 epochs of 512 samples; others 8, because they are slower


def evaluation_of(network: Network, size: int) -> Evaluation:
    """An evaluation on as many samples as are in a training batch."""
    return cd.influence.evaluate_on(network, network.data.train.subset(torch.arange(size)))


def scores(network: Network, round_: cd.Round, adjoint: RoundAdjoint) -> Tensor:
    """Scores of samples by an adjoint of any round: they cost the same."""
    return cd.influence.by_sample(network, round_, adjoint._replace(t=round_.t))


def gradient(network: Network, evaluation: Evaluation, people: Participants, t: int) -> RoundAdjoint:
    """The adjoint with which scores begin: the gradient of the evaluation loss."""
    return RoundAdjoint(t, Operator(network).objective(evaluation, people), {})


def scored_rounds(network: Network, evaluation: Evaluation, hops: int) -> Iterator[Any]:
    """Train, and score every sample of every participant over so many hops."""
    rounds = cd.simulate(network, window=hops, taped=True)
    return cd.influence.score_rounds(network, rounds, evaluation, hops=hops, samples=True)


def cost(model: str, device: str, repeats: int, batch: int) -> dict[str, Any]:
    """The cost of each computation, in training rounds."""
    network = build(model, NODES, batch, "auto", device)
    evaluation = evaluation_of(network, batch)
    plain, taped = cd.simulate(network, window=1), cd.simulate(network, window=1, taped=True)
    rounds = list(cd.simulate(network, HORIZON.get(model, 8)))
    adjoint = gradient(network, evaluation, rounds[0].after, 0)
    scored = {hops: scored_rounds(network, evaluation, hops) for hops in (1, 2, 3)}
    contenders: dict[str, Callable[[], object]] = {
        "training": lambda: next(plain),
        "with one-hop scores of every sample": lambda: next(scored[1]),
        "with two hops": lambda: next(scored[2]),
        "with three hops": lambda: next(scored[3]),
        "with scores, evaluation not counted": lambda: scores(network, next(taped), adjoint),
        "scores of samples alone": lambda: cd.influence.by_sample(network, rounds[0], adjoint),
        "full horizon": lambda: list(cd.influence.full_horizon(network, reversed(rounds), evaluation)),
    }
    for call in contenders.values():
        for _ in range(4 if device == "cuda" else 1):  # compiling and capturing happens in the first few
            call()
    times = {"cuda": {"mlp": 50, "cnn": 5}}.get(device, {}).get(model, 1)
    turns = interleaved({name: several(call, times) for name, call in contenders.items()}, repeats, device)
    seconds = {name: [s / times for s in taken] for name, taken in turns.items()}
    whole = f"full horizon of {len(rounds)} rounds, a round"
    seconds[whole] = [s / len(rounds) for s in seconds.pop("full horizon")]
    ratios = {name: ratio(turns, seconds["training"]) for name, turns in seconds.items() if name != "training"}
    further = [
        (c - a) / 2
        for a, c in zip(*(seconds[f"with {n}"] for n in ("one-hop scores of every sample", "three hops")), strict=True)
    ]
    ratios["each further hop"] = ratio(further, seconds["training"])
    return {
        "model": model, "nodes": NODES, "batch": batch, "strategy": network.strategy,
        "training_ms": 1e3 * statistics.median(seconds["training"]), "in_training_rounds": ratios,
    }  # fmt: skip


def alone(model: str, device: str, batch: int) -> dict[str, Callable[[], Tensor]]:
    """Scores of one participant's samples on one evaluation batch, by this library and by others."""
    from peers import captum_scores, kronfluence_scores

    network = build(model, 1, batch, "auto", device)
    evaluation, round_ = evaluation_of(network, batch), next(cd.simulate(network))
    x, y = network.data.train.take(round_.draw.batch[0, 0].to(network.device))
    module = cd.module_of(network, round_.before, 0).train()

    def ours() -> Tensor:
        return cd.influence.by_sample(network, round_, gradient(network, evaluation, round_.before, round_.t))[0]

    others = {"captum": captum_scores, "kronfluence": kronfluence_scores}
    return {
        "ours": ours,
        **{name: make(module, x, y, *evaluation.of(0), 0.01) for name, make in others.items()},
    }


def peers(model: str, device: str, repeats: int, batch: int) -> dict[str, Any]:
    """How much faster this library is than others, and how much memory each takes."""
    libraries = alone(model, device, batch)
    expected = libraries["ours"]()
    apart = {name: float((call() - expected).abs().max() / expected.abs().max()) for name, call in libraries.items()}
    seconds = interleaved(libraries, repeats, device)
    rows = {
        name: {
            **ratio(seconds[name], seconds["ours"]),
            "apart": apart[name],
            "mebibytes": memory(model, device, batch, name),
        }
        for name in libraries
    }
    return {"model": model, "batch": batch, "ours_ms": 1e3 * statistics.median(seconds["ours"]), "in_ours": rows}


def memory(model: str, device: str, batch: int, name: str) -> float:
    """The peak memory of the computation beyond what was allocated before it, in MiB; in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory, (model, device, batch, name))


def _memory(model: str, device: str, batch: int, name: str) -> float:
    call = alone(model, device, batch)[name]
    if device == "cuda":
        call()
        torch.cuda.reset_peak_memory_stats()
        before = float(torch.cuda.memory_allocated())
        call()
        return float(torch.cuda.max_memory_allocated() - before) / 2**20
    call()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from here
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 2**10


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(field)).split()[1])


def hops(device: str, repeats: int, batch: int, most: int = 8) -> dict[str, Any]:
    """The scores of every sample of 32 participants on the exponential graph, by number of hops."""
    network = build("mlp", 32, batch, "auto", device)
    evaluation, rounds = evaluation_of(network, batch), list(cd.simulate(network, most))
    linked = (network.mixing(0).to_dense() > 0).double()

    def scores(r: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            adjoint = cd.influence.reverse_gossip(network, rounds[:r], evaluation)
            return cd.influence.by_sample(network, rounds[0], adjoint)

        return call

    contenders = {str(r): scores(r) for r in range(1, most + 1)}
    seconds = interleaved(contenders, repeats, device)
    rows = [
        {
            "hops": r,
            "in_one_hop": ratio(seconds[str(r)], seconds["1"])["ratio"],
            "paths": float(torch.linalg.matrix_power(linked, r).sum()),
        }
        for r in range(1, most + 1)
    ]
    return {"nodes": 32, "batch": batch, "rows": rows}


def replay(model: str, device: str, repeats: int, batch: int) -> dict[str, Any]:
    """What estimates of everybody's influence cost, in the time that replaying the truth of everybody takes."""
    network = build(model, NODES, batch, "auto", device)
    evaluation, rounds = evaluation_of(network, batch), list(cd.simulate(network, 3))
    estimates: dict[str, Callable[..., object]] = {
        "truth": cd.influence.truth,
        "path-integrated, 2 points": cd.influence.path_integrated,
        "shares, 2 points": cd.influence.shares,
        "reverse gossip": cd.influence.reverse_gossip,
    }
    rows = {}
    for many in (1, 3):
        calls = {name: partial(call, network, rounds[:many], evaluation) for name, call in estimates.items()}
        seconds = interleaved(calls, repeats, device)
        rows[many] = {name: ratio(taken, seconds["truth"]) for name, taken in seconds.items() if name != "truth"}
    return {"model": model, "nodes": NODES, "batch": batch, "in_truths": rows}


def whole_run(model: str, device: str, repeats: int, batch: int, rounds: int = 64) -> dict[str, Any]:
    """What whole-run influence costs, in trainings of the same run."""
    network = build(model, NODES, batch, "auto", device)
    evaluation, kept = evaluation_of(network, batch), list(cd.simulate(network, rounds))
    call = partial(cd.influence.whole_run, network, evaluation=evaluation)

    def train() -> None:
        for _ in cd.simulate(network, rounds, window=0):
            pass

    contenders: dict[str, Callable[[], object]] = {
        "training": train,
        "whole-run at 1, of rounds that were kept": partial(call, rounds=kept),
        "whole-run at 0.5, all rounds kept": partial(call, rounds=rounds, at=0.5, length=rounds),
        "whole-run at 0.5, √T checkpoints": partial(call, rounds=rounds, at=0.5, length=8),
    }
    for contender in contenders.values():
        contender()
    seconds = interleaved(contenders, repeats, device)
    ratios = {name: ratio(taken, seconds["training"]) for name, taken in seconds.items() if name != "training"}
    return {"model": model, "nodes": NODES, "batch": batch, "rounds": rounds, "in_trainings": ratios}


def retraining(model: str, device: str, repeats: int, batch: int, rounds: int = 32, many: int = 8) -> dict[str, Any]:
    """What a network costs that is trained again side by side with others, in trainings alone."""
    network = build(model, NODES, batch, "auto", device)
    evaluation = evaluation_of(network, batch)
    size = len(network.data.train)
    retrain = partial(cd.influence.retraining.retrain, network, rounds, evaluation, together=many)
    subsets = partial(cd.influence.retraining.random_subsets, keep=0.5, count=many)

    def train() -> None:
        for _ in cd.simulate(network, rounds, window=0):
            pass

    contenders: dict[str, Callable[[], object]] = {
        "training": train,
        "with everybody": partial(retrain, updates=torch.ones(many, NODES, dtype=torch.float64)),
        "with half of the participants": partial(retrain, updates=subsets(NODES)),
        "with half of the samples": partial(retrain, samples=subsets(size)),
    }
    seconds = interleaved(contenders, repeats, device)
    each = {name: [one / many for one in taken] for name, taken in seconds.items() if name != "training"}
    ratios = {name: ratio(taken, seconds["training"]) for name, taken in each.items()}
    return {"model": model, "nodes": NODES, "batch": batch, "rounds": rounds, "in_trainings": ratios}


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "cost": cost, "whole-run": whole_run, "retraining": retraining, "peers": peers, "replay": replay
}  # fmt: skip


def show(part: str, found: dict[str, Any]) -> None:
    if part == "cost":
        setting = f"{found['model']}, {found['nodes']} participants, batch {found['batch']}, {found['strategy']}"
        print(f"{setting}: a round {found['training_ms']:.2f} ms")
        for name, r in found["in_training_rounds"].items():
            print(f"  {name:40} {r['ratio']:6.2f} rounds ({r['low']:.2f}–{r['high']:.2f})")
    elif part == "peers":
        print(f"{found['model']}, batch {found['batch']}: ours {found['ours_ms']:.2f} ms")
        for name, r in found["in_ours"].items():
            times = f"{r['ratio']:6.2f}× ({r['low']:.2f}–{r['high']:.2f})"
            print(f"  {name:12} {times}  {r['mebibytes']:8.1f} MiB  apart {r['apart']:.1e}")
    elif part == "replay":
        print(f"{found['model']}, {found['nodes']} participants, batch {found['batch']}: times the truth of everybody")
        for many, row in found["in_truths"].items():
            for name, r in row.items():
                print(f"  {many} hop(s), {name:26} {r['ratio']:6.2f}× ({r['low']:.2f}–{r['high']:.2f})")
    elif part in ("whole-run", "retraining"):
        setting = f"{found['model']}, {found['nodes']} participants, batch {found['batch']}, {found['rounds']} rounds"
        print(f"{setting}: in trainings")
        for name, r in found["in_trainings"].items():
            print(f"  {name:42} {r['ratio']:6.2f} ({r['low']:.2f}–{r['high']:.2f})")
    else:
        print("hops   time (in that of one hop)   paths")
        for row in found["rows"]:
            print(f"{row['hops']:4}   {row['in_one_hop']:8.2f}   {row['paths']:20,.0f}")
    sys.stdout.flush()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", choices=["digits", "mlp", "cnn", "resnet18"], default=["mlp", "cnn"])
    parts = [*MEASURES, "hops"]
    options.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options.add_argument("--batch", type=int, default=BATCH)
    arguments = options.parse_args()
    torch.set_float32_matmul_precision(arguments.precision)
    device, repeats, batch = arguments.device, arguments.repeats, arguments.batch
    result: dict[str, Any] = {"benchmark": "influence", "machine": machine(device), "precision": arguments.precision}
    for part in arguments.parts:
        if part == "hops":
            result[part] = hops(device, repeats, batch)
            show(part, result[part])
            continue
        result[part] = []
        for model in arguments.models:
            found = MEASURES[part](model, device, repeats, batch)
            result[part].append(found)
            show(part, found)
            synchronize(device)
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
