"""`cascadice choose`: advise who should hear whom, from a recorded run."""

import argparse

from cascadice.runs.flags import add_processes, add_recording


def add(parser: argparse.ArgumentParser) -> None:
    add_recording(parser, "choose")
    text = "judge by what neighbours exchanged, or by contributions to final models (into RUN/contribution) [exchange]"
    parser.add_argument("--by", default="exchange", metavar="exchange|contribution", help=text)
    text = "with contribution: to whose final model, the number of a participant (to all)"
    parser.add_argument("--on", type=int, metavar="K", help=text)
    text = "with contribution: runs at smaller learning rates, from which shares are computed [3]"
    parser.add_argument("--points", type=int, metavar="N", help=text)
    parser.add_argument("--groups", type=int, metavar="N", help="how many groups to find (by the gap of eigenvalues)")
    parser.add_argument("--degree", type=int, metavar="N", help="greatest number of neighbours in the suggested W")
    text = "suggest links that the run did not have, where they would help more"
    parser.add_argument("--new-links", action="store_true", help=text)
    text = "judge only neighbours, not everybody; always so across several processes"
    parser.add_argument("--heard", action="store_true", help=text)
    add_processes(parser)
