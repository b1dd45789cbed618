"""`cascadice reward`."""

import argparse

from cascadice.commands import over_runs


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "reward")
    parser.set_defaults(command=_reward)


def _reward(args: argparse.Namespace) -> None:
    over_runs.opened(args)
