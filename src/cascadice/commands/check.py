"""`cascadice check`: verify every file of a run, and every result computed from it."""

import argparse
from dataclasses import replace
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder that `cascadice run` wrote")
    text = "file with the secret key that the ledger must be sealed with (cascadice reward --seal)"
    parser.add_argument("--seal", metavar="FILE", help=text)
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data (default: the run's)")
    parser.add_argument("--quiet", action="store_true", help="print what is wrong only")


def run(args: argparse.Namespace) -> int:
    from cascadice.applications.reward.seals import read_key
    from cascadice.console import Console, say
    from cascadice.files import checksums
    from cascadice.report.checking import check_run, summary
    from cascadice.runs.gathering import places_of

    console = Console(quiet=args.quiet)
    places = places_of(args.run) or [Path(args.run)]
    areas = [
        replace(area, name=area.name if len(places) == 1 else f"{place.name} {area.name}")
        for place in places
        for area in check_run(place, read_key(args.seal, place), args.data_root)
    ]
    console.print_table(("part", "files", "checked", "wrong"), summary(areas), wrap="checked")
    problems = list(dict.fromkeys(problem for area in areas for problem in area.problems))
    if not problems and not all((place / checksums.LIST).exists() for place in places):
        say(console, "This run has no checksums: an earlier version recorded it. Resuming it adds them.")
    for problem in problems:
        say(Console(stderr=True), f"wrong: {problem}")
    say(console, f"{len(problems)} wrong" if problems else "nothing is wrong")
    return 1 if problems else 0
