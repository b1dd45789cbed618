"""What `cascadice forget` computes, writes and says.

The record does not prove that every trace is gone; its entry `proved` says what it proves and what it does not.
"""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from math import isfinite, nan
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.applications.forget.audit import audit, models_digest
from cascadice.applications.forget.charts import charts
from cascadice.applications.forget.idea import LEVELS, Corrected, forget, nothing_to_forget, repair
from cascadice.applications.forget.removals import Removal, check_removal, forgotten_samples
from cascadice.applications.forget.traces import Trace, distance, trace
from cascadice.applications.plain import Json
from cascadice.applications.writer import Section, Writer, comma_separated, open_writer, run_in_processes
from cascadice.engine.operator import Exchange, Operator
from cascadice.names import lookup
from cascadice.runs import store
from cascadice.runs.distributed.processes import World
from cascadice.runs.flags import open_from
from cascadice.runs.folder import read_manifest
from cascadice.runs.recording import Recording

TRAINED, FORGOTTEN, NEVER = "as trained", "forgotten", "never used"
ENOUGH_SAMPLES = 10  # for an AUC that means something
MODELS = "models"  # a separate folder: a checkpoint beside the results would look like that of a run
CHECKPOINT = f"{MODELS}/checkpoint.safetensors"
COLUMNS = ("models", "test loss", "test accuracy", "membership AUC", "distance left")
SECTION = Section(
    "How can a participant's data be removed?",
    "cascadice forget {run} --participant 0",
    "Membership AUC: how well the forgotten samples can be told from unseen ones by their loss; 0.5 is guessing, 1 is "
    "certain. Distance left: how far the models still are from models that never used the data; 1 = as trained, "
    "0 = exact.",
    audit,
    charts=charts,
    run_length=lambda results: results["next_round"] - results["how"]["repairs"],
)
EXACT = (
    "Proved: these models equal a replay of the recorded rounds without what was forgotten; not proved: that the "
    "recording is complete, or that no copy of the data or of earlier models is kept elsewhere."
)
ESTIMATED = (
    "Proved: nothing beyond the numbers above; not proved: that these models equal models trained without what was "
    "forgotten, or that nothing about it can be inferred from them."
)


Request = tuple[tuple[int, ...], tuple[int, ...], range | None]
"""The participants, samples and rounds (None: all) to forget."""


class _Measured(NamedTuple):
    """Seconds it took, the distance left (None if unknown), how far each model moved, and traces by model name."""

    seconds: float
    left: float | None
    change: list[float]
    traces: dict[str, Trace]
    members: int


def run(args: argparse.Namespace) -> None:
    """Run `cascadice forget` with these flags."""
    run_in_processes(args, "forget", partial(_run, request=_request(args)))


def _run(args: argparse.Namespace, world: World, request: Request) -> None:
    """Forget, then measure what is left; with --check, also compare with a replay."""
    recording, rounds = open_from(args, world), request[-1]
    numbers, removal = _rounds_to_read(recording, rounds), Removal(*request)
    check_removal(recording.network, removal)
    writer = open_writer(args, recording, "forget", CHECKPOINT)
    with world.exchange(recording.network) as exchange:
        corrected, measured = _measure(recording, numbers, removal, args, world, exchange)
    folder, layout = writer.folder / MODELS, store.layout(recording.network.learner.training)
    store.save_checkpoint(folder, corrected.t, corrected.participants, run=recording.fingerprint, layout=layout)
    writer.write(_results(writer, numbers, removal, args, corrected, measured), SECTION)
    writer.print_files()


def _results(
    writer: Writer, numbers: range, removal: Removal, args: argparse.Namespace, corrected: Corrected,
    measured: _Measured,
) -> Json:  # fmt: skip
    rounds, proved = removal.rounds or numbers, EXACT if args.level == "replay" else ESTIMATED
    forgotten = {
        "participants": removal.nodes,
        "samples": removal.samples,
        "rounds": [rounds[0], rounds[-1]],
        "updates": corrected.updates,
        "uses": corrected.uses.tolist(),
        "distinct_samples": measured.members,
    }
    return {
        **writer.header(f"{_subject(removal)} forgotten", COLUMNS, _rows(measured)),
        "findings": [*_sentences(writer.recording, numbers, removal, args, corrected, measured), proved],
        "proved": proved,
        "forgotten": forgotten,
        "how": {"level": args.level, "points": args.points, "repairs": args.repair, "checked": args.check},
        "next_round": corrected.t,
        "seconds": measured.seconds,
        "distance": measured.left,
        "change": measured.change,
        **writer.members(),
        "traces": {name: {k: v.tolist() for k, v in one._asdict().items()} for name, one in measured.traces.items()},
        "models": CHECKPOINT,
        "models_digest": models_digest(writer.folder / CHECKPOINT),
    }


def _request(args: argparse.Namespace) -> Request:
    """What the flags ask to forget; ValueError if they contradict one another."""
    if args.round is not None and (args.participant is None or args.samples is not None or args.within is not None):
        raise ValueError("--round T is for one batch: combine it with --participant K and nothing else.")
    if args.participant is None and args.samples is None:
        raise ValueError("say what to forget: --participant K, --samples I,J,… or --round T --participant K.")
    nodes, samples = _whole_numbers("--participant", args.participant), _whole_numbers("--samples", args.samples)
    ends = re.fullmatch(r"(\d+)-(\d+)", "0-0" if args.within is None else args.within)
    if not ends or int(ends[1]) > int(ends[2]):
        raise ValueError(f"--rounds must be FROM-TO, both included, e.g. 0-99; found {args.within!r}.")
    span = range(int(ends[1]), int(ends[2]) + 1) if args.within is not None else None
    lookup(LEVELS, args.level, "level")
    for flag, least, value in (("--points", 1, args.points), ("--repair", 0, args.repair)):
        if value < least:
            raise ValueError(f"{flag} must be at least {least}; found {value}.")
    return nodes, samples, span if args.round is None else range(args.round, args.round + 1)


def _whole_numbers(flag: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"{flag} must be whole numbers from 0 on, separated by commas; found {text!r}.")
    return tuple(dict.fromkeys(int(number) for number in text.split(",")))


def _rounds_to_read(recording: Recording, rounds: range | None) -> range:
    """The rounds from the first in which something is forgotten to the last recorded one."""
    span = recording.consecutive_rounds()
    if span.stop < (length := read_manifest(recording.folder).get("rounds", 0)):
        raise ValueError(
            f"the last round must be recorded to correct the final models; {recording.folder} has {length} rounds, of "
            f"which {span.start} to {span[-1]} are recorded. Train with --record all."
        )
    asked = span if rounds is None else rounds
    if asked.start not in span or asked[-1] not in span:
        recorded = f"those recorded in {recording.folder}, {span.start} to {span[-1]}"
        raise ValueError(f"{_span(asked)} must be among {recorded}. Ask for those, or train with --record all.")
    return range(asked.start, span.stop)


def _measure(
    recording: Recording, numbers: range, removal: Removal, args: argparse.Namespace, world: World,
    exchange: Exchange | None,
) -> tuple[Corrected, _Measured]:  # fmt: skip
    network, began = recording.network, perf_counter()
    operator = Operator(network, exchange)
    corrected = forget(network, recording.load_rounds(numbers), removal, args.level, args.points, operator=operator)
    updates, *uses = (int(number) for number in world.total(corrected.updates, *corrected.uses.tolist()))
    if not updates and not sum(uses):
        raise nothing_to_forget(removal, numbers)
    corrected = corrected._replace(updates=updates, uses=torch.tensor(uses, dtype=torch.int64))
    seconds = perf_counter() - began
    (last,) = recording.load_rounds([numbers[-1]])
    models = {TRAINED: last.after}
    exact = corrected if args.level == "replay" else None
    if exact is None and args.check:
        exact = forget(network, recording.load_rounds(numbers), removal, "replay", operator=operator)
        models[NEVER] = repair(network, exact, removal, args.repair, operator=operator).participants
    corrected = repair(network, corrected, removal, args.repair, operator=operator)
    models[FORGOTTEN] = corrected.participants
    draws = (round_.draw for round_ in recording.load_rounds(numbers))
    members = network.data.train.subset(forgotten_samples(removal, draws, network.whole, network.members))
    traces = {name: trace(network, models[name], members) for name in (TRAINED, FORGOTTEN, NEVER) if name in models}
    change, left = (models[FORGOTTEN].theta - models[TRAINED].theta).double().norm(dim=1), nan
    if exact is not None:
        never = models.get(NEVER, models[FORGOTTEN])
        left = distance(models[FORGOTTEN], models[TRAINED], never, start=exact.participants, total=world.total)
    measured = _Measured(seconds, left if isfinite(left) else None, change.tolist(), traces, len(members))
    return corrected, _merged(measured, world)


def _merged(own: _Measured, world: World) -> _Measured:
    """Merge the measurements of all processes: a few numbers per participant."""
    if world.alone:
        return own
    traces_here = {name: [values.tolist() for values in one] for name, one in own.traces.items()}
    parts = world.tell([own.seconds, own.change, own.members, traces_here])
    seconds, change, members, traces = zip(*parts, strict=True)
    joined = {name: Trace(*map(_joined, zip(*(each[name] for each in traces), strict=True))) for name in own.traces}
    return _Measured(max(seconds), own.left, _joined(change).tolist(), joined, sum(members))


def _joined(values: Sequence[list[float]]) -> Tensor:
    return torch.tensor(list(chain(*values)), dtype=torch.float64)


def _mean(values: Tensor) -> float:
    return float(values.double().nanmean())  # processes without the forgotten samples cannot measure membership


def _rows(measured: _Measured) -> list[list[Any]]:
    left = {TRAINED: 1.0, FORGOTTEN: round(measured.left, 4), NEVER: 0.0} if measured.left is not None else {}
    means = {name: [round(_mean(values), 4) for values in one] for name, one in measured.traces.items()}
    return [[name, *each, left.get(name)] for name, each in means.items()]


def _sentences(
    recording: Recording, numbers: range, removal: Removal, args: argparse.Namespace, corrected: Corrected,
    measured: _Measured,
) -> list[str]:  # fmt: skip
    rounds = removal.rounds or numbers
    count = _count(int(corrected.uses.sum()), "use") if removal.samples else _count(corrected.updates, "update")
    level = f"{args.level}, {args.points} points" if args.level == "path-integrated" else args.level
    repaired = f"; then {_count(args.repair, 'round')} of training without it" if args.repair else ""
    sentences = [
        f"Forgotten in all {recording.network.whole} models: {_subject(removal)}, {count} in {_span(rounds)}.",
        f"Method: {level} ({LEVELS[args.level].description}), {measured.seconds:.1f} s{repaired}.",
    ]
    if not any(measured.change):
        return [*sentences, "Nothing changed: what was to be forgotten had no effect in these rounds."]
    what = _subject(removal) if removal.samples else f"the updates of {_subject(removal)}"
    sentences += [_error(args, measured.left, f"{what} in {_span(rounds)}"), *_comparisons(measured)]
    if unused := [s for s, times in zip(removal.samples, corrected.uses.tolist(), strict=True) if not times]:
        sentences.append(f"Never used in these rounds, so there was nothing to forget: samples {_some(unused)}.")
    if others := [part for part in (range(rounds.start), range(rounds.stop, numbers.stop)) if part and removal.rounds]:
        spans = " and ".join(map(_span, others))
        sentences.append(f"Not forgotten: what was learned from it in {spans} (requested: {_span(rounds)} only).")
    if removal.rounds is None and numbers[0] > 0:
        sentences.append(f"Rounds before {numbers[0]} were not recorded; what was learned in them stays.")
    return sentences


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


def _error(args: argparse.Namespace, left: float | None, what: str) -> str:
    """Whether the models are exact, or how far they are from exact ones."""
    if args.level == "replay":
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
    if not measured.members:
        return [f"Mean test loss {change('loss', 4)}{accuracy}."]
    few = f"; measured on only {_count(measured.members, 'sample')}" if measured.members < ENOUGH_SAMPLES else ""
    return [
        f"Mean test loss {change('loss', 4)}{accuracy}.",
        f"Membership AUC, forgotten samples against test samples by their loss: {change('membership', 3)}; 0.5 is "
        f"chance{few}.",
    ]
