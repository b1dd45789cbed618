"""`cascadice forget`: take samples, a batch or a participant out of the models of a recorded run."""

import argparse
import re
from typing import TYPE_CHECKING, Any

from cascadice.applications import over_runs

if TYPE_CHECKING:
    from cascadice.applications.forget.records import Certificate
    from cascadice.runs.recordings import Recording

MODELS = "models"  # a folder of its own: a checkpoint among results would look like a run's
MADE = ["forget.json", "forget.png", f"{MODELS}/checkpoint.safetensors"]


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "forget")
    what = parser.add_argument_group("what to forget")
    what.add_argument("--participant", metavar="K", help="its updates; several with commas between")
    what.add_argument("--samples", metavar="I,J,…", help="training samples, by whomever they were drawn")
    what.add_argument("--round", type=int, metavar="T", help="only the participant's batch of this round")
    only = "only what was used in these rounds, both included (all recorded)"
    what.add_argument("--rounds", dest="within", metavar="A-B", help=only)
    how = parser.add_argument_group("how")
    levels = "gossip, first-order, path-integrated or replay, which is exact [replay]"
    how.add_argument("--level", default="replay", metavar="LEVEL", help=levels)
    how.add_argument("--points", type=int, default=2, metavar="N", help="points of path-integrated [2]")
    how.add_argument("--repair", type=int, default=0, metavar="N", help="then train on for N rounds without it [0]")
    how.add_argument("--check", action="store_true", help="replay too, and say how far from it an estimate is")
    parser.set_defaults(command=_forget)


def _forget(args: argparse.Namespace) -> None:
    nodes, samples, rounds = _what(args)
    _check_how(args)
    recording = over_runs.opened(args)
    from cascadice.applications.forget.records import How, certify
    from cascadice.applications.forget.removals import Removal, check

    numbers = _numbers(recording, rounds)
    removal = Removal(nodes, samples, rounds)
    check(recording.network, removal)
    place = over_runs.place(args, "forget", MADE)
    found = certify(recording, numbers, removal, How(args.level, args.points, args.repair, args.check))
    _write(recording, found, place)
    if not args.quiet:
        _tell(found, place)


def _write(recording: "Recording", found: "Certificate", place: Any) -> None:
    from cascadice import files
    from cascadice.applications.forget.picture import draw
    from cascadice.runs import store

    corrected, layout = found.corrected, store.layout(recording.network.learner.training)
    store.save_checkpoint(place / MODELS, corrected.t, corrected.participants, run=recording.fingerprint, layout=layout)
    content = {**found.content, "figure": "forget.png", "models": MADE[-1]}
    draw(content, place / "forget.png")
    files.write_json(place / "forget.json", content)


def _tell(found: "Certificate", place: Any) -> None:
    from rich.console import Console

    console = Console()
    for finding in found.content["findings"]:
        console.print(finding, highlight=False, soft_wrap=True, markup=False)
    console.print(f"{', '.join(MADE)} in {place}", highlight=False, soft_wrap=True, markup=False)


def _what(args: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...], range | None]:
    """Whose updates, which samples, in which rounds (None: all)."""
    if args.round is not None and (args.participant is None or args.samples is not None or args.within is not None):
        raise ValueError("--round T is for one batch: it goes with --participant K, and with nothing else.")
    if args.participant is None and args.samples is None:
        raise ValueError("say what to forget: --participant K, --samples I,J,… or --round T --participant K.")
    nodes, samples = _whole_numbers("--participant", args.participant), _whole_numbers("--samples", args.samples)
    span = None if args.within is None else _span(args.within)
    return nodes, samples, span if args.round is None else range(args.round, args.round + 1)


def _whole_numbers(flag: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"{flag} must be whole numbers from 0 on, with commas between; found {text!r}.")
    return tuple(dict.fromkeys(int(number) for number in text.split(",")))


def _span(text: str) -> range:
    ends = re.fullmatch(r"(\d+)-(\d+)", text)
    if not ends or int(ends[1]) > int(ends[2]):
        raise ValueError(f"--rounds must be FROM-TO, both included, e.g. 0-99; found {text!r}.")
    return range(int(ends[1]), int(ends[2]) + 1)


def _check_how(args: argparse.Namespace) -> None:
    from cascadice.applications.forget.idea import LEVELS
    from cascadice.names import lookup

    lookup(LEVELS, args.level, "level")
    if args.points < 1:
        raise ValueError(f"--points must be at least 1; found {args.points}.")
    if args.repair < 0:
        raise ValueError(f"--repair must be at least 0; found {args.repair}.")


def _numbers(recording: "Recording", rounds: range | None) -> range:
    """The rounds to go through: from the first that is touched to the last that was recorded."""
    span = recording.in_a_row()
    asked = span if rounds is None else rounds
    if asked.start not in span or asked[-1] not in span:
        which = f"round {asked.start}" if len(asked) == 1 else f"rounds {asked.start} to {asked[-1]}"
        raise ValueError(
            f"{which} must be among those recorded in {recording.folder}, {span.start} to {span[-1]}. Ask for those, "
            f"or train with --record all."
        )
    return range(asked.start, span.stop)
