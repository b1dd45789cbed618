"""What `cascadice reward` computes, writes and says."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascadice.applications.charts import interval_text
from cascadice.applications.in_step import run_in_step
from cascadice.applications.plain import Json, plain
from cascadice.applications.reward.audit import AGAIN, audit
from cascadice.applications.reward.charts import charts
from cascadice.applications.reward.contributions import CONTRIBUTIONS, Entry, by_horizon, by_shares, entries_of
from cascadice.applications.reward.ledger import Ledger, by_round, check_free, enter, ledger_note, read_ledger, totals
from cascadice.applications.reward.payouts import Payout, Terms, check_terms, credit_bounds, pay, payment_bounds
from cascadice.applications.reward.seals import TERMS_SEAL, check_sealed, read_key, signature, terms_signature
from cascadice.applications.reward.sentences import check_gap, everybody, length, sentences
from cascadice.applications.writer import SIGN_RULE, Section, Writer, open_writer
from cascadice.console import track
from cascadice.engine import Network
from cascadice.engine.exchange.messages import Messages
from cascadice.influence.uncertainty import Bounds
from cascadice.influence.whole_run_shares import POINTS
from cascadice.names import lookup
from cascadice.runs import together
from cascadice.runs.ask import start_rounds
from cascadice.runs.eval_samples import check_eval_samples, evaluate_on_first
from cascadice.runs.flags import open_from
from cascadice.runs.folder import CHAIN
from cascadice.runs.playing import Playable, playable
from cascadice.runs.processes import World
from cascadice.runs.question import Question
from cascadice.runs.recording import Recording
from cascadice.runs.summary import injected_faults
from cascadice.runs.sweeps import SHARES, Swept, remove_sweeps, sweep_run

HOPS = 4
WHOLE_RUN = "whole-run-shares"
FLAGS = {"points": WHOLE_RUN, "hops": "shares", "every": "shares"}  # the kind of contribution that each is for
SHOWN = 10  # payments on the console
COLUMNS = ("participant", "payment", "95 % interval", "credit", "helped by", "harmed by", "injected")
SECTION = Section(
    "What should each participant be paid?",
    "cascadice reward {run} --budget 1000",
    "Payments share out the budget, in its unit, by credit. Helped by and harmed by: how much a participant's updates "
    "lowered and raised the loss on the test data, summed over the rounds in the ledger. Credit: the help less the "
    "part of the harm that is charged (--clawback), so positive credit = negative influence = it helped. The 95 % "
    "interval of a payment comes from how much everybody's credit varies between rounds; payments whose intervals "
    "overlap are not clearly different.",
    audit,
    charts=charts,
    everybody=everybody,
    kept=("contributions", "samples"),
    length=length,
    again=AGAIN,
)


def run(args: argparse.Namespace) -> None:
    """Enter what the ledger lacks and pay, as the flags ask."""
    run_in_step(args, "reward", _run)


def _run(args: argparse.Namespace, world: World) -> None:
    """Of several processes, each enters what its own participants contributed, and pays them."""
    folder = together.places(world, args.run, args.ledger, "ledger")[1]
    begun = (folder / CHAIN).exists()
    args.kind = args.kind or (ledger_note(folder)["kind"].partition(",")[0] if begun else WHOLE_RUN)
    _check_kind(args)
    together.agree(world, "reward", {"--kind": args.kind}, args.overwrite)
    recording = open_from(args, world, recorded=args.kind != WHOLE_RUN)
    check_terms(recording.network.whole, args.budget, args.floor, args.clawback, args.payout)
    note = _note(args, recording)
    if not begun:
        check_free(folder)
    key, ledger = read_key(args.seal, recording.folder, folder), read_ledger(folder, note) if begun else None
    if ledger is not None:
        check_sealed(ledger, key)
    writer = open_writer(args, recording, "reward")
    with world.exchange(recording.network) as exchange:
        played = together.in_step(world, playable(recording)) if args.kind == WHOLE_RUN else None
        among = Among(world, exchange, None if played is None else replace(played, exchange=exchange))
        sign = None if key is None else partial(signature, key)
        swept = _enter_missing(writer, ledger, folder, note, args, among, sign)
        ledger = read_ledger(folder, note)
        measured = _training(ledger, swept, args, among)
        results = _results(writer, ledger, _paid(ledger, args, among, recording.network), measured, args, among)
    written = plain(results)
    written |= {} if key is None else {TERMS_SEAL: terms_signature(key, written)}
    of_all = writer.write(written, SECTION, world)
    _print_payments(writer, of_all["table"]["rows"], world)
    writer.print_files(f"; the ledger in {ledger.folder}")


class Among(NamedTuple):
    """With whom contributions are computed: other processes, by messages, if there are any; and the run to play."""

    world: World
    exchange: Messages | None
    played: Playable | None


class Paid(NamedTuple):
    """What participants in the ledger are paid, how sure that is, and the weight of those whom other processes pay."""

    payout: Payout
    payments: Bounds
    credit: Bounds
    others_weight: float


def _paid(ledger: Ledger, args: argparse.Namespace, among: Among, network: Network) -> Paid:
    terms = Terms(
        args.budget, args.floor, args.clawback, args.payout, others=network.whole - network.nodes,
        total=lambda own: among.world.total(*own),
    )  # fmt: skip
    contributed = by_round(ledger)
    payout, payments = pay(contributed, **terms._asdict()), payment_bounds(contributed, terms)
    _, weights, everybody = terms.weigh(payout.credit)
    return Paid(payout, payments, credit_bounds(contributed, args.clawback), float(everybody - weights.sum()))


def _check_kind(args: argparse.Namespace) -> None:
    lookup(CONTRIBUTIONS, args.kind, "kind")
    for name in (*FLAGS, "eval_samples"):
        flag, value, kind = f"--{name.replace('_', '-')}", getattr(args, name), FLAGS.get(name, args.kind)
        if value is not None and value < 1:
            raise ValueError(f"{flag} must be at least 1; found {value}.")
        if value is not None and args.kind != kind:
            raise ValueError(f"{flag} is for {kind}; contributions are scored by {args.kind}. Use --kind {kind}.")


def _note(args: argparse.Namespace, recording: Recording) -> dict[str, str]:
    """What the ledger is of. Effects on the final models are other numbers once the run has been continued."""
    check_eval_samples(args.eval_samples, recording.network)
    hops, points = args.hops or HOPS, args.points or POINTS
    last = playable(recording).rounds - 1 if args.kind == WHOLE_RUN else recording.round_numbers[-1]
    end = f"to the end of round {last}"
    kinds = {
        WHOLE_RUN: f"{points} point{'s' * (points > 1)}, {end}",
        "shares": f"{hops} hop{'s' * (hops > 1)}",
        "horizon": end,
    }
    return {
        "run": recording.fingerprint,
        "kind": f"{args.kind}, {kinds[args.kind]}",
        "samples": str(args.samples).lower(),
        "eval-samples": "all" if args.eval_samples is None else str(args.eval_samples),
    }


def _enter_missing(
    writer: Writer, ledger: Ledger | None, folder: Path, note: Mapping[str, str], args: argparse.Namespace,
    among: Among, sign: Callable[[str], str] | None = None,
) -> Swept | None:  # fmt: skip
    """Enter the rounds that the ledger lacks, and those whose parts are damaged. Whole runs are swept for it."""
    writer.print(*(f"{problem}: entering it again" for problem in (ledger.problems.values() if ledger else ())))
    entered, swept = set(among.world.common(ledger.rounds if ledger else ())), None
    try:
        if args.kind == WHOLE_RUN:
            entries, total, swept = _of_the_whole_run(writer, entered, args, among)
        else:
            entries, total = _of_rounds(writer.recording, entered, args, among)
        if total:
            shown = track(entries, total, writer.console, "entering rounds", lambda e: f"entered round {e.round}")
            enter(folder, note, shown, sign)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. What was computed so far is kept; the same command continues.") from None
    remove_sweeps(writer.folder)
    return swept


def _of_the_whole_run(
    writer: Writer, entered: set[int], args: argparse.Namespace, among: Among
) -> tuple[Iterable[Entry], int, Swept | None]:
    """The entries that the ledger lacks, and their number; the run is swept if there are any."""
    run = among.played
    assert run is not None
    missing = set(range(run.rounds)) - entered
    if not missing:
        return [], 0, None
    points = args.points or POINTS
    question = Question((WHOLE_RUN,), points=points, samples=args.samples, eval_samples=args.eval_samples)
    swept = sweep_run(run, question, writer.folder, writer.console)
    shares = swept.scores[SHARES]
    check_gap(**_measured(swept.losses, float(shares.by_round.sum()), args, among), begun=bool(entered))
    entries = entries_of(shares, args.samples, run.network.members)
    return (entry for entry in entries if entry.round in missing), len(missing), swept


def _measured(losses: Sequence[float], shares: float, args: argparse.Namespace, among: Among) -> Json:
    """What training did to the loss, and how far all shares, of which these are the sum here, are from it."""
    untrained, trained = losses
    (entered,) = among.world.total(shares)
    gap = entered - trained + untrained
    return {"untrained": untrained, "trained": trained, "gap": gap, "points": args.points or POINTS}


def _training(ledger: Ledger, swept: Swept | None, args: argparse.Namespace, among: Among) -> Json:
    """What training did as a whole, where the ledger shares that out."""
    if (run := among.played) is None:
        return {}
    losses = swept.losses if swept else run.before_and_after(run.evaluation(args.eval_samples))
    measured = _measured(losses, float(by_round(ledger).sum()), args, among)
    check_gap(**measured, begun=True)
    return measured


def _of_rounds(
    recording: Recording, entered: set[int], args: argparse.Namespace, among: Among
) -> tuple[Iterable[Entry], int]:
    """The entries that the ledger lacks, and their number."""
    network = recording.network
    evaluation = evaluate_on_first(args.eval_samples, network)
    if args.kind == "horizon":
        span = recording.consecutive_rounds()
        backwards = recording.load_rounds(span[::-1])
        entries = by_horizon(network, backwards, evaluation, samples=args.samples, exchange=among.exchange)
        return (entry for entry in entries if entry.round not in entered), len(set(span) - entered)
    question = Question(("shares",), hops=args.hops or HOPS, every=args.every or 1)
    starts = start_rounds(recording.round_numbers, question, recording.folder)
    missing = [t for t in starts if t not in entered]
    windows = recording.windows(missing, question.hops)
    how: dict[str, Any] = {"samples": args.samples, "exchange": among.exchange}
    return (by_shares(network, window, evaluation, **how) for window in windows), len(missing)


def _results(
    writer: Writer, ledger: Ledger, paid: Paid, measured: Json, args: argparse.Namespace, among: Among
) -> Json:
    network, payout = writer.recording.network, paid.payout
    injected, numbers = injected_faults(network), network.members or tuple(range(network.nodes))
    order = payout.payment.argsort(descending=True, stable=True).tolist()
    parts = {k: [round(float(column[k]), 6) for column in payout] for k in order}
    rows = [
        [numbers[k], pay, interval_text(paid.payments, k, 2), *why, injected.get(numbers[k], "")]
        for k, (pay, *why) in parts.items()
    ]
    title = f"{args.budget:g} shared among {network.whole} participants"
    results = {
        **writer.header(title, [], COLUMNS, rows),
        **{name: getattr(args, name) for name in ("budget", "floor", "clawback", "payout")},
        "ledger": str(ledger.folder),
        "note": ledger.note,
        "seal": ledger.seal,
        "rounds": ledger.rounds,
        "sign": f"Contributions: {SIGN_RULE} Credit: how much the loss fell, so positive credit = it helped.",
        **dict(zip(("payments", "credit", "earned", "lost"), (column.tolist() for column in payout), strict=True)),
        "intervals": {name: np.stack(getattr(paid, name), 1).tolist() for name in ("payments", "credit")},
        **(_elsewhere(network, paid.others_weight) if network.members else {}),
        "contributions": by_round(ledger).tolist(),
        **measured,
        "tested": writer.recording.final_test_metrics(among.world),
    }
    results["findings"] = sentences(results)
    if args.samples:
        results["samples"] = {name: column.tolist() for name, column in totals(ledger, "participant", "sample").items()}
    return results


def _elsewhere(network: Network, weight: float) -> Json:
    """Of one process among several: whom it pays, how many the others pay, and the sum of their weights."""
    return {"members": list(network.members), "others": network.whole - network.nodes, "others_weight": weight}


def _print_payments(writer: Writer, rows: Sequence[Sequence[Any]], world: World) -> None:
    """Print the highest payments, and where the others are."""
    shown = [
        [node, f"{pay:.2f}", interval or "none", f"{credit:.4f}", fault]
        for node, pay, interval, credit, _, _, fault in rows
    ]
    writer.print_table([*COLUMNS[:4], COLUMNS[-1]], shown[:SHOWN], right=3)
    if len(rows) > SHOWN:
        where = writer.folder / "reward.json" if world.alone else "reward.json of all processes"
        writer.print(f"{len(rows) - SHOWN} more, who are paid less, in {where}")
