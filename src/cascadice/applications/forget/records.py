"""The record of forgetting: what was forgotten, how, and what was measured of the models, in numbers and sentences.

It is no proof that every trace is gone; `proved` says what it shows and what it does not.
"""

from collections.abc import Sequence
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from cascadice.applications.forget.idea import LEVELS, Corrected, forget, repair
from cascadice.applications.forget.removals import Removal, forgotten_samples
from cascadice.applications.forget.traces import Trace, distance, trace
from cascadice.applications.writer import Section, comma_separated
from cascadice.engine import Participants
from cascadice.runs.recording import Recording

TRAINED, FORGOTTEN, NEVER = "as trained", "forgotten", "never used"
ENOUGH_SAMPLES = 10  # for an AUC that means something
COLUMNS = ("models", "test loss", "test accuracy", "membership AUC", "distance left")
SECTION = Section(
    "How can a participant's data be removed?",
    "cascadice forget {run} --participant 0",
    "Membership AUC: how well the forgotten samples can be told from unseen ones by their loss; 0.5 is guessing, 1 is "
    "certain. Distance left: how far the models still are from models that never used the data; 1 = as trained, "
    "0 = exact.",
)
EXACT = (
    "Proved: these models equal a replay of the recorded rounds without what was forgotten; not proved: that the "
    "recording is complete, or that no copy of the data or of earlier models is kept elsewhere."
)
ESTIMATED = (
    "Proved: nothing beyond the numbers above; not proved: that these models equal models trained without what was "
    "forgotten, or that nothing about it can be inferred from them."
)


class Method(NamedTuple):
    """How to forget: a level, its points, rounds of repair, and whether to compare an estimate with a replay."""

    level: str = "replay"
    points: int = 2
    repairs: int = 0
    checked: bool = False


class ForgettingRecord(NamedTuple):
    """The corrected models, and what the record says about them; `details` are further keys of its JSON."""

    corrected: Corrected
    title: str
    findings: list[str]
    rows: list[list[Any]]
    details: dict[str, Any]


class _Measured(NamedTuple):
    """What was measured: the distance left (None if unknown), how far each model moved, and traces by name."""

    seconds: float
    left: float | None
    change: list[float]
    traces: dict[str, Trace]
    members: int


def record_forgetting(recording: Recording, numbers: range, removal: Removal, method: Method) -> ForgettingRecord:
    """Forget in these recorded rounds, then measure what is left; beside a replay if `method.checked`."""
    corrected, measured = _measure(recording, numbers, removal, method)
    rounds, proved = removal.rounds or numbers, EXACT if method.level == "replay" else ESTIMATED
    forgotten = {
        "participants": list(removal.nodes),
        "samples": list(removal.samples),
        "rounds": [rounds[0], rounds[-1]],
        "updates": corrected.updates,
        "uses": corrected.uses.tolist(),
        "distinct_samples": measured.members,
    }
    details = {
        "proved": proved,
        "forgotten": forgotten,
        "how": method._asdict(),
        "next_round": corrected.t,
        "seconds": measured.seconds,
        "distance": measured.left,
        "change": measured.change,
        "traces": {name: {k: v.tolist() for k, v in one._asdict().items()} for name, one in measured.traces.items()},
    }
    findings = [*_findings(recording, numbers, removal, method, corrected, measured), proved]
    return ForgettingRecord(corrected, f"{_subject(removal)} forgotten", findings, _rows(measured), details)


def _measure(recording: Recording, numbers: range, removal: Removal, method: Method) -> tuple[Corrected, _Measured]:
    network, began = recording.network, perf_counter()
    corrected = forget(network, recording.load_rounds(numbers), removal, method.level, method.points)
    seconds = perf_counter() - began
    (last,) = recording.load_rounds([numbers[-1]])
    models = {TRAINED: last.after}
    exact = corrected if method.level == "replay" else None
    if exact is None and method.checked:
        exact = forget(network, recording.load_rounds(numbers), removal, "replay")
        models[NEVER] = repair(network, exact, removal, method.repairs).participants
    corrected = repair(network, corrected, removal, method.repairs)
    models[FORGOTTEN] = corrected.participants
    draws = (round_.draw for round_ in recording.load_rounds(numbers))
    members = network.data.train.subset(forgotten_samples(removal, draws, network.nodes))
    traces = {name: trace(network, models[name], members) for name in (TRAINED, FORGOTTEN, NEVER) if name in models}
    change = (corrected.participants.theta - last.after.theta).double().norm(dim=1)
    return corrected, _Measured(seconds, _distance_left(models, exact), change.tolist(), traces, len(members))


def _distance_left(models: dict[str, Participants], exact: Corrected | None) -> float | None:
    if exact is None:
        return None
    never = models.get(NEVER, models[FORGOTTEN])
    left = distance(models[FORGOTTEN], models[TRAINED], never, start=exact.participants)
    return left if isfinite(left) else None


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _rows(measured: _Measured) -> list[list[Any]]:
    left = {TRAINED: 1.0, FORGOTTEN: round(measured.left, 4), NEVER: 0.0} if measured.left is not None else {}
    return [
        [name, *(round(_mean(values), 4) for values in one), left.get(name)] for name, one in measured.traces.items()
    ]


def _findings(
    recording: Recording, numbers: range, removal: Removal, method: Method, corrected: Corrected, measured: _Measured
) -> list[str]:
    rounds = removal.rounds or numbers
    count = _count(int(corrected.uses.sum()), "use") if removal.samples else _count(corrected.updates, "update")
    findings = [
        f"Forgotten in all {recording.network.nodes} models: {_subject(removal)}, {count} in {_span(rounds)}.",
        _method(method, measured.seconds),
    ]
    if not any(measured.change):
        return [*findings, "Nothing changed: what was to be forgotten had no effect in these rounds."]
    what = _subject(removal) if removal.samples else f"the updates of {_subject(removal)}"
    findings += [_accuracy(method, measured.left, f"{what} in {_span(rounds)}"), *_comparisons(measured)]
    if unused := [s for s, times in zip(removal.samples, corrected.uses.tolist(), strict=True) if not times]:
        findings.append(f"Never used in these rounds, so there was nothing to forget: samples {_some(unused)}.")
    others = [part for part in (range(rounds.start), range(rounds.stop, numbers.stop)) if part and removal.rounds]
    if others:
        spans = " and ".join(map(_span, others))
        findings.append(f"Not forgotten: what was learned from it in {spans} (requested: {_span(rounds)} only).")
    if removal.rounds is None and numbers[0] > 0:
        findings.append(f"Rounds before {numbers[0]} were not recorded; what was learned in them stays.")
    return findings


def _subject(removal: Removal) -> str:
    named = (("sample", removal.samples), ("participant", removal.nodes))
    return " of ".join(f"{name}{'s' * (len(of) > 1)} {_some(of)}" for name, of in named if of)


def _some(numbers: Sequence[int], most: int = 8) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"{comma_separated(numbers[:most])}{more}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _span(rounds: range) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"


def _method(method: Method, seconds: float) -> str:
    level = f"{method.level}, {method.points} points" if method.level == "path-integrated" else method.level
    repaired = f"; then {_count(method.repairs, 'round')} of training without it" if method.repairs else ""
    return f"Method: {level} ({LEVELS[method.level].description}), {seconds:.1f} s{repaired}."


def _accuracy(method: Method, left: float | None, what: str) -> str:
    if method.level == "replay":
        return f"Exact: these are the models of the same run without {what}."
    if left is None:
        return "This is an estimate, not checked: --check replays the rounds and measures its error."
    worse = " This is worse than no correction: use --level replay." if left >= 1 else ""
    return f"Distance left to models that never used it: {left:.3f} (1: as trained, 0: exact).{worse}"


def _comparisons(measured: _Measured) -> list[str]:
    traces = measured.traces

    def change(name: str, digits: int) -> str:
        before, after = (_mean(getattr(traces[which], name)) for which in (TRAINED, FORGOTTEN))
        aim = f" (never used: {_mean(getattr(traces[NEVER], name)):.{digits}f})" if NEVER in traces else ""
        return f"{before:.{digits}f} -> {after:.{digits}f}{aim}"

    accuracy = f", accuracy {change('accuracy', 3)}" if bool(traces[TRAINED].accuracy.isfinite().all()) else ""
    few = f"; measured on only {_count(measured.members, 'sample')}" if measured.members < ENOUGH_SAMPLES else ""
    return [
        f"Mean test loss {change('loss', 4)}{accuracy}.",
        f"Membership AUC, forgotten samples against test samples by their loss: {change('membership', 3)}; 0.5 is "
        f"chance{few}.",
    ]
