"""`cascadice check`: verify every file of a run, and every result computed from it."""

import argparse
from dataclasses import replace
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder that `cascadice run` or `cd.save` wrote")
    text = "file with the secret key that the ledger must be sealed with (cascadice reward --seal)"
    parser.add_argument("--seal", metavar="FILE", help=text)
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data (default: the run's)")
    parser.add_argument("--quiet", action="store_true", help="print what is wrong only")


def run(args: argparse.Namespace) -> int:
    from cascadice.applications.reward.seals import read_key
    from cascadice.console import Console, say
    from cascadice.files import checksums
    from cascadice.report.checking import check_processes, check_run, summary
    from cascadice.runs.distributed.gathering import places_of

    console = Console(quiet=args.quiet)
    folders = places_of(args.run) or [Path(args.run)]
    areas = [
        replace(area, name=area.name if len(folders) == 1 else f"{folder.name} {area.name}")
        for folder in folders
        for area in check_run(folder, read_key(args.seal, folder), args.data_root)
    ]
    areas += [check_processes(folders)] if len(folders) > 1 else []
    console.print_table(("part", "files", "checked", "wrong"), summary(areas), wrap="checked")
    problems = list(dict.fromkeys(problem for area in areas for problem in area.problems))
    if not problems and not all((folder / checksums.LIST).exists() for folder in folders):
        say(console, "This run has no checksums: an earlier version recorded it. Resuming it adds them.")
    for problem in problems:
        say(Console(stderr=True), f"wrong: {problem}")
    say(console, f"{len(problems)} wrong" if problems else "nothing is wrong")
    return 1 if problems else 0
