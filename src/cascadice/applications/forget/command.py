"""`cascadice forget`: remove samples, a batch or a participant from the models of a recorded run."""

import argparse

from cascadice.runs.flags import add_processes, add_recording


def add(parser: argparse.ArgumentParser) -> None:
    add_recording(parser, "forget")
    what = parser.add_argument_group("what to forget")
    what.add_argument("--participant", metavar="K", help="its updates; several, separated by commas")
    what.add_argument("--samples", metavar="I,J,…", help="training samples, whoever drew them")
    what.add_argument("--round", type=int, metavar="T", help="only the participant's batch in this round")
    text = "forget only what was used in these rounds, first and last included (all recorded)"
    what.add_argument("--rounds", dest="within", metavar="A-B", help=text)
    how = parser.add_argument_group("how")
    text = "one of `cascadice list levels`; replay is exact [replay]"
    how.add_argument("--level", default="replay", metavar="LEVEL", help=text)
    how.add_argument("--points", type=int, default=2, metavar="N", help="quadrature points of path-integrated [2]")
    how.add_argument("--repair", type=int, default=0, metavar="N", help="then train N rounds without it [0]")
    how.add_argument("--check", action="store_true", help="also replay, and measure the error of the estimate")
    add_processes(parser)
