"""`cascadice detect`: find participants whose updates stand out from those of the others, in a recorded run."""

import argparse
import math

from cascadice.runs.flags import add_processes, add_recording


def add(parser: argparse.ArgumentParser) -> None:
    add_recording(parser, "detect")
    text = "false-alarm rate: how often an honest neighbour may be flagged [0.01]"
    parser.add_argument("--rate", type=float, default=0.01, metavar="X", help=text)
    text = "how far apart honest neighbours may be in the long run, in units of their mean difference within a round"
    text += " (measured, at least 0.5; of several processes 0.5)"
    parser.add_argument("--allowance", type=float, metavar="X", help=text)
    text = "let each receiver use only the spread of its own neighbours; flags fewer attackers"
    parser.add_argument("--unlike", action="store_true", help=text)
    text = "rounds after which evidence fades; 1 judges each round alone (never fades)"
    parser.add_argument("--memory", type=float, default=math.inf, metavar="N", help=text)
    text = "own samples to evaluate on in a round (up to 128)"
    parser.add_argument("--own-samples", "--samples", dest="samples", type=int, metavar="N", help=text)
    add_processes(parser)
