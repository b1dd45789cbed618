"""`cascadice choose`."""

import argparse

from cascadice.commands import over_runs


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "choose")
    parser.set_defaults(command=_choose)


def _choose(args: argparse.Namespace) -> None:
    over_runs.opened(args)
