"""Commands over a recorded run, in one process or in several that trained it together."""

import argparse
from collections.abc import Callable
from typing import Any

from cascadice.runs import together
from cascadice.runs.folder import read_run_config, writing
from cascadice.runs.processes import World, joined

# what may differ from process to process, or is agreed on elsewhere
NOT_COMPARED = (
    "run", "out", "overwrite", "quiet", "device", "data_root", "interface", "timeout", "parser", "command", "seal",
    "ledger",
)  # fmt: skip

Work = Callable[[argparse.Namespace, World], None]


def run_in_step(args: argparse.Namespace, name: str, work: Work) -> None:
    """Do what a command asks for; of several processes, each in its own folder of the run, and all asked the same."""
    with joined(args.interface, args.timeout) as world:
        folder, out = together.places(world, args.run, args.out, name)
        asked: dict[str, Any] = {each: value for each, value in vars(args).items() if each not in NOT_COMPARED}
        together.agree(world, name, asked, args.overwrite)
        given, args.out, args.quiet = args.out, out, args.quiet or world.rank > 0
        read_run_config(folder)
        with writing(out):
            work(args, world)
        together.point_to_all(world, args.run, given, args.quiet)
