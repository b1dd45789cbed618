"""What `cascadice reward` computes, writes and says."""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cascadice.applications.charts import interval_text
from cascadice.applications.plain import Json
from cascadice.applications.reward.audit import REDO, audit, check_weights
from cascadice.applications.reward.charts import charts
from cascadice.applications.reward.contributions import CONTRIBUTIONS
from cascadice.applications.reward.entering import WHOLE_RUN_SHARES, Job, enter_missing, training_effect
from cascadice.applications.reward.ledger import Ledger, by_round, check_free, ledger_note, read_ledger, totals
from cascadice.applications.reward.payouts import PAYOUT_RULES, Terms, check_terms, credit_bounds, pay, payment_bounds
from cascadice.applications.reward.seals import TERMS_SEAL, check_sealed, read_key, signature, terms_signature
from cascadice.applications.writer import SIGN_RULE, Section, check_same, concatenate, open_writer, run_in_processes
from cascadice.engine.parts import numbered
from cascadice.influence.quadrature import more_points
from cascadice.influence.uncertainty import Bounds, overlapping
from cascadice.influence.whole_run_shares import POINTS
from cascadice.names import lookup
from cascadice.runs.distributed import together
from cascadice.runs.distributed.processes import World
from cascadice.runs.flags import open_from
from cascadice.runs.folder import CHAIN
from cascadice.runs.question import check_eval_samples
from cascadice.runs.recording import Recording, playable
from cascadice.runs.summary import injected_faults
from cascadice.runs.words import sum_in_words

HOPS = 4
FLAGS = {"points": WHOLE_RUN_SHARES, "hops": "shares", "every": "shares"}  # the kind of contribution that each is for
SHOWN = 10  # payments on the console
COLUMNS = ("participant", "payment", "95 % interval", "credit", "helped by", "harmed by", "injected")


def merge(parts: Sequence[Json]) -> Json:
    """Merge the results of several processes, each of which paid its own participants."""
    if any(part.get("rounds") != parts[0].get("rounds") for part in parts):
        raise ValueError("the ledgers of these processes hold different rounds. Start a new ledger with --ledger.")
    check_same(parts, "run", "title", "budget", "floor", "clawback", "payout", "note")
    check_weights(parts)
    rows = sorted((row for part in parts for row in part["table"]["rows"]), key=lambda row: -row[1])
    merged = {
        **parts[0],
        "table": {**parts[0]["table"], "rows": rows},
        **concatenate(parts, "members", "payments", "credit", "earned", "lost"),
        "intervals": concatenate([part["intervals"] for part in parts], *parts[0]["intervals"]),
        "seal": [part["seal"] for part in parts],
    }
    merged["others"] = len(parts[0]["members"]) + parts[0]["others"] - len(merged["members"])
    if all("contributions" in part for part in parts):
        by_round = zip(*(part["contributions"] for part in parts), strict=True)
        merged["contributions"] = [[value for own in each for value in own] for each in by_round]
    return {**merged, "findings": [*sentences(merged)]}


def run_length(results: Json) -> int | None:
    """How many rounds the run had when payments for its final models were made; None if they are for other effects."""
    last = re.fullmatch(r"whole-run-shares, .*to the end of round (\d+)", results["note"]["kind"])
    return None if last is None else int(last[1]) + 1


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
    merge=merge,
    charts_only=("contributions", "samples"),
    run_length=run_length,
    redo=REDO,
)


def run(args: argparse.Namespace) -> None:
    """Run `cascadice reward` with these flags."""
    run_in_processes(args, "reward", _run)


def _run(args: argparse.Namespace, world: World) -> None:
    """Enter what the ledger lacks, and pay. Each of several processes does so for its own participants."""
    folder = together.places(world, args.run, args.ledger, "ledger")[1]
    begun = (folder / CHAIN).exists()
    args.kind = args.kind or (ledger_note(folder)["kind"].partition(",")[0] if begun else WHOLE_RUN_SHARES)
    _check_flags(args)
    args.points, args.hops, args.every = args.points or POINTS, args.hops or HOPS, args.every or 1
    together.agree(world, "reward", {"--kind": args.kind}, args.overwrite)
    recording = open_from(args, world, recorded=args.kind != WHOLE_RUN_SHARES)
    check_terms(recording.network.whole, args.budget, args.floor, args.clawback, args.payout)
    note = _note(args, recording)
    if not begun:
        check_free(folder)
    key, ledger = read_key(args.seal, recording.folder, folder), read_ledger(folder, note) if begun else None
    if ledger is not None:
        check_sealed(ledger, key)
    writer = open_writer(args, recording, "reward")
    with world.exchange(recording.network) as exchange:
        played = together.in_step(world, playable(recording)) if args.kind == WHOLE_RUN_SHARES else None
        job = Job(args, writer, world, exchange, None if played is None else replace(played, exchange=exchange))
        losses = enter_missing(job, ledger, folder, note, None if key is None else partial(signature, key))
        ledger = read_ledger(folder, note)
        results = _results(job, ledger, training_effect(job, ledger, losses))
    results |= {} if key is None else {TERMS_SEAL: terms_signature(key, results)}
    rows = [
        [node, f"{pay:.2f}", interval or "none", f"{credit:.4f}", fault]
        for node, pay, interval, credit, _, _, fault in writer.write(results, SECTION, world)["table"]["rows"]
    ]
    writer.print_table([*COLUMNS[:4], COLUMNS[-1]], rows[:SHOWN], right=3)
    if len(rows) > SHOWN:
        where = writer.folder / "reward.json" if world.alone else "reward.json of all processes"
        writer.print(f"{len(rows) - SHOWN} more, who are paid less, in {where}")
    writer.print_files(f"; the ledger in {ledger.folder}")


def _check_flags(args: argparse.Namespace) -> None:
    lookup(CONTRIBUTIONS, args.kind, "kind")
    for name in (*FLAGS, "eval_samples"):
        flag, value, kind = f"--{name.replace('_', '-')}", getattr(args, name), FLAGS.get(name, args.kind)
        if value is not None and value < 1:
            raise ValueError(f"{flag} must be at least 1; found {value}.")
        if value is not None and args.kind != kind:
            raise ValueError(f"{flag} is for {kind}; contributions are scored by {args.kind}. Use --kind {kind}.")


def _note(args: argparse.Namespace, recording: Recording) -> dict[str, str]:
    """What the ledger describes. Effects on the final models change when the run is continued, so they name its end."""
    check_eval_samples(args.eval_samples, recording.network)
    last = playable(recording).rounds - 1 if args.kind == WHOLE_RUN_SHARES else recording.round_numbers[-1]
    end = f"to the end of round {last}"
    kinds = {
        WHOLE_RUN_SHARES: f"{args.points} point{'s' * (args.points > 1)}, {end}",
        "shares": f"{args.hops} hop{'s' * (args.hops > 1)}",
        "horizon": end,
    }
    return {
        "run": recording.fingerprint,
        "kind": f"{args.kind}, {kinds[args.kind]}",
        "samples": str(args.samples).lower(),
        "eval-samples": "all" if args.eval_samples is None else str(args.eval_samples),
    }


def _results(job: Job, ledger: Ledger, effect: Json) -> Json:
    """Pay the participants in the ledger: what `reward.json` says about it."""
    args, writer, network = job.args, job.writer, job.writer.recording.network
    others, contributed = network.whole - network.nodes, by_round(ledger)
    terms = Terms(args.budget, args.floor, args.clawback, args.payout, others, lambda own: job.world.total(*own))
    payout, payments = pay(contributed, **terms._asdict()), payment_bounds(contributed, terms)
    _, weights, everybody = terms.weigh(payout.credit)
    injected, numbers = injected_faults(network), network.members or range(network.nodes)
    rows = []
    for k in payout.payment.argsort(descending=True, stable=True).tolist():
        paid, *why = (round(float(column[k]), 6) for column in payout)
        rows.append([numbers[k], paid, interval_text(payments, k, 2), *why, injected.get(numbers[k], "")])
    intervals = {"payments": payments, "credit": credit_bounds(contributed, args.clawback)}
    elsewhere = {"others": others, "others_weight": float(everybody - weights.sum())}
    results = {
        **writer.header(f"{args.budget:g} shared among {network.whole} participants", COLUMNS, rows),
        **{name: getattr(args, name) for name in ("budget", "floor", "clawback", "payout")},
        "ledger": str(ledger.folder),
        "note": ledger.note,
        "seal": ledger.seal,
        "rounds": ledger.rounds,
        "sign": f"Contributions: {SIGN_RULE} Credit: how much the loss fell, so positive credit = it helped.",
        **dict(zip(("payments", "credit", "earned", "lost"), (column.tolist() for column in payout), strict=True)),
        "intervals": {name: np.stack(bounds, 1).tolist() for name, bounds in intervals.items()},
        **writer.members(),
        **(elsewhere if network.members else {}),
        "contributions": contributed.tolist(),
        **effect,
        "tested": writer.recording.final_test_metrics(job.world),
    }
    if args.samples:
        results["samples"] = {name: column.tolist() for name, column in totals(ledger, "participant", "sample").items()}
    return {**results, "findings": [*sentences(results)]}


def sentences(results: Json) -> Iterator[str]:
    """Who is paid what, and why, from `reward.json`; of several processes, `seal` is a list."""

    def names(nodes: list[int]) -> str:
        each = (numbers[k] for k in nodes)
        return ", ".join(f"participant {k}" + (f" ({injected[k]})" if k in injected else "") for k in each)

    payment, credit, earned, lost = (np.array(results[name]) for name in ("payments", "credit", "earned", "lost"))
    ends = results["intervals"]
    of_payments, of_credit = (Bounds(*np.array(ends[name], dtype=float).T) for name in ("payments", "credit"))
    nodes, rounds, others, seal = range(len(payment)), results["rounds"], results.get("others", 0), results["seal"]
    numbers = results.get("members") or tuple(nodes)
    injected = {row[0]: row[-1] for row in results["table"]["rows"] if row[-1]}
    about = f" This is about {numbered(numbers)}." if others else ""
    rule = PAYOUT_RULES[results["payout"]].description
    yield f"{results['budget']:g} is shared among {len(nodes) + others} participants, {rule}.{about}"
    span = f"{len(rounds)} rounds, {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    yield (
        "Credit is how much a participant's updates lowered the loss, less the harm they did: credit is positive where "
        f"influence, the change of the loss, is negative ({results['note']['kind']}; {span})."
    )
    if "gap" in results:
        yield _effect_in_words(results)
    best, unpaid = int(payment.argmax()), [k for k in nodes if credit[k] <= 0]
    highest = f"Highest payment{' among them' * bool(others)}: {payment[best]:.2f}, to {names([best])}"
    yield f"{highest}{_overlapping(of_payments, best)}."
    if unpaid:
        because = " each, because their credit is" if len(unpaid) > 1 else ", because its credit is"
        yield f"Paid {payment.min():.2f}{because} not positive: {names(unpaid)}."
    idle = [k for k in unpaid if earned[k] == 0 == lost[k]]
    if unclear := [k for k in nodes if k not in idle and of_credit.low[k] <= 0 <= of_credit.high[k]]:
        yield f"Within noise (the 95 % interval of their credit includes 0): {names(unclear)}."
    if idle:
        yield f"Neither helped nor harmed: {names(idle)}."
    if results["tested"]:
        yield f"Mean {results['tested']}."
    sealed = f"Ledger seal: {seal[:16]}… (in full in reward.json)."
    if not isinstance(seal, str):
        sealed = f"Each of the {len(seal)} processes has a ledger of its own, with a seal in its reward.json."
    yield f"{sealed} A copy kept elsewhere reveals removed entries."


def _effect_in_words(results: Json) -> str:
    """What training did to the final models, and what the shares in it sum to."""
    untrained, trained, points = results["untrained"], results["trained"], results.get("points", POINTS)
    more = f"Use more points, in a new ledger: --points {more_points(points)} --ledger DIR --overwrite"
    sums = sum_in_words(trained - untrained + results["gap"], trained - untrained, more)
    took = f"Training took the mean loss of the final models from {untrained:.4f} to {trained:.4f}"
    return f"{took}. {sums[0].upper()}{sums[1:]}."


def _overlapping(payments: Bounds, best: int) -> str:
    """With how many others the highest payment may change places; with one round, that this is unknown."""
    if len(payments.low) < 2:
        return ""
    if np.isnan(payments.low[best]):
        return "; with one round there are no intervals, so the order of payments may be noise"
    if others := overlapping(payments, best):
        return f"; its 95 % interval overlaps with {f'those of {others} others' if others > 1 else 'that of another'}"
    return "; its 95 % interval overlaps with no other"
