"""`cascadice validate`: find out which estimates of influence predict what training without some data shows."""

import argparse

from cascadice.runs.flags import add_recording

EVAL_SAMPLES = 1000


def add(parser: argparse.ArgumentParser) -> None:
    add_recording(parser, "validate", "folder of a run, recorded or not: it is trained again")
    parser.add_argument("--subsets", type=int, default=48, metavar="N", help="networks to train [48]")
    parser.add_argument(
        "--keep", type=float, default=0.8, metavar="X", help="the fraction that each subset keeps [0.8]"
    )
    parser.add_argument("--of", default="participants", metavar="WHAT", help="participants or samples [participants]")
    text = "estimates to check, any of `cascadice list estimates`, separated by commas (all but those only if named)"
    parser.add_argument("--kinds", metavar="KINDS", help=text)
    text = "also train without each participant in turn"
    parser.add_argument("--leave-one-out", action="store_true", help=text)
    text = f"evaluate on the first N test samples (all, at most {EVAL_SAMPLES:,})"
    parser.add_argument("--eval-samples", type=int, metavar="N", help=text)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random subsets [0]")
