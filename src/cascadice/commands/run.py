"""`cascadice run`: train a network, and compute influence during training if asked to."""

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cascadice.commands import view
from cascadice.names import lookup
from cascadice.runs import flags
from cascadice.runs.config import Config, field_types, override
from cascadice.runs.recipes import RECIPES

if TYPE_CHECKING:
    from cascadice.files import Folder
    from cascadice.loggers import Callback
    from cascadice.runs.question import Question
    from cascadice.runs.train import Summary


def add(parser: argparse.ArgumentParser) -> None:
    recipe = "a name from `cascadice list recipes`, or the folder or config.json of a run"
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=recipe)
    parser.add_argument("--out", metavar="DIR", help="folder for all output (runs/RECIPE)")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in the folder, bit for bit")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--download", action="store_true", help="fetch the data set if it is not on this machine")
    text = "serve the run's page on this machine (any free port); in a terminal, open it and keep it up until Ctrl-C"
    parser.add_argument("--live", nargs="?", type=_port, const=0, metavar="PORT", help=text)
    parser.add_argument("--no-browser", action="store_true", help="with --live: only print the address")
    text = "follow training elsewhere: tensorboard, wandb (offline), mlflow, separated by commas"
    parser.add_argument("--loggers", "--log", dest="log", metavar="LOGGERS", help=text)  # torchrun takes --log
    parser.add_argument(
        "--log-to", metavar="DIR", help="folder for the files of loggers (logs beside the run's folder)"
    )
    flags.add_processes(parser)
    flags.add_policy(parser)
    flags.add_question(parser, "influence, computed during training if any of these is given")
    flags.add_settings(parser, [name for name in field_types() if name != "saved"])


def run(args: argparse.Namespace) -> None:
    from cascadice.runs import train
    from cascadice.runs.distributed import together
    from cascadice.runs.distributed.processes import joined
    from cascadice.runs.folder import launcher

    recipe = args.recipe or "default"
    name = recipe if recipe in RECIPES else Path(recipe).absolute().name.removesuffix(".json")
    out = Path(args.out or f"runs/{name}")
    with joined(args.interface, args.timeout, args.policy, args.patience, args.tell_samples) as world:
        own = world.folder(out)
        config = override(_base(args.recipe, own if args.resume else None), flags.settings_from(args))
        options: dict[str, Any] = {name: vars(args)[name] for name in ("resume", "overwrite", "quiet", "download")}
        options |= {"question": _question(args), "world": world, "callbacks": _loggers(args, out, own)}
        try:
            if args.live is None:
                train.run(config, out, **options)
                together.point_to_all(world, out, None, args.quiet)
            else:
                watched = sys.stdout.isatty() and world.alone  # a script must go on when the run has ended
                opened = view.browse if watched and not args.no_browser else None
                run_live(config, out, args.live, stay=watched, opened=opened, **options)
        except KeyboardInterrupt as stop:
            resumable = (own / "checkpoint.safetensors").exists()
            how = f" Continue with: {launcher(world.size)} run --resume --out {out}" if resumable else ""
            raise KeyboardInterrupt(f"{str(stop) or 'stopped.'}{how}") from None


def run_live(
    config: Config, out: "Folder", port: int = 0, *, stay: bool = False, opened: Callable[[str], object] | None = None,
    **options: Any,
) -> "Summary":  # fmt: skip
    """Train as `cascadice.runs.train.run` does, and serve the run's page on this machine.

    Args:
        port: The port to listen on; 0 chooses a free one.
        stay: Whether to go on serving when the run has ended, until Ctrl-C.
        opened: Called with the address before the first round.

    Returns:
        What `run` returns.

    Example:
        >>> run_live(RECIPES["demo"](), "runs/demo", opened=webbrowser.open)  # doctest: +SKIP
    """
    from cascadice.report import live as pages
    from cascadice.runs import train

    token, addresses = secrets.token_urlsafe(24), list[str]()

    @contextmanager
    def live(folder: "Folder", rounds: int) -> Iterator[str]:
        with pages.serving(folder, rounds, port, token, stays=stay) as address:
            addresses.append(address)
            if opened is not None:
                opened(address)
            yield address

    summary = train.run(config, out, live=live, **options)
    if stay:
        print("the run has ended; its page stays open until Ctrl-C", flush=True)
        pages.view(out, lambda address: None, urlsplit(addresses[0]).port or 0, token)
    return summary


def _question(args: argparse.Namespace) -> "Question | None":
    if not flags.given_question(args):
        return None
    question = flags.question_from(args)
    if question.final:
        raise ValueError(
            f"--kind {', '.join(question.kinds)} is about the final models. Ask for it after the run: "
            f"cascadice influence RUN --kind {','.join(question.kinds)}."
        )
    return question


def _loggers(args: argparse.Namespace, out: Path, own: Path) -> "list[Callback]":
    """The loggers asked for; they call the run by the name of its folder, to which a process adds its own."""
    if args.log is None:
        if args.log_to is not None:
            raise ValueError(
                "--log-to says where loggers write, but no logger is given. Add --loggers tensorboard, wandb or mlflow."
            )
        return []
    from cascadice import loggers

    whole = out.absolute()
    logs, name = args.log_to or whole.parent / "logs", "-".join(dict.fromkeys((whole.name, own.absolute().name)))
    try:
        return loggers.build([each.strip() for each in args.log.split(",")], Path(logs), name)
    except ImportError as error:
        raise ValueError(str(error)) from None


def _port(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = "the recipe comes before it: cascadice run RECIPE --live"
        raise argparse.ArgumentTypeError(f"a port must be a whole number; found {text!r}; {hint}") from None


def _base(recipe: str | None, resumed: Path | None) -> Config:
    """The configuration that flags change: of a recipe, an earlier run, or the run to resume."""
    from cascadice.runs.folder import CONFIG, read_config

    if recipe is None:
        if resumed and not (resumed / CONFIG).exists():
            raise ValueError(f"{resumed} holds no run to resume. Check --out, or name a recipe to start one.")
        return read_config(resumed) if resumed else Config()
    if recipe not in RECIPES and (recipe.endswith(".json") or Path(recipe, CONFIG).exists()):
        return read_config(recipe)
    return lookup(RECIPES, recipe, "recipe")()
