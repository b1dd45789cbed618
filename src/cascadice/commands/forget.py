"""`cascadice forget`."""

import argparse

from cascadice.commands import over_runs


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "forget")
    parser.set_defaults(command=_forget)


def _forget(args: argparse.Namespace) -> None:
    over_runs.opened(args)
