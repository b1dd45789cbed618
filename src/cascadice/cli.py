"""The command line: `cascadice list | run | influence | detect | choose | reward | forget | report | reproduce |
topology`.

Exit codes: 0 done, 1 the run failed, 2 a mistake in what was asked for, 3 some figures lack their data, 130 stopped by
Ctrl-C.
"""

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import cascadice
from cascadice.applications.choose import command as choose
from cascadice.applications.detect import command as detect
from cascadice.applications.forget import command as forget
from cascadice.applications.reward import command as reward
from cascadice.commands import report, reproduce
from cascadice.commands.listing import LISTS
from cascadice.names import lookup
from cascadice.runs.config import Config, kinds_of_fields, override, reader, schedule
from cascadice.runs.recipes import RECIPES

if TYPE_CHECKING:
    from cascadice.runs.questions import Question

TOPOLOGY_SETTINGS = ("nodes", "mixing", "normalize", "weights", "topology_options", "connected", "link_loss", "seed")


class Parser(argparse.ArgumentParser):
    """argparse with mistakes reported in one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        args, unknown = _parser().parse_known_args(arguments)
        _check_known(unknown, args.parser)
        code = args.command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as stop:
        return _fail(130, str(stop) or "stopped.")
    except ArithmeticError as error:
        return _fail(1, str(error))
    except MemoryError as error:
        return _fail(1, f"out of memory: {error}")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # nothing that was asked for is at fault
        return _fail(1 if full else 2, f"{error.filename}: {error.strerror}." if error.filename else str(error))
    except (ValueError, TypeError) as error:
        return _fail(2, str(error))
    else:
        return code or 0
    return 0


def _fail(code: int, message: str) -> int:
    print("cascadice:", " ".join(message.split()), file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cascadice", description="Whose data helped whom, in a network that trains without a server.")
    parser.add_argument("--version", action="version", version=f"cascadice {cascadice.__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, add, help in (
        ("list", _add_list, "what there is, by name"),
        ("run", _add_run, "train a network"),
        ("influence", _add_influence, "find whose data helped whom in a recorded run"),
        ("detect", detect.add, "find participants that behave unlike the others"),
        ("choose", choose.add, "find out with whom to collaborate"),
        ("reward", reward.add, "share out a budget by what everybody contributed"),
        ("forget", forget.add, "take data or a participant out of the trained models"),
        ("report", report.add, "a run, or what was reproduced, as one HTML page to look at and to pass on"),
        ("reproduce", reproduce.add, "make the figures of the paper, and some beyond it"),
        ("topology", _add_topology, "describe or draw who gossips with whom"),
    ):
        command = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        command.set_defaults(parser=command)
        add(command)
    return parser


def _check_known(unknown: Sequence[str], parser: argparse.ArgumentParser) -> None:
    if unknown:
        near = get_close_matches(unknown[0], parser._option_string_actions, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"{parser.prog} does not know {unknown[0]!r}.{hint} See {parser.prog} --help.")


def _add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """A flag for each of these fields of Config; the ones not given leave no trace, so recipes show through."""
    group = parser.add_argument_group("settings")
    for f in fields(Config):
        if f.name not in names:
            continue
        flag, kinds = f"--{f.name.replace('_', '-')}", kinds_of_fields()[f.name]
        usual = "" if f.default in (None, (), False) else f" [{f.default}]"
        more: dict[str, Any] = {"help": f.metadata["help"] + usual, "default": argparse.SUPPRESS}
        if bool in kinds:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **more)
        elif tuple in kinds:
            group.add_argument(flag, action="extend", nargs="*", metavar="TEXT", **more)
        else:
            group.add_argument(flag, metavar="N" if int in kinds else "X" if float in kinds else "TEXT", **more)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of Config that were given as flags."""
    given = {name: value for name, value in vars(args).items() if name in kinds_of_fields()}
    read = {name: reader(name)(value) if isinstance(value, str) else value for name, value in given.items()}
    for name in ("mixing", "data_root"):  # config.json must mean the same from anywhere
        if read.get(name):
            read[name] = str(Path(read[name]).absolute())
    return {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"any of: {', '.join(LISTS)} (all of them)")
    parser.set_defaults(command=_list)


def _list(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    chosen = [(name, lookup(LISTS, name, "list")) for name in args.what or LISTS]
    console = Console()
    for title, make in chosen:
        table = Table("name", "what it is", title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name, description in make().items():
            table.add_row(name, description)
        console.print(table)
        console.print()


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="a name from `cascadice list recipes`, or a run's folder or config.json",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for all that is written (runs/RECIPE)")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is there")
    parser.add_argument("--resume", action="store_true", help="go on with the run that is there, bit for bit")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("--download", action="store_true", help="fetch the data set if it is not here")
    text = "serve the run's page to this machine while it trains; its address is printed (any free port)"
    parser.add_argument("--live", nargs="?", type=_port, const=0, metavar="PORT", help=text)
    _add_question(parser, "influence, found while training if any of these is given")
    _add_settings(parser, tuple(kinds_of_fields()))
    parser.set_defaults(command=_run)


def _run(args: argparse.Namespace) -> None:
    from cascadice.runs.train import run

    out = Path(args.out or f"runs/{_short_name(args.recipe)}")
    config = override(_base(args.recipe, out if args.resume else None), _settings(args))
    flags = {name: vars(args)[name] for name in ("resume", "overwrite", "quiet", "download", "live")}
    try:
        run(config, out, question=_question(args) if _asked(args) else None, **flags)
    except KeyboardInterrupt:
        kept = (out / "checkpoint.safetensors").exists()
        how = f" Go on with: cascadice run --resume --out {out}" if kept else ""
        raise KeyboardInterrupt(f"stopped.{how}") from None


def _port(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = "a recipe comes before it: cascadice run RECIPE --live"
        raise argparse.ArgumentTypeError(f"a port must be a whole number; found {text!r}; {hint}") from None


def _short_name(recipe: str | None) -> str:
    if recipe is None or recipe in RECIPES:
        return recipe or "default"
    return Path(recipe).absolute().name.removesuffix(".json")


def _base(recipe: str | None, resumed: Path | None) -> Config:
    """What the flags change: the recipe, an earlier run's settings, or those of the run that goes on."""
    from cascadice.runs.folder import CONFIG, read_config

    if recipe is None:
        if resumed and not (resumed / CONFIG).exists():
            raise ValueError(f"{resumed} holds no run to go on with. Check --out, or name a recipe to start one.")
        return read_config(resumed) if resumed else Config()
    if recipe not in RECIPES and (recipe.endswith(".json") or Path(recipe, CONFIG).exists()):
        return read_config(recipe)
    return lookup(RECIPES, recipe, "recipe")()


NUMBERS = {
    "hops": "how many rounds on to follow an update [1]",
    "points": "points of a path integral; more are nearer [2]",
    "every": "look at the updates of every N-th round [1]",
    "eval_samples": "judge on the first N test samples (all)",
}


def _add_question(parser: argparse.ArgumentParser, title: str) -> None:
    """Flags of a question; the ones not given leave no trace."""
    group = parser.add_argument_group(title)
    absent: dict[str, Any] = {"default": argparse.SUPPRESS}
    text = "any of `cascadice list kinds`, with commas between [first-order]"
    group.add_argument("--kind", metavar="KINDS", dest="kinds", help=text, **absent)
    group.add_argument("--samples", action="store_true", help="score every training sample too", **absent)
    group.add_argument("--sources", metavar="NODES", help="whose updates, with commas between (everyone's)", **absent)
    for name, help in NUMBERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=help, **absent)


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    return {name: vars(args)[name] for name in ("kinds", "samples", "sources", *NUMBERS) if name in args}


def _question(args: argparse.Namespace) -> "Question":
    from cascadice.runs.questions import Question

    given = _asked(args)
    if "kinds" in given:
        given["kinds"] = tuple(kind.strip() for kind in given["kinds"].split(","))
    if "sources" in given:
        try:
            given["sources"] = tuple(int(node) for node in given["sources"].split(","))
        except ValueError:
            raise ValueError(f"--sources must be whole numbers, e.g. 0,3; found {given['sources']!r}.") from None
    return Question(**given)


def _add_influence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run that was recorded: cascadice run --record all")
    parser.add_argument("--out", metavar="DIR", help="folder for the table and the picture (RUN/influence)")
    parser.add_argument("--overwrite", action="store_true", help="replace the influence that is there")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    _add_question(parser, "question")
    _add_settings(parser, ("device", "data_root"))
    parser.set_defaults(command=_influence)


def _influence(args: argparse.Namespace) -> None:
    from cascadice.runs.inquiry import ask

    try:
        ask(args.run, _question(args), args.out, settings=_settings(args), overwrite=args.overwrite, quiet=args.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. The same command, without --overwrite, goes on.") from None


def _add_topology(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from `cascadice list topologies`")
    parser.add_argument("--plot", nargs="?", const="", metavar="FILE", help="draw it, as PNG or SVG (NAME-NODES.png)")
    parser.add_argument("--rounds", dest="over", type=int, metavar="N", help="look at the first N rounds of a schedule")
    _add_settings(parser, TOPOLOGY_SETTINGS)
    parser.set_defaults(command=_topology)


def _topology(args: argparse.Namespace) -> None:
    from cascadice.topology import average, describe_schedule, period

    given = _settings(args)
    if (args.name is None) == (given.get("mixing") is None):
        raise ValueError("name a topology, or give --mixing FILE.csv; see cascadice list topologies.")
    config = override(Config(), given if args.name is None else {**given, "topology": args.name})
    found = schedule(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        description = describe_schedule(found, args.over)
    name = args.name or Path(config.mixing or "").stem
    path = None if args.plot is None else Path(args.plot or f"{name}-{description.nodes}.png")
    if path is not None:
        _plot(average(found, args.over or period(found)), path, name)
    print(f"{name}\n{description}" + ("" if path is None else f"\n\ndrawn in {path}"))
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)


def _plot(W: Any, path: Path, title: str) -> None:
    from cascadice.files import aside
    from cascadice.pictures.topology import draw

    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder; make it first, or draw elsewhere.")
    with aside(path) as draft:
        draw(W, draft, title=title)
