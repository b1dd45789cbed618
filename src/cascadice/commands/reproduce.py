"""`cascadice reproduce`: make the figures of the paper, with a package that a clone of the repository has."""

import argparse
from importlib import import_module

PACKAGE = "cascadice_experiments"
HOW_TO_GET = (
    "the figures are not part of the installed package. Clone the cascadice repository and install it from there with "
    "`pip install -e .`; then run this command again."
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("figures", nargs="*", metavar="NAME", help="figures to make, or all (none: list them)")
    parser.add_argument("--quick", action="store_true", help="fewer participants, rounds and points: minutes on a CPU")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data sets")
    parser.add_argument("--download", action="store_true", help="download data sets that are missing")
    parser.add_argument("--device", default="cpu", metavar="TEXT", help="cpu, cuda or cuda:N [cpu]")
    parser.add_argument("--out", default="out/reproduce", metavar="DIR", help="output folder [out/reproduce]")
    parser.add_argument("--mixing", metavar="FILE", help="CSV file with W, for the figures that take one")
    parser.add_argument("--normalize", action="store_true", help="divide each row of the CSV file by its sum")
    parser.add_argument("--overwrite", action="store_true", help="make these figures again, even if they exist")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    try:
        command = import_module(f"{PACKAGE}.figures.command")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == PACKAGE:
            raise ValueError(HOW_TO_GET) from None
        raise
    return int(command.run(args))
