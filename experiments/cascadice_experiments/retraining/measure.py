"""Retrain, score, compare: the numbers of one case."""

import gc
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cascadice
from cascadice.engine import (
    Evaluation,
    Network,
    Round,
    by_network,
    evaluate,
    evaluate_on,
    fleet,
    simulate,
    with_weights,
)
from cascadice.engine.backwards import MEMORY, segment
from cascadice.influence.agreement import Agreement, agreement
from cascadice.influence.by_class import ByClass, unpack, whole_run_by_class
from cascadice.influence.estimators import score_rounds
from cascadice.influence.retraining import random_subsets, retrain, without_each
from cascadice.influence.whole_run import WholeRun, whole_run
from cascadice.influence.whole_run_shares import whole_run_shares
from cascadice_experiments.retraining.settings import Case, load, make_networks
from cascadice_experiments.retraining.sums import EXACT, sums
from cascadice_experiments.study import clock

DRAWN_BY = {"participants": 1, "samples": 2}  # seeds of the random subsets of the first network
HOPS = 4  # of shares over a few hops
KEPT = 24 * 2**30  # bytes of rounds to keep on a GPU


class Scores(NamedTuple):
    """The scores of an estimate for each seed's participants [seeds, n] and for all samples, and their cost.

    One that has classes predicts subsets of the participants by them; others by the sum of their scores.
    """

    participants: Tensor
    samples: list[Tensor] | None
    seconds: float
    by_class: list[ByClass] | None = None

    def predicts(self, place: int, subsets: Tensor) -> Tensor:
        """Predicted f of networks that keep these participants, up to a constant."""
        if self.by_class is not None:
            return self.by_class[place].predicted(subsets)
        return subsets.double() @ self.participants[place].double().cpu()

    def classes(self, place: int) -> dict[str, Any]:
        """What is kept of the classes, if it has them: the arguments of `ByClass`."""
        if self.by_class is None:
            return {}
        at, *tensors = vars(self.by_class[place]).values()
        names = ("parts", "losses", "slopes")
        return {"by_class": {"at": at, **{name: t.tolist() for name, t in zip(names, tensors, strict=True)}}}


def _to_json(scores: Scores) -> dict[str, Any]:
    return {
        "participants": scores.participants.tolist(), "seconds": scores.seconds,
        "samples": None if scores.samples is None else [each.tolist() for each in scores.samples],
        "by_class": None if scores.by_class is None else [[one.at, one.packed.tolist()] for one in scores.by_class],
    }  # fmt: skip


def _from_json(kept: Mapping[str, Any]) -> Scores:
    double = partial(torch.tensor, dtype=torch.float64)
    samples = None if kept["samples"] is None else [double(each) for each in kept["samples"]]
    by_class = None if kept["by_class"] is None else [unpack(double(each), at) for at, each in kept["by_class"]]
    return Scores(double(kept["participants"]), samples, kept["seconds"], by_class)


class Retrained(NamedTuple):
    """What was left out of one seed's network, and the loss of the final models then."""

    subsets: Tensor
    found: Tensor


Part = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]
"""`part(name, make)` is one part of the measurement: `make()`, or what an interrupted attempt kept of it."""


def measure(
    case: Case, source: str, root: str | None, device: str, say: Callable[[str], None],
    part: Part = lambda name, make: make(),
) -> dict[str, Any]:  # fmt: skip
    """Everything about one case: accuracy, LDS of every estimate in every condition, and costs in trainings."""
    whole, held = load(case, source, root)
    networks = make_networks(case, whole, held, device)
    together = fleet(networks) if len(networks) > 1 else networks[0]
    evaluation = evaluate_on(together)
    trained = part("training", lambda: _train(case, together, len(networks), device))
    accuracy, training = trained["accuracy"], trained["seconds"]
    say(f"{case.name}: accuracy {mean(accuracy):.3f}, {len(networks)} seeds trained in {training:.1f} s")
    conditions: dict[str, list[Retrained]] = {name: [] for name in _conditions(case)}
    start = clock(device)
    for network, own in zip(networks, held, strict=True):
        for name, found in retrain_conditions(case, network, own, evaluate_on(network), part).items():
            conditions[name].append(found)
    say(f"{case.name}: retrained in {clock(device) - start:.1f} s")
    for name, each in conditions.items():
        say(f"{name}: {[[round(value, 5) for value in one.found.tolist()] for one in each]}")
    estimates: dict[str, Scores] = {}
    for name, make in _estimates(case, together, evaluation, len(networks), device):
        estimates[name] = scores = _from_json(part(name, partial(_timed, make, device)))
        say(f"{case.name}: {name} in {scores.seconds / training:.1f} trainings")
    rows = [row for name, found in conditions.items() for row in _compared(case, name, found, estimates)]
    costs = {name: scores.seconds / training for name, scores in estimates.items()}
    retrained = list(_kept(case, conditions))
    for condition, name, seed, agreed in sums(retrained, case.nodes):
        rows.append({"condition": condition, "estimate": name, "seed": seed, **ranked(agreed)})
        costs |= {EXACT: case.nodes + 1.0}
    result = {"case": case.name, "accuracy": accuracy, "rows": rows, "costs": costs, "training_s": training}
    return {**result, **made_by(case, device), "retrained": retrained, "scores": scored(estimates, case)}


def _train(case: Case, together: Network, count: int, device: str) -> dict[str, Any]:
    """The accuracy of each seed's network, and how long one training of all of them takes."""
    *_, last = simulate(together, 3, window=0)  # warm up: one-time compilation and allocation do not count as cost
    start = clock(device)
    *_, last = simulate(together, case.rounds, window=0)
    seconds = clock(device) - start
    return {"seconds": seconds, "accuracy": by_network(evaluate(together, last.after).accuracy, count).mean(1).tolist()}


def _timed(make: Callable[[], Scores], device: str) -> dict[str, Any]:
    start = clock(device)
    scores = make()
    return _to_json(scores._replace(seconds=clock(device) - start))


def made_by(case: Case, device: str) -> dict[str, Any]:
    """The settings, versions and device with which a case was measured."""
    gpu = torch.device(device).type == "cuda"
    versions = {"cascadice": cascadice.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {
        "settings": asdict(case),
        "versions": versions,
        "device": torch.cuda.get_device_name(device) if gpu else f"{device}, {platform.machine()}",
    }


def scored(estimates: Mapping[str, Scores], case: Case) -> list[dict[str, Any]]:
    """The participants' scores by every estimate, so that others can be compared without training again."""
    return [
        {"estimate": name, "seed": seed, "participants": scores.participants[place].tolist(), **scores.classes(place)}
        for name, scores in estimates.items()
        for place, seed in enumerate(case.seeds)
    ]


def _kept(case: Case, conditions: Mapping[str, Sequence[Retrained]]) -> Iterator[dict[str, Any]]:
    """What retraining found, and how to draw the subsets again: `random_subsets(size, keep, count, seed)`.

    Samples are numbered in the order in which participants hold them. Without each participant, everybody comes first.
    """
    for name, each in conditions.items():
        what, _, keep = name.rpartition(" ")
        for seed, one in zip(case.seeds, each, strict=True):
            drawn = None
            if what in DRAWN_BY:
                drawn = {"keep": float(keep), "count": len(one.found), "seed": _drawn_by(what, seed)}
            yield {"condition": name, "seed": seed, "subsets": drawn, "found": one.found.tolist()}


def _drawn_by(what: str, seed: int) -> int:
    """The seed of a network's random subsets: other subsets for each network."""
    return DRAWN_BY[what] + 10 * seed


def _conditions(case: Case) -> list[str]:
    return ["leave one out", *(f"participants {keep:g}" for keep in case.participants),
            *(f"samples {keep:g}" for keep in case.samples)]  # fmt: skip


def retrain_conditions(
    case: Case, network: Network, held: list[Tensor], evaluation: Evaluation,
    part: Part = lambda name, make: make(),
) -> dict[str, Retrained]:  # fmt: skip
    """All conditions of one seed, side by side."""
    nodes, size = case.nodes, len(network.data.train)
    own = torch.cat([part.view(case.copies, -1) for part in held], 1)
    kept = {f"participants {keep:g}": keep for keep in case.participants}
    of_updates, of_samples = (_drawn_by(what, network.seed) for what in DRAWN_BY)
    updates = {name: random_subsets(nodes, keep, case.subsets, of_updates) for name, keep in kept.items()}
    held_by_all = own.shape[1]
    samples = {
        f"samples {keep:g}": random_subsets(held_by_all, keep, case.subsets, of_samples) for keep in case.samples
    }
    updates["leave one out"] = torch.cat([torch.ones(1, nodes, dtype=torch.float64), without_each(nodes)])
    rows = torch.cat(list(updates.values()))
    found = _trained_again(case, network, evaluation, part, "participants", updates=rows)
    parts = torch.split(found, [len(subsets) for subsets in updates.values()])
    results = {
        name: Retrained(*pair) for name, pair in zip(updates, zip(updates.values(), parts, strict=True), strict=True)
    }
    for name, subsets in samples.items():
        everywhere = torch.ones(len(subsets), size)
        everywhere[:, own.flatten()] = subsets.float().repeat(1, case.copies)
        found = _trained_again(case, network, evaluation, part, name, samples=everywhere)
        weights = torch.zeros(len(subsets), size, dtype=torch.float64)
        weights[:, own.flatten()] = subsets.repeat(1, case.copies)
        results[name] = Retrained(weights, found)
    return results


def _trained_again(
    case: Case, network: Network, evaluation: Evaluation, part: Part, what: str, **rows: Tensor
) -> Tensor:
    """f of the network with each of these rows of weights; those that are trained side by side are one part."""

    if network.device.type == "cuda":
        network = replace(network, strategy=case.retrain_by)

    def some(chunk: slice) -> dict[str, Any]:
        own: dict[str, Any] = {name: each[chunk] for name, each in rows.items()}
        found = retrain(network, case.rounds, evaluation, together=case.together, **own).tolist()
        if network.device.type == "cuda":
            gc.collect()  # captured graphs hold much memory, of which Python's collector knows nothing
            torch.cuda.empty_cache()
        return {"found": found}

    (count,) = map(len, rows.values())
    found = [
        part(f"seed {network.seed}, {what}, from {first}", partial(some, slice(first, first + case.together)))["found"]
        for first in range(0, count, case.together)
    ]
    return torch.tensor([value for each in found for value in each], dtype=torch.float64)


def _estimates(
    case: Case, together: Network, evaluation: Evaluation, count: int, device: str
) -> Iterator[tuple[str, Callable[[], Scores]]]:
    """Every estimate of the case, and how to compute it."""
    size = len(together.data.train)
    length = segment(together, case.rounds, KEPT if device != "cpu" else MEMORY)
    whole_run(together, 3, evaluation)  # warm up: one-time compilation and allocation do not count as cost
    alphas = case.alphas or sorted({1.0, *case.participants, *case.samples}, reverse=True)

    def scores(estimate: Callable[..., WholeRun], **options: Any) -> Scores:
        run = estimate(together, case.rounds, evaluation, length=length, **options)
        each = [_own(run, i, count) for i in range(count)]
        return Scores(by_network(run.participants, count), [one.by_sample(size) for one in each], 0.0)

    def by_class(alpha: float) -> Scores:
        return _by_network(whole_run_by_class(together, case.rounds, evaluation, at=alpha, length=length), count)

    for alpha in alphas:
        yield f"whole-run at {alpha:g}", partial(scores, whole_run, at=alpha)
    for alpha in case.by_class:
        yield f"whole-run at {alpha:g}, by class", partial(by_class, alpha)
    if case.points:
        yield "whole-run shares", partial(scores, whole_run_shares, points=case.points)
    if case.halves:
        name = f"whole-run of {case.halves} random halves"
        yield name, partial(_over_halves, case, together, evaluation, count, length)
    for name, options in {
        "first order, 1 hop": {"kinds": ("first-order",), "hops": 1, "samples": True},
        "truth, 1 hop": {"kinds": ("truth",), "hops": 1},
        f"shares, {HOPS} hops": {"kinds": ("shares",), "hops": HOPS},
    }.items():
        yield name, partial(few_hops, case, together, evaluation, count, options)


def _by_network(classes: ByClass, count: int) -> Scores:
    """Influence by class in a fleet, network by network."""
    own = zip(classes.losses.chunk(count, 1), classes.slopes.chunk(count, 1), strict=True)
    each = [ByClass(classes.at, classes.parts, losses, slopes) for losses, slopes in own]
    return Scores(by_network(classes.participants, count), None, 0.0, each)


def _over_halves(case: Case, together: Network, evaluation: Evaluation, count: int, length: int) -> Scores:
    """Whole-run influence in runs on random halves of the samples, each sample's over the runs that have it."""
    size = len(together.data.train)
    participants = torch.zeros(count, case.nodes, dtype=torch.float64)
    samples, uses = torch.zeros(count, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for half in random_subsets(size, 0.5, case.halves, seed=3):
        run = whole_run(with_weights(together, samples=half), case.rounds, evaluation, length=length)
        participants += by_network(run.participants, count) / case.halves
        samples += torch.stack([_own(run, i, count).by_sample(size) for i in range(count)])
        uses += half
    return Scores(participants, list(samples / uses.clamp(min=1)), 0.0)


def _own(run: WholeRun, place: int, count: int) -> WholeRun:
    """The part of one network in the results of a fleet."""
    n = run.by_round.shape[1] // count
    rows = slice(place * n, (place + 1) * n)
    return WholeRun(run.value, run.first, run.by_round[:, rows], run.samples[:, rows], run.drawn[:, rows])


def few_hops(case: Case, together: Network, evaluation: Evaluation, count: int, options: dict[str, Any]) -> Scores:
    """Influence one or a few hops ahead, summed over every N-th round."""
    hops, size = options["hops"], len(together.data.train)
    rounds: Iterator[Round] = simulate(together, case.rounds, window=hops)
    total = torch.zeros(together.nodes, dtype=torch.float64)
    samples = torch.zeros(count, size, dtype=torch.float64)
    block = torch.arange(together.nodes) // (together.nodes // count)
    for result in score_rounds(together, rounds, evaluation, every=case.every, **options):
        for value in result.participants.values():
            total += value.double().cpu()
        for cascade in result.cascades:
            total += cascade.total.double().cpu()
        for parts in result.samples.values():
            drawn = result.round.draw.batch.flatten(1).cpu()
            samples[block[:, None].expand_as(drawn), drawn] += parts.double().cpu()
    kept = list(samples) if options.get("samples") else None
    return Scores(by_network(total, count), kept, 0.0)


def _compared(case: Case, name: str, found: list[Retrained], estimates: dict[str, Scores]) -> Iterator[dict[str, Any]]:
    """A row for each estimate and seed: how well it predicts retraining."""
    for estimate, scores in estimates.items():
        if name.startswith("samples") and scores.samples is None:
            continue
        for place, (subsets, values) in enumerate(found):
            if name.startswith("samples") and scores.samples:
                predicted = subsets.double() @ scores.samples[place].double().cpu()
            else:
                predicted = scores.predicts(place, subsets)
            everybody = int(name == "leave one out")  # comes first there, and is no subset
            agreed = agreement(values[everybody:], predicted[everybody:])
            yield {"condition": name, "estimate": estimate, "seed": case.seeds[place], **ranked(agreed)}


def ranked(agreed: Agreement) -> dict[str, float]:
    """What rows keep of an agreement. There is no interval over subsets: the spread over seeds is reported."""
    return {"spearman": agreed.spearman, "pearson": agreed.pearson}
