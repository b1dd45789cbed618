"""`cascadice reward`: enter everyone's contributions to a recorded run into a ledger, and share a budget by them."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascadice.applications.writer import Writer, open_writer
from cascadice.runs.flags import add_recording, open_from

if TYPE_CHECKING:
    from cascadice.applications.reward.contributions import Entry
    from cascadice.applications.reward.idea import Payout
    from cascadice.applications.reward.ledger import Ledger
    from cascadice.runs.recording import Recording

HOPS = 4
COLUMNS = ("participant", "payment", "credit", "helped by", "harmed by", "injected")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recording(parser, "reward")
    pay = parser.add_argument_group("payments")
    pay.add_argument("--budget", type=float, metavar="X", required=True, help="what to share among the participants")
    pay.add_argument("--floor", type=float, default=0.0, metavar="X", help="what everyone is paid at least [0]")
    text = "what harm costs, per unit of help: 0 forgives it, more than 1 punishes it [1]"
    pay.add_argument("--clawback", type=float, default=1.0, metavar="X", help=text)
    text = "how to share the rest, one of `cascadice list payouts` [proportional]"
    pay.add_argument("--payout", default="proportional", metavar="RULE", help=text)
    enter = parser.add_argument_group("contributions")
    text = "how to score contributions, one of `cascadice list contributions` [shares]"
    enter.add_argument("--kind", default="shares", metavar="KIND", help=text)
    text = f"with shares: how many rounds to follow an update for [{HOPS}]"
    enter.add_argument("--hops", type=int, metavar="N", help=text)
    text = "with shares: enter every N-th round; payments use all rounds in the ledger [1]"
    enter.add_argument("--every", type=int, metavar="N", help=text)
    enter.add_argument("--samples", action="store_true", help="enter each training sample's contribution too")
    enter.add_argument("--eval-samples", type=int, metavar="N", help="evaluate on the first N test samples (all)")
    enter.add_argument("--ledger", metavar="DIR", help="folder of the ledger (RUN/ledger)")
    parser.set_defaults(command=_reward)


def _reward(args: argparse.Namespace) -> None:
    from cascadice.applications.reward.idea import check_terms, pay
    from cascadice.applications.reward.ledger import CHAIN, by_round, check_free, read_ledger
    from cascadice.applications.reward.picture import plot

    _check_kind(args)
    recording = open_from(args)
    check_terms(recording.network.nodes, args.budget, args.floor, args.clawback, args.payout)
    folder, note = Path(args.ledger or recording.folder / "ledger"), _note(args, recording)
    if not (folder / CHAIN).exists():
        check_free(folder)
        ledger = None
    else:
        ledger = read_ledger(folder, note)
    writer = open_writer(args, recording, "reward")
    _enter_missing(writer, ledger, folder, note, args)
    ledger = read_ledger(folder, note)
    payout = pay(by_round(ledger), args.budget, floor=args.floor, clawback=args.clawback, rule=args.payout)
    results = _results(writer, ledger, payout, args)
    writer.write(results, plot)
    writer.print(results["findings"])
    writer.print([f"{', '.join(writer.files)} in {writer.folder}; the ledger in {ledger.folder}"])


def _check_kind(args: argparse.Namespace) -> None:
    from cascadice.applications.reward.contributions import CONTRIBUTIONS
    from cascadice.names import lookup

    lookup(CONTRIBUTIONS, args.kind, "kind")
    for name in ("hops", "every", "eval_samples"):
        flag, value = f"--{name.replace('_', '-')}", getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{flag} must be at least 1; found {value}.")
        if value is not None and args.kind == "horizon" and name != "eval_samples":
            raise ValueError(f"{flag} is for shares; horizon follows every round to the end. Leave it out.")


def _note(args: argparse.Namespace, recording: "Recording") -> dict[str, str]:
    """What the ledger is of. Effects on the final models are other numbers once the run has been continued."""
    available, asked = len(recording.network.data.test), args.eval_samples
    if (asked or 0) > available:
        raise ValueError(f"--eval-samples must be at most {available}, the number of test samples; found {asked}.")
    hops = args.hops or HOPS
    shares, horizon = f"{hops} hop{'s' * (hops > 1)}", f"to the end of round {recording.round_numbers[-1]}"
    return {
        "run": recording.fingerprint,
        "kind": f"{args.kind}, {shares if args.kind == 'shares' else horizon}",
        "samples": str(args.samples).lower(),
        "eval-samples": "all" if asked is None else str(asked),
    }


def _enter_missing(
    writer: Writer, ledger: "Ledger | None", folder: Path, note: dict[str, str], args: argparse.Namespace
) -> None:
    """Enter the rounds that the ledger lacks, and those whose parts are damaged."""
    from cascadice.applications.reward.ledger import enter
    from cascadice.runs.progress import track

    entered = set(ledger.rounds) if ledger else set()
    writer.print(f"{problem}: entering it again" for problem in (ledger.problems.values() if ledger else ()))
    entries, total = _missing_entries(writer.recording, entered, args)
    if total:
        try:
            shown = track(entries, total, writer.console, "entering rounds", lambda e: f"entered round {e.round}")
            enter(folder, note, shown)
        except KeyboardInterrupt:
            text = "stopped. Rounds entered so far are kept; the same command continues."
            raise KeyboardInterrupt(text) from None


def _missing_entries(recording: "Recording", entered: set[int], args: Any) -> tuple[Iterator["Entry"], int]:
    """The entries that the ledger lacks, and their number."""
    import torch

    from cascadice.applications.reward.contributions import by_horizon, by_shares
    from cascadice.influence import evaluate_on
    from cascadice.runs.ask import Question, start_rounds

    network = recording.network
    index = torch.arange(args.eval_samples or len(network.data.test))
    evaluation = evaluate_on(network, network.data.test.subset(index))
    if args.kind == "horizon":
        span = recording.consecutive_rounds()
        entries = by_horizon(network, recording.load_rounds(span[::-1]), evaluation, samples=args.samples)
        return (entry for entry in entries if entry.round not in entered), len(set(span) - entered)
    question = Question(("shares",), hops=args.hops or HOPS, every=args.every or 1)
    starts = start_rounds(recording.round_numbers, question, recording.folder)
    missing = [t for t in starts if t not in entered]
    windows = recording.windows(missing, question.hops)
    return (by_shares(network, window, evaluation, samples=args.samples) for window in windows), len(missing)


def _results(writer: Writer, ledger: "Ledger", payout: "Payout", args: argparse.Namespace) -> dict[str, Any]:
    """The content of reward.json."""
    from cascadice.applications.reward.ledger import by_round, totals
    from cascadice.runs.summary import injected_faults

    injected = injected_faults(writer.recording.network)
    order = payout.payment.argsort(descending=True, stable=True).tolist()
    rows = [[k, *(round(float(column[k]), 6) for column in payout), injected.get(k, "")] for k in order]
    title = f"{args.budget:g} shared among {writer.recording.network.nodes} participants"
    results = {
        **writer.header(title, _sentences(writer, ledger, payout, injected, args), COLUMNS, rows),
        **{name: getattr(args, name) for name in ("budget", "floor", "clawback", "payout")},
        "ledger": str(ledger.folder),
        "note": ledger.note,
        "seal": ledger.seal,
        "rounds": ledger.rounds,
        "payments": payout.payment.tolist(),
        "contributions": by_round(ledger).tolist(),
    }
    if args.samples:
        results["samples"] = {name: column.tolist() for name, column in totals(ledger, "participant", "sample").items()}
    return results


def _sentences(
    writer: Writer, ledger: "Ledger", payout: "Payout", injected: dict[int, str], args: argparse.Namespace
) -> list[str]:
    """Who is paid what, and why."""
    from cascadice.applications.reward.idea import PAYOUT_RULES

    def names(nodes: list[int]) -> str:
        return ", ".join(f"participant {k}" + (f" ({injected[k]})" if k in injected else "") for k in nodes)

    nodes, rounds = range(len(payout.payment)), ledger.rounds
    span = f"{len(rounds)} rounds, {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    best, least = int(payout.payment.argmax()), float(payout.payment.min())
    unpaid = [k for k in nodes if payout.credit[k] <= 0]
    idle = [k for k in unpaid if payout.earned[k] == 0 == payout.lost[k]]
    return [
        f"{args.budget:g} is shared among {len(nodes)} participants, {PAYOUT_RULES[args.payout].description}.",
        f"Credit is how much a participant's updates lowered the loss, less the harm they did ({ledger.note['kind']}; "
        f"{span}).",
        f"Highest payment: {payout.payment[best]:.2f}, to {names([best])}.",
        *([f"Paid {least:.2f} each, because they did not help on balance: {names(unpaid)}."] if unpaid else []),
        *([f"Neither helped nor harmed: {names(idle)}."] if idle else []),
        *([f"Mean {quality}."] if (quality := writer.recording.final_test_metrics()) else []),
        f"Ledger seal: {ledger.seal[:16]}… (in full in reward.json). A copy kept elsewhere reveals removed entries.",
    ]
