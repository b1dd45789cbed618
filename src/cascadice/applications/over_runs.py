"""What all commands over a recorded run take. Torch is loaded when a command runs, not when its help is shown."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cascadice.runs.recordings import Recording


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """The run, where results go (`name` in its folder), and where to compute."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run that was recorded: cascadice run --record all")
    parser.add_argument("--out", metavar="DIR", help=f"folder for what is found (RUN/{name})")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    for flag, metavar, meaning in (
        ("--device", "TEXT", "where to compute: cpu or cuda (as the run did)"),
        ("--data-root", "DIR", "folder that holds the data (as the run had it)"),
    ):
        parser.add_argument(flag, metavar=metavar, help=meaning, default=argparse.SUPPRESS)


def opened(args: argparse.Namespace) -> "Recording":
    """The run that was named."""
    from cascadice.runs.recordings import open_recording

    settings = {name: getattr(args, name) for name in ("device", "data_root") if hasattr(args, name)}
    return open_recording(args.run, settings, quiet=args.quiet)


def place(args: argparse.Namespace, name: str, made: list[str]) -> Path:
    """The folder for results, free of what was `made` before."""
    from cascadice.runs.recordings import place_for

    return place_for(Path(args.run), name, args.out, made, args.overwrite)
