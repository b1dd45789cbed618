"""Command-line flags for settings, questions and recordings. Torch is imported only when a run is opened."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from cascadice.runs.config import Config, field_types

if TYPE_CHECKING:
    from cascadice.runs.distributed.processes import World
    from cascadice.runs.question import Question
    from cascadice.runs.recording import Recording

DIFFERENT = ("device", "data_root", "model", "loss")  # settings in which a command may differ from the run
FINAL = ("at", "during", "on")  # what only questions about the final models have
NUMBERS = {
    "hops": "for how many rounds to follow an update [1]",
    "points": "quadrature points; more are more accurate [2; for whole-run-shares 3]",
    "every": "score the updates of every N-th round [1]",
    "eval_samples": "evaluate on the first N test samples (all)",
}


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add a flag for each of these settings; flags that are not given stay absent, so that recipes apply."""
    group = parser.add_argument_group("settings", argument_default=argparse.SUPPRESS)
    for f in (f for f in fields(Config) if f.name in names):
        types, default = field_types()[f.name], "" if f.default in (None, (), False) else f" [{f.default}]"
        if bool in types:
            how: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        elif tuple in types:
            how = {"action": "extend", "nargs": "*", "metavar": "TEXT"}
        else:
            how = {"metavar": "N" if int in types else "X" if float in types else "TEXT"}
        group.add_argument(f"--{f.name.replace('_', '-')}", help=f.metadata["help"] + default, **how)


def settings_from(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    given = {name: value for name, value in vars(args).items() if name in field_types()}
    read = {name: read_setting(name, value) if isinstance(value, str) else value for name, value in given.items()}
    for name in ("mixing", "data_root"):  # config.json must mean the same from any folder
        if read.get(name):
            read[name] = str(Path(read[name]).absolute())
    return {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}


def read_setting(name: str, text: str) -> Any:
    """Parse the value of a setting from the text of its flag."""
    types = field_types()[name]
    if NoneType in types and text.lower() == "none":
        return None
    kind = next(t for t in types if t is not NoneType)
    try:
        return text if kind is tuple else kind(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[kind] + (" or none" if NoneType in types else "")
        raise ValueError(f"--{name.replace('_', '-')} must be {wanted}; found {text!r}.") from None


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that can run in several processes."""
    group = parser.add_argument_group("several processes (torchrun -m cascadice …)")
    text = "network interface for their messages (loopback, or $GLOO_SOCKET_IFNAME)"
    group.add_argument("--interface", metavar="NAME", help=text)
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="how long processes wait for one another [60]")


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the flags that decide what processes do when one of them is missing."""
    group = parser.add_argument_group("when a process fails")
    text = "stop; carry-on: the others continue, and it may come back; restart: with torchrun --max-restarts [stop]"
    group.add_argument("--policy", metavar="stop|carry-on|restart", help=text)
    text = "how long to wait for the messages of a round [with carry-on 2, else --timeout]"
    group.add_argument("--patience", type=float, metavar="SECONDS", help=text)


def add_question(parser: argparse.ArgumentParser, title: str) -> None:
    """Add the flags for a question; flags that are not given stay absent."""
    group = parser.add_argument_group(title, argument_default=argparse.SUPPRESS)
    kinds = "estimators, any of `cascadice list kinds`, separated by commas [first-order]"
    group.add_argument("--kind", metavar="KINDS", dest="kinds", help=kinds)
    group.add_argument("--samples", action="store_true", help="score every training sample too")
    group.add_argument("--sources", metavar="NODES", help="whose updates to score, separated by commas (all)")
    for name, help in NUMBERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=help)
    text = "with several processes: tell process 0 the samples with the lowest and highest scores, to print"
    group.add_argument("--tell-samples", action="store_true", default=False, help=text)


def add_whole_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags that apply only to questions about the final models."""
    title = "about the final models (--kind whole-run, whole-run-shares, pairs)"
    group = parser.add_argument_group(title, argument_default=argparse.SUPPRESS)
    at = "α: the weight of all updates in the run that is differentiated, above 0 and at most 1 [1]"
    group.add_argument("--at", type=float, metavar="X", help=at)
    text = "only the updates of rounds A to B − 1 are weighted, e.g. 0:100 (all rounds)"
    group.add_argument("--during", metavar="A:B", help=text)
    on = "final models to measure: all, average, or the number of a participant [all]"
    group.add_argument("--on", metavar="WHOSE", help=on)


def given_question(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a question that were given as flags."""
    return {name: vars(args)[name] for name in ("kinds", "samples", "sources", *FINAL, *NUMBERS) if name in args}


def question_from(args: argparse.Namespace) -> "Question":
    """The question that was given as flags."""
    from cascadice.runs.question import Question, check_kinds

    given = given_question(args)
    if "kinds" in given:
        given["kinds"] = tuple(kind.strip() for kind in given["kinds"].split(","))
    check_kinds(given.get("kinds", Question.kinds), given)
    if "sources" in given:
        try:
            given["sources"] = tuple(int(node) for node in given["sources"].split(","))
        except ValueError:
            raise ValueError(f"--sources must be whole numbers, e.g. 0,3; found {given['sources']!r}.") from None
    if given.get("on", "").isdecimal():
        given["on"] = int(given["on"])
    if "during" in given:
        start, _, stop = given["during"].partition(":")
        if not (start.isdecimal() and stop.isdecimal()):
            found = repr(given["during"])
            raise ValueError(f"--during must be two rounds, e.g. 0:100 for rounds 0 to 99; found {found}.")
        given["during"] = int(start), int(stop)
    return Question(**given)


def add_recording(
    parser: argparse.ArgumentParser, name: str, run: str = "folder of a recorded run (cascadice run --record all)"
) -> None:
    """Add the arguments of all commands on a recorded run: the run, where to write results, and where to compute."""
    parser.add_argument("run", metavar="RUN", help=run)
    parser.add_argument("--out", metavar="DIR", help=f"folder for the results (RUN/{name})")
    parser.add_argument("--overwrite", action="store_true", help="replace existing results")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    device = "where to compute: cpu or cuda (default: as the run did)"
    parser.add_argument("--device", metavar="TEXT", help=device, default=argparse.SUPPRESS)
    data = "folder that holds the data (default: the run's)"
    parser.add_argument("--data-root", metavar="DIR", help=data, default=argparse.SUPPRESS)
    for name in ("model", "loss"):
        own = f"{name} of a network that was built in Python: package.module:name (default: the run's)"
        parser.add_argument(f"--{name}", metavar="TEXT", help=own, default=argparse.SUPPRESS)


def open_from(args: argparse.Namespace, world: "World", recorded: bool = True) -> "Recording":
    """Open the run named on the command line, or this process's part of it; with `recorded`, it must have rounds."""
    from cascadice.runs.recording import open_recording

    settings = {name: getattr(args, name) for name in DIFFERENT if hasattr(args, name)}
    return open_recording(world.folder(args.run), settings, quiet=args.quiet, world=world, recorded=recorded)
