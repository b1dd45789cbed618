"""What influence costs, in training rounds; against captum and kronfluence; and how it grows with the hops.

    python benchmarks/influence.py                       # this machine's CPU
    python benchmarks/influence.py --device cuda --precision high
    python benchmarks/influence.py --parts peers --models cnn

Everything in one process, taking turns. Metrics batches are as large as training batches, so that an evaluation
gradient costs what a training gradient costs.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from timing import finish, interleaved, machine, parser, ratio, synchronize
from torch import Tensor
from training import build, several

import cascadice as cd
from cascadice.engine import Operator, Participants
from cascadice.engine.networks import Network
from cascadice.influence import Evaluation, RoundAdjoint

NODES, BATCH = 16, 128
HORIZON = {"mlp": 20}  # rounds: 5 epochs of 512 samples; others 8, as they take their time


def judged(network: Network, size: int) -> Evaluation:
    """By as many samples as are in a training batch."""
    return cd.influence.evaluate_on(network, network.data.train.subset(torch.arange(size)))


def adjoint_of(network: Network, evaluation: Evaluation, here: Participants, t: int) -> RoundAdjoint:
    """q ∇L of everybody, as an adjoint of round t: what scores of samples alone are given."""
    return RoundAdjoint(t, Operator(network).objective(evaluation, here), {})


def scores_of(network: Network, done: cd.Round, adjoint: RoundAdjoint) -> Tensor:
    """The scores of the samples of a round by an adjoint that may be of another: the cost is the same."""
    return cd.influence.by_sample(network, done, adjoint._replace(t=done.t))


def endlessly(network: Network, evaluation: Evaluation, hops: int) -> Iterator[Any]:
    """Train, and score every sample of every participant over so many hops."""
    rounds = cd.simulate(network, window=hops, taped=True)
    return cd.influence.score_rounds(network, rounds, evaluation, hops=hops, samples=True)


def cost(model: str, device: str, repeats: int, batch: int) -> dict[str, Any]:
    """Each way to score, in training rounds."""
    network = build(model, NODES, batch, "auto", device)
    evaluation = judged(network, batch)
    plain, taped = cd.simulate(network, window=1), cd.simulate(network, window=1, taped=True)
    rounds = list(cd.simulate(network, HORIZON.get(model, 8)))
    adjoint = adjoint_of(network, evaluation, rounds[0].after, 0)
    watched = {hops: endlessly(network, evaluation, hops) for hops in (1, 2, 3)}
    contenders: dict[str, Callable[[], object]] = {
        "training": lambda: next(plain),
        "with one-hop scores of every sample": lambda: next(watched[1]),
        "with two hops": lambda: next(watched[2]),
        "with three hops": lambda: next(watched[3]),
        "with scores, evaluation not counted": lambda: scores_of(network, next(taped), adjoint),
        "scores of samples alone": lambda: scores_of(network, rounds[0], adjoint),
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
    found = {name: ratio(turns, seconds["training"]) for name, turns in seconds.items() if name != "training"}
    further = [
        (c - a) / 2
        for a, c in zip(*(seconds[f"with {n}"] for n in ("one-hop scores of every sample", "three hops")), strict=True)
    ]
    found["each further hop"] = ratio(further, seconds["training"])
    return {
        "model": model, "nodes": NODES, "batch": batch, "strategy": network.strategy,
        "training_ms": 1e3 * statistics.median(seconds["training"]), "in_training_rounds": found,
    }  # fmt: skip


def alone(model: str, device: str, batch: int) -> dict[str, Callable[[], Tensor]]:
    """One participant's samples against one evaluation batch, by us and by others: set up, then called."""
    from peers import captum_scores, kronfluence_scores

    network = build(model, 1, batch, "auto", device)
    evaluation, done = judged(network, batch), next(cd.simulate(network))
    x, y = network.data.train.take(done.draw.batch[0, 0].to(network.device))
    module = cd.module_of(network, done.before, 0).train()

    def ours() -> Tensor:
        return cd.influence.by_sample(network, done, adjoint_of(network, evaluation, done.before, done.t))[0]

    others = {"captum": captum_scores, "kronfluence": kronfluence_scores}
    return {
        "ours": ours,
        **{name: make(module, x, y, *evaluation.of(0), 0.01) for name, make in others.items()},
    }


def peers(model: str, device: str, repeats: int, batch: int) -> dict[str, Any]:
    """How much faster than other libraries, and how much memory each takes."""
    ways = alone(model, device, batch)
    expected = ways["ours"]()
    apart = {name: float((way() - expected).abs().max() / expected.abs().max()) for name, way in ways.items()}
    seconds = interleaved(ways, repeats, device)
    rows = {
        name: {
            **ratio(seconds[name], seconds["ours"]),
            "apart": apart[name],
            "mebibytes": memory(model, device, batch, name),
        }
        for name in ways
    }
    return {"model": model, "batch": batch, "ours_ms": 1e3 * statistics.median(seconds["ours"]), "in_ours": rows}


def memory(model: str, device: str, batch: int, name: str) -> float:
    """What the computation takes at its peak beyond what was there before, in MiB; in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory, (model, device, batch, name))


def _memory(model: str, device: str, batch: int, name: str) -> float:
    way = alone(model, device, batch)[name]
    if device == "cuda":
        way()
        torch.cuda.reset_peak_memory_stats()
        before = float(torch.cuda.memory_allocated())
        way()
        return float(torch.cuda.max_memory_allocated() - before) / 2**20
    way()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from here
    before = _status("VmRSS")
    way()
    return (_status("VmHWM") - before) / 2**10


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(field)).split()[1])


def hops(device: str, repeats: int, batch: int, most: int = 8) -> dict[str, Any]:
    """Every sample of 32 participants on the exponential graph, over more and more hops."""
    network = build("mlp", 32, batch, "auto", device)
    evaluation, rounds = judged(network, batch), list(cd.simulate(network, most))
    linked = (network.mixing(0).to_dense() > 0).double()

    def scored(r: int) -> Callable[[], Tensor]:
        def call() -> Tensor:
            adjoint = cd.influence.reverse_gossip(network, rounds[:r], evaluation)
            return scores_of(network, rounds[0], adjoint)

        return call

    contenders = {str(r): scored(r) for r in range(1, most + 1)}
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
    else:
        print("hops   time (in that of one hop)   paths")
        for row in found["rows"]:
            print(f"{row['hops']:4}   {row['in_one_hop']:8.2f}   {row['paths']:20,.0f}")
    sys.stdout.flush()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", choices=["mlp", "cnn", "resnet18"], default=["mlp", "cnn"])
    options.add_argument("--parts", nargs="+", choices=["cost", "peers", "hops"], default=["cost", "peers", "hops"])
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
            found = (cost if part == "cost" else peers)(model, device, repeats, batch)
            result[part].append(found)
            show(part, found)
            synchronize(device)
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
