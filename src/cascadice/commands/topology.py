"""`cascadice topology`: describe or plot a mixing matrix or a schedule of them."""

import argparse
import sys
import warnings
from pathlib import Path

from cascadice.runs import flags
from cascadice.runs.config import Config, override, schedule

SETTINGS = ("nodes", "mixing", "normalize", "weights", "topology_options", "connected", "link_loss", "seed")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from `cascadice list topologies`")
    parser.add_argument("--plot", nargs="?", const="", metavar="FILE", help="plot it, as PNG or SVG (NAME-NODES.png)")
    parser.add_argument("--rounds", dest="over", type=int, metavar="N", help="use the first N rounds of a schedule")
    flags.add_settings(parser, SETTINGS)


def run(args: argparse.Namespace) -> None:
    from cascadice.pictures.topology import plot
    from cascadice.topology import average, describe_schedule, period

    given = flags.settings_from(args)
    if (args.name is None) == (given.get("mixing") is None):
        raise ValueError("name a topology, or give --mixing FILE.csv; see cascadice list topologies.")
    config = override(Config(), given if args.name is None else {**given, "topology": args.name})
    mixing = schedule(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        description = describe_schedule(mixing, args.over)
    name, plotted = args.name or Path(config.mixing or "").stem, ""
    if args.plot is not None:
        path = Path(args.plot or f"{name}-{description.nodes}.png")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} is not a folder. Create it, or choose another.")
        plot(average(mixing, args.over or period(mixing)), path, title=name)
        plotted = f"\n\nplotted in {path}"
    print(f"{name}\n{description}{plotted}")
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
