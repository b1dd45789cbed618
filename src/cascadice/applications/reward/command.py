"""`cascadice reward`: what everybody contributed to a recorded run goes into a ledger, and a budget is shared out."""

import argparse
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascadice.applications import over_runs

if TYPE_CHECKING:
    from rich.console import Console

    from cascadice.applications.reward.idea import Payout
    from cascadice.applications.reward.ledger import Entry, Ledger
    from cascadice.engine import Round
    from cascadice.runs.recordings import Recording

MADE = ["reward.json", "reward.png"]
KINDS = ("shares", "horizon")
HOPS = 4
LINES = 10  # of progress where no bar can be drawn


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "reward")
    parser.add_argument("--budget", type=float, metavar="X", required=True, help="what is to be shared out")
    parser.add_argument(
        "--floor", type=float, default=0.0, metavar="X", help="what everybody gets, before the rest is shared out [0]"
    )
    parser.add_argument("--clawback", type=float, default=1.0, metavar="X", help="how much harm costs of help [1]")
    parser.add_argument(
        "--kind", default="shares", metavar="KIND",
        help="shares of what each round achieved, or horizon: effect on the final models [shares]",
    )  # fmt: skip
    parser.add_argument("--hops", type=int, metavar="N", help="of shares: how many rounds on to follow an update [4]")
    parser.add_argument(
        "--every", type=int, metavar="N", help="of shares: enter every N-th round; all in the ledger count [1]"
    )
    parser.add_argument("--samples", action="store_true", help="enter every training sample too")
    parser.add_argument("--eval-samples", type=int, metavar="N", help="judge on the first N test samples (all)")
    parser.add_argument("--ledger", metavar="DIR", help="folder of the ledger (RUN/ledger)")
    parser.set_defaults(command=_reward)


def _reward(args: argparse.Namespace) -> None:
    from rich.console import Console

    from cascadice.applications.reward.idea import check_terms, pay
    from cascadice.applications.reward.ledger import CHAIN, by_round, check_free, read_ledger

    _check_kind(args)
    recording = over_runs.opened(args)
    check_terms(recording.network.nodes, args.budget, args.floor, args.clawback)
    folder, note = Path(args.ledger or recording.folder / "ledger"), _note(args, recording)
    there = read_ledger(folder, note) if (folder / CHAIN).exists() else None
    if there is None:
        check_free(folder)
    place = over_runs.place(args, "reward", MADE)
    console = Console(quiet=args.quiet)
    _extend(console, recording, there, folder, note, args)
    ledger = read_ledger(folder, note)
    payout = pay(by_round(ledger), args.budget, floor=args.floor, clawback=args.clawback)
    _conclude(console, recording, ledger, payout, place, args)


def _check_kind(args: argparse.Namespace) -> None:
    from cascadice.names import lookup

    lookup(dict.fromkeys(KINDS), args.kind, "kind")
    for name in ("hops", "every", "eval_samples"):
        flag, value = f"--{name.replace('_', '-')}", getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{flag} must be at least 1; found {value}.")
        if value is not None and args.kind == "horizon" and name != "eval_samples":
            raise ValueError(f"{flag} is for shares; the horizon enters every round, to the end. Leave it out.")


def _note(args: argparse.Namespace, recording: "Recording") -> dict[str, str]:
    """What the ledger is of. What helped the final models is another thing when the run has gone on."""
    there, asked = len(recording.network.data.test), args.eval_samples
    if (asked or 0) > there:
        raise ValueError(f"--eval-samples must be at most {there}, the number there is; found {asked}.")
    reach = _hops(args.hops or HOPS) if args.kind == "shares" else f"to the end of round {recording.recorded[-1]}"
    judged = "all" if asked is None else str(asked)
    return {
        "run": recording.fingerprint,
        "kind": f"{args.kind}, {reach}",
        "samples": str(args.samples).lower(),
        "eval-samples": judged,
    }


def _hops(count: int) -> str:
    return f"{count} hop{'s' * (count > 1)}"


def _extend(
    console: "Console", recording: "Recording", there: "Ledger | None", folder: Path, note: dict[str, str], args: Any
) -> None:
    """Enter the rounds that are not in the ledger that is there, or no longer whole."""
    from cascadice.applications.reward.ledger import enter

    for problem in there.problems.values() if there else ():
        console.print(f"{problem}: entered again", highlight=False, soft_wrap=True, markup=False)
    entries, total = _missing(recording, set(there.rounds) if there else set(), args)
    if total:
        try:
            enter(folder, note, _shown(entries, total, console))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped. What was entered stands; the same command goes on.") from None


def _missing(recording: "Recording", whole: set[int], args: Any) -> tuple[Iterator["Entry"], int]:
    """The entries that the ledger lacks, and how many they are."""
    import torch

    from cascadice.applications.reward.contributions import by_horizon, by_shares
    from cascadice.influence import evaluate_on
    from cascadice.runs.inquiry import starts
    from cascadice.runs.questions import Question

    network = recording.network
    index = torch.arange(args.eval_samples or len(network.data.test))
    judged = evaluate_on(network, network.data.test.subset(index))
    if args.kind == "horizon":
        span = recording.in_a_row()
        every = by_horizon(network, recording.rounds(span[::-1]), judged, samples=args.samples)
        return (entry for entry in every if entry.round not in whole), len(set(span) - whole)
    question = Question(("shares",), hops=args.hops or HOPS, every=args.every or 1)
    missing = [t for t in starts(recording.recorded, question, recording.folder) if t not in whole]
    windows = _windows(recording, missing, question.hops)
    return (by_shares(network, window, judged, samples=args.samples) for window in windows), len(missing)


def _windows(recording: "Recording", starts: list[int], hops: int) -> "Iterator[list[Round]]":
    """The rounds from each of these starts, read from disk once."""
    from cascadice.runs.inquiry import stretches

    for stretch in stretches(starts, hops):
        window: deque[Round] = deque(maxlen=hops)
        for done in recording.rounds(stretch):
            window.append(done)
            if len(window) == hops and window[0].t in starts:
                yield list(window)


def _shown(entries: Iterable["Entry"], total: int, console: "Console") -> Iterator["Entry"]:
    """Progress: a bar; where there is no terminal, a plain line now and then."""
    if console.is_terminal:
        from rich.progress import track

        yield from track(entries, "entering rounds", total=total, console=console, transient=True)
        return
    for count, entry in enumerate(entries, start=1):
        yield entry
        if count % max(1, -(-total // LINES)) == 0 or count == total:
            console.print(f"entered round {entry.round}, {count}/{total}", highlight=False)


def _conclude(
    console: "Console", recording: "Recording", ledger: "Ledger", payout: "Payout", place: Path, args: Any
) -> None:
    """Write, draw and tell who is paid what."""
    import cascadice
    from cascadice import files
    from cascadice.applications.reward.ledger import by_round, totals
    from cascadice.applications.reward.picture import draw, sentences, table
    from cascadice.runs.summary import wrongs

    known = wrongs(recording.network)
    title = f"{args.budget:g} shared out among {recording.network.nodes} participants"
    told = sentences(payout, ledger, args.budget, known, _accuracy(recording.folder))
    found = {
        "command": "reward", "version": cascadice.__version__, "run": recording.fingerprint, "title": title,
        "findings": told, "table": table(payout, known), "figure": "reward.png",
        "budget": args.budget, "floor": args.floor, "clawback": args.clawback, "ledger": str(ledger.folder),
        "note": ledger.note, "seal": ledger.seal, "rounds": ledger.rounds, "payments": payout.payment.tolist(),
        "contributions": by_round(ledger).tolist(),
    }  # fmt: skip
    if args.samples:
        found["samples"] = {name: column.tolist() for name, column in totals(ledger, "participant", "sample").items()}
    files.write_json(place / "reward.json", found)
    draw(payout, by_round(ledger), ledger.rounds, place / "reward.png", known=known, title=title)
    for line in [*told, f"reward.json and reward.png in {place}; the ledger in {ledger.folder}"]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _accuracy(run: Path) -> str:
    """How good the network was in the end, as the run measured it."""
    from cascadice.runs import store

    judged = [m for m in store.read_metrics(run) if m.test is not None] if (run / store.METRICS).exists() else []
    if not judged or judged[-1].test is None:
        return ""
    loss, accuracy = (float(part.mean()) for part in judged[-1].test)
    last = f"test loss {loss:.3f}" if accuracy != accuracy else f"test accuracy {accuracy:.3f}"
    return f"{last} after round {judged[-1].t}"
