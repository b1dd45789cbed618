"""`cascadice forget`: take samples, a batch or a participant out of the models of a recorded run."""

import argparse
import re
from typing import TYPE_CHECKING

from cascadice.runs.flags import add_recording, open_from

if TYPE_CHECKING:
    from cascadice.runs.recording import Recording

MODELS = "models"  # a folder of its own: a checkpoint among the results would look like a run's
CHECKPOINT = f"{MODELS}/checkpoint.safetensors"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recording(parser, "forget")
    what = parser.add_argument_group("what to forget")
    what.add_argument("--participant", metavar="K", help="its updates; several, separated by commas")
    what.add_argument("--samples", metavar="I,J,…", help="training samples, whoever drew them")
    what.add_argument("--round", type=int, metavar="T", help="only the participant's batch in this round")
    text = "only what was used in these rounds, both included (all recorded)"
    what.add_argument("--rounds", dest="within", metavar="A-B", help=text)
    how = parser.add_argument_group("how")
    text = "one of `cascadice list levels`; replay is exact [replay]"
    how.add_argument("--level", default="replay", metavar="LEVEL", help=text)
    how.add_argument("--points", type=int, default=2, metavar="N", help="quadrature points of path-integrated [2]")
    how.add_argument("--repair", type=int, default=0, metavar="N", help="then train N rounds without it [0]")
    how.add_argument("--check", action="store_true", help="replay too, and measure the error of an estimate")
    parser.set_defaults(command=_forget)


def _forget(args: argparse.Namespace) -> None:
    nodes, samples, rounds = _request(args)
    from cascadice.applications.forget import picture  # all this imports torch
    from cascadice.applications.forget.idea import LEVELS
    from cascadice.applications.forget.records import COLUMNS, Method, record_forgetting
    from cascadice.applications.forget.removals import Removal, check_removal
    from cascadice.applications.writer import open_writer
    from cascadice.names import lookup
    from cascadice.runs import store

    lookup(LEVELS, args.level, "level")
    for flag, least, found in (("--points", 1, args.points), ("--repair", 0, args.repair)):
        if found < least:
            raise ValueError(f"{flag} must be at least {least}; found {found}.")
    recording = open_from(args)
    numbers, removal = _rounds_to_read(recording, rounds), Removal(nodes, samples, rounds)
    check_removal(recording.network, removal)
    writer = open_writer(args, recording, "forget", CHECKPOINT)
    record = record_forgetting(recording, numbers, removal, Method(args.level, args.points, args.repair, args.check))
    corrected, layout = record.corrected, store.layout(recording.network.learner.training)
    folder = writer.folder / MODELS
    store.save_checkpoint(folder, corrected.t, corrected.participants, run=recording.fingerprint, layout=layout)
    header = writer.header(record.title, record.findings, COLUMNS, record.rows)
    writer.write({**header, **record.details, "models": CHECKPOINT}, picture.plot)
    writer.print_files()


def _request(args: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...], range | None]:
    """The participants, samples and rounds (None: all) to forget."""
    if args.round is not None and (args.participant is None or args.samples is not None or args.within is not None):
        raise ValueError("--round T is for one batch: combine it with --participant K and nothing else.")
    if args.participant is None and args.samples is None:
        raise ValueError("say what to forget: --participant K, --samples I,J,… or --round T --participant K.")
    nodes, samples = _whole_numbers("--participant", args.participant), _whole_numbers("--samples", args.samples)
    span = None if args.within is None else _span(args.within)
    return nodes, samples, span if args.round is None else range(args.round, args.round + 1)


def _whole_numbers(flag: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"{flag} must be whole numbers from 0 on, separated by commas; found {text!r}.")
    return tuple(dict.fromkeys(int(number) for number in text.split(",")))


def _span(text: str) -> range:
    ends = re.fullmatch(r"(\d+)-(\d+)", text)
    if not ends or int(ends[1]) > int(ends[2]):
        raise ValueError(f"--rounds must be FROM-TO, both included, e.g. 0-99; found {text!r}.")
    return range(int(ends[1]), int(ends[2]) + 1)


def _rounds_to_read(recording: "Recording", rounds: range | None) -> range:
    """From the first round in which something is forgotten to the last recorded one."""
    span = recording.consecutive_rounds()
    asked = span if rounds is None else rounds
    if asked.start not in span or asked[-1] not in span:
        name = f"round {asked.start}" if len(asked) == 1 else f"rounds {asked.start} to {asked[-1]}"
        raise ValueError(
            f"{name} must be among those recorded in {recording.folder}, {span.start} to {span[-1]}. Ask for those, "
            f"or train with --record all."
        )
    return range(asked.start, span.stop)
