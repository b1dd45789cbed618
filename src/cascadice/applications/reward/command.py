"""`cascadice reward`: enter everyone's contributions to a run into a ledger, and share a budget by them."""

import argparse

from cascadice.runs.flags import add_processes, add_recording


def add(parser: argparse.ArgumentParser) -> None:
    add_recording(parser, "reward")
    pay = parser.add_argument_group("payments")
    pay.add_argument("--budget", type=float, metavar="X", required=True, help="what to share among the participants")
    pay.add_argument("--floor", type=float, default=0.0, metavar="X", help="what everyone is paid at least [0]")
    text = "what harm costs, per unit of help: 0 forgives it, more than 1 punishes it [1]"
    pay.add_argument("--clawback", type=float, default=1.0, metavar="X", help=text)
    text = "how to share the rest, one of `cascadice list payouts` [proportional]"
    pay.add_argument("--payout", default="proportional", metavar="RULE", help=text)
    enter = parser.add_argument_group("contributions")
    text = "how to score contributions, one of `cascadice list contributions` (the ledger's, or whole-run-shares)"
    enter.add_argument("--kind", metavar="KIND", help=text)
    text = "with whole-run-shares: runs at smaller learning rates, from which shares are computed [3]"
    enter.add_argument("--points", type=int, metavar="N", help=text)
    text = "with shares: for how many rounds to follow an update [4]"
    enter.add_argument("--hops", type=int, metavar="N", help=text)
    text = "with shares: enter every N-th round; payments use all rounds in the ledger [1]"
    enter.add_argument("--every", type=int, metavar="N", help=text)
    enter.add_argument("--samples", action="store_true", help="enter each training sample's contribution too")
    enter.add_argument("--eval-samples", type=int, metavar="N", help="evaluate on the first N test samples (all)")
    text = "file with a secret key of 16 bytes or more: seal what is entered with it, and check what was entered before"
    enter.add_argument("--seal", metavar="FILE", help=text)
    enter.add_argument("--ledger", metavar="DIR", help="folder of the ledger (RUN/ledger)")
    add_processes(parser)
