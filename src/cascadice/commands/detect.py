"""`cascadice detect`."""

import argparse

from cascadice.commands import over_runs


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "detect")
    parser.set_defaults(command=_detect)


def _detect(args: argparse.Namespace) -> None:
    over_runs.opened(args)
