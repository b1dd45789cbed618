"""What `cascadice forget` computes, writes and says.

The record does not prove that every trace is gone; its entry `proved` says what it proves and what it does not.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import file_digest
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from time import perf_counter

import torch

from cascadice.applications.forget.charts import charts
from cascadice.applications.forget.idea import LEVELS, Corrected, forget, nothing_to_forget, repair
from cascadice.applications.forget.removals import Removal, check_removal, forgotten_samples
from cascadice.applications.forget.traces import distance, trace
from cascadice.applications.plain import Json
from cascadice.applications.writer import Section, comma_separated, open_writer, run_in_processes
from cascadice.engine import Participants
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
EXACT = (
    "Proved: these models equal a replay of the recorded rounds without what was forgotten; not proved: that the "
    "recording is complete, or that no copy of the data or of earlier models is kept elsewhere."
)
ESTIMATED = (
    "Proved: nothing beyond the numbers above; not proved: that these models equal models trained without what was "
    "forgotten, or that nothing about it can be inferred from them."
)


def models_digest(path: Path) -> str:
    """The SHA-256 of a whole file with models."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def audit(results: Json, folder: Path) -> list[str]:
    """Compare the models with the digest in `forget.json`; ValueError if they are missing or were changed."""
    name, expected = str(results.get("models")), results.get("models_digest")
    if expected is None:
        return ["Not checked: the record does not hold the digest of the models."]
    path = folder / name
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):  # resolving links in a circle fails
        raise ValueError(f"the models that it is about, {name}, are missing.")
    if (digest := models_digest(path)) != expected:
        raise ValueError(f"{name} holds other models: its digest is {digest[:12]}…, not {str(expected)[:12]}….")
    return [f"Checked: {name} holds the models that this record is about."]


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


def run(args: argparse.Namespace) -> None:
    """Run `cascadice forget` with these flags."""
    run_in_processes(args, "forget", partial(_run, request=_request(args)))


def _run(
    args: argparse.Namespace, world: World, request: tuple[tuple[int, ...], tuple[int, ...], range | None]
) -> None:
    """Forget these participants' updates or samples in these rounds, and measure what is left."""
    recording = open_from(args, world)
    network, read, removal = recording.network, _rounds_to_read(recording, request[-1]), Removal(*request)
    check_removal(network, removal)
    writer = open_writer(args, recording, "forget", CHECKPOINT)
    with world.exchange(network) as exchange:
        models, measured = _forget(args, recording, read, removal, world, exchange)
    layout, t = store.layout(network.learner.training), read.stop + args.repair
    store.save_checkpoint(writer.folder / MODELS, t, models, run=recording.fingerprint, layout=layout)
    rounds, left, traces = removal.rounds or read, measured["distance"], measured["traces"]
    lefts = {} if left is None else {TRAINED: 1.0, FORGOTTEN: round(left, 4), NEVER: 0.0}
    rows = [[name, *(round(_mean(of), 4) for of in one.values()), lefts.get(name)] for name, one in traces.items()]
    forgotten = {"participants": removal.nodes, "samples": removal.samples, "rounds": [rounds[0], rounds[-1]]}
    proved = EXACT if args.level == "replay" else ESTIMATED
    results = {
        **writer.header(f"{_subject(removal)} forgotten", COLUMNS, rows),
        "proved": proved,
        "forgotten": forgotten | measured.pop("forgotten"),
        "how": {"level": args.level, "points": args.points, "repairs": args.repair, "checked": args.check},
        "next_round": t,
        **measured,
        **writer.members(),
        "models": CHECKPOINT,
        "models_digest": models_digest(writer.folder / CHECKPOINT),
    }
    writer.write(results | {"findings": [*_sentences(results, removal, read, network.whole), proved]}, SECTION)
    writer.print_files()


def _forget(
    args: argparse.Namespace, recording: Recording, read: range, removal: Removal, world: World,
    exchange: Exchange | None,
) -> tuple[Participants, Json]:  # fmt: skip
    """The corrected models of this process, and what was measured in those of all processes."""
    network, began = recording.network, perf_counter()
    operator = Operator(network, exchange)

    def without(level: str) -> Corrected:
        return forget(network, recording.load_rounds(read), removal, level, args.points, operator=operator)

    def repaired(corrected: Corrected) -> Participants:
        return repair(network, corrected, removal, args.repair, operator=operator).participants

    corrected = without(args.level)
    updates, *uses = (int(number) for number in world.total(corrected.updates, *corrected.uses.tolist()))
    if not updates and not sum(uses):
        raise nothing_to_forget(removal, read)
    seconds, exact = perf_counter() - began, corrected if args.level == "replay" else None
    (last,) = recording.load_rounds([read[-1]])
    models = {TRAINED: last.after, FORGOTTEN: repaired(corrected)}
    never = models[FORGOTTEN]
    if args.check and exact is None:
        exact = without("replay")
        models[NEVER] = never = repaired(exact)
    draws = (round_.draw for round_ in recording.load_rounds(read))
    members = network.data.train.subset(forgotten_samples(removal, draws, network.whole, network.members))
    left = nan
    if exact is not None:
        left = distance(models[FORGOTTEN], last.after, never, start=exact.participants, total=world.total)
    moved = (models[FORGOTTEN].theta - last.after.theta).double().norm(dim=1).tolist()
    traces = {name: trace(network, one, members)._asdict() for name, one in models.items()}
    own = {name: {what: values.tolist() for what, values in one.items()} for name, one in traces.items()}
    times, counts, changes, each = zip(*world.tell([seconds, len(members), moved, own]), strict=True)
    return models[FORGOTTEN], {
        "forgotten": {"updates": updates, "uses": uses, "distinct_samples": sum(counts)},
        "seconds": max(times),
        "distance": left if isfinite(left) else None,
        "change": [*chain(*changes)],
        "traces": {
            name: {what: [*chain(*(part[name][what] for part in each))] for what in one} for name, one in own.items()
        },
    }


def _request(args: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...], range | None]:
    """The participants, samples and rounds (None: all) to forget; ValueError if the flags contradict one another."""
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


def _mean(values: Sequence[float]) -> float:
    """The mean of the numbers that are known: processes without the forgotten samples cannot measure membership."""
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


def _sentences(results: Json, removal: Removal, read: range, models: int) -> Iterator[str]:
    """What was forgotten and how, what that changed, and what was not forgotten."""
    how, forgotten, rounds = results["how"], results["forgotten"], removal.rounds or read
    subject, span, uses = _subject(removal), _span(rounds), forgotten["uses"]
    count = _count(sum(uses), "use") if removal.samples else _count(forgotten["updates"], "update")
    yield f"Forgotten in all {models} models: {subject}, {count} in {span}."
    level = f"{how['level']}, {how['points']} points" if how["level"] == "path-integrated" else how["level"]
    repaired = f"; then {_count(how['repairs'], 'round')} of training without it" if how["repairs"] else ""
    yield f"Method: {level} ({LEVELS[how['level']].description}), {results['seconds']:.1f} s{repaired}."
    if not any(results["change"]):
        yield "Nothing changed: what was to be forgotten had no effect in these rounds."
        return
    what = f"{'' if removal.samples else 'the updates of '}{subject} in {span}"
    yield _error(how["level"], results["distance"], what)
    accuracy = _change(results, "accuracy", 3) if all(map(isfinite, results["traces"][TRAINED]["accuracy"])) else ""
    yield f"Mean test loss {_change(results, 'loss', 4)}{accuracy and f', accuracy {accuracy}'}."
    if members := forgotten["distinct_samples"]:
        attack = "Membership AUC, forgotten samples against test samples by their loss"
        few = f"; measured on only {_count(members, 'sample')}" if members < ENOUGH_SAMPLES else ""
        yield f"{attack}: {_change(results, 'membership', 3)}; 0.5 is chance{few}."
    if unused := [sample for sample, times in zip(removal.samples, uses, strict=True) if not times]:
        yield f"Never used in these rounds, so there was nothing to forget: samples {_some(unused)}."
    others = [part for part in (range(rounds.start), range(rounds.stop, read.stop)) if part]
    if removal.rounds and others:
        spans = " and ".join(map(_span, others))
        yield f"Not forgotten: what was learned from it in {spans} (requested: {span} only)."
    if removal.rounds is None and read.start > 0:
        yield f"Rounds before {read.start} were not recorded; what was learned in them stays."


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


def _error(level: str, left: float | None, what: str) -> str:
    """Whether the models are exact, or how far they are from exact ones."""
    if level == "replay":
        return f"Exact: these are the models of the same run without {what}."
    if left is None:
        return "This is an estimate, not checked: --check replays the rounds and measures its error."
    worse = " This is worse than no correction: use --level replay." if left >= 1 else ""
    return f"Distance left to models that never used it: {left:.3f} (1: as trained, 0: exact).{worse}"


def _change(results: Json, what: str, digits: int) -> str:
    """A mean over all models as they were trained and after forgetting; with --check, also what it should be."""
    mean = {name: f"{_mean(one[what]):.{digits}f}" for name, one in results["traces"].items()}
    aim = f" (never used: {mean[NEVER]})" if NEVER in mean else ""
    return f"{mean[TRAINED]} -> {mean[FORGOTTEN]}{aim}"
