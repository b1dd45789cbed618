"""Compute the contributions that a ledger lacks, and enter them."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cascadice.applications.plain import Json
from cascadice.applications.reward.contributions import Entry, by_horizon, by_shares, entries_of
from cascadice.applications.reward.ledger import Ledger, by_round, enter
from cascadice.applications.writer import Writer, resumable
from cascadice.console import track
from cascadice.engine.exchange.messages import Messages
from cascadice.influence.quadrature import more_points
from cascadice.runs.ask import start_rounds
from cascadice.runs.distributed.processes import World
from cascadice.runs.question import Question, evaluate_on_first
from cascadice.runs.recording import Playable
from cascadice.runs.sweeps import SHARES, remove_sweeps, sweep_run
from cascadice.runs.words import ROUGH

WHOLE_RUN_SHARES = "whole-run-shares"


class Job(NamedTuple):
    """How contributions are computed: by which flags, on which run, and with which other processes.

    `run` is the run to play again, for whole-run shares; None for other contributions.
    """

    args: argparse.Namespace
    writer: Writer
    world: World
    exchange: Messages | None
    run: Playable | None


def enter_missing(
    job: Job, ledger: Ledger | None, folder: Path, note: Mapping[str, str], sign: Callable[[str], str] | None
) -> Sequence[float]:
    """Enter the rounds that the ledger lacks, and again those whose parts are damaged.

    Returns f(0) and f(1), the losses before and after training, if they had to be computed.
    """
    problems, there = ({}, []) if ledger is None else (ledger.problems, ledger.rounds)
    job.writer.print(*(f"{problem}: entering it again" for problem in problems.values()))
    losses: Sequence[float] = ()
    entered = set(job.world.common(there))
    with resumable():
        if job.run is None:
            entries, total = _of_rounds(job, entered)
        else:
            entries, total, losses = _of_whole_run(job, job.run, entered)
        if total:
            shown = track(entries, total, job.writer.console, "entering rounds", lambda e: f"entered round {e.round}")
            enter(folder, note, shown, sign)
    remove_sweeps(job.writer.folder)
    return losses


def _of_whole_run(job: Job, run: Playable, entered: set[int]) -> tuple[Iterable[Entry], int, Sequence[float]]:
    """The missing entries, their number, and f(0) and f(1); the run is swept if any are missing."""
    missing, args = set(range(run.rounds)) - entered, job.args
    if not missing:
        return [], 0, ()
    question = Question((WHOLE_RUN_SHARES,), points=args.points, samples=args.samples, eval_samples=args.eval_samples)
    swept = sweep_run(run, question, job.writer.folder, job.writer.console)
    shares = swept.scores[SHARES]
    _effect(job, swept.losses, float(shares.by_round.sum()), begun=bool(entered))
    entries = entries_of(shares, args.samples, run.network.members)
    return (entry for entry in entries if entry.round in missing), len(missing), swept.losses


def _of_rounds(job: Job, entered: set[int]) -> tuple[Iterable[Entry], int]:
    """The missing entries and their number."""
    recording, args = job.writer.recording, job.args
    network, how = recording.network, {"samples": args.samples, "exchange": job.exchange}
    evaluation = evaluate_on_first(args.eval_samples, network)
    if args.kind == "horizon":
        span = recording.consecutive_rounds()
        entries = by_horizon(network, recording.load_rounds(span[::-1]), evaluation, **how)
        return (entry for entry in entries if entry.round not in entered), len(set(span) - entered)
    question = Question(("shares",), hops=args.hops, every=args.every)
    starts = start_rounds(recording.round_numbers, question, recording.folder)
    missing = [t for t in starts if t not in entered]
    windows = recording.windows(missing, args.hops)
    return (by_shares(network, window, evaluation, **how) for window in windows), len(missing)


def training_effect(job: Job, ledger: Ledger, losses: Sequence[float]) -> Json:
    """What training did to the loss, and how far the contributions in the ledger are from it; for whole-run shares."""
    if job.run is None:
        return {}
    evaluation = evaluate_on_first(job.args.eval_samples, job.run.network)
    losses = losses or job.run.before_and_after(evaluation)
    return _effect(job, losses, float(by_round(ledger).sum()), begun=True)


def _effect(job: Job, losses: Sequence[float], own: float, begun: bool) -> Json:
    """The losses before and after training, and how far all shares miss the change; `own` sums those of this process.

    ValueError if they miss all of it. `begun`: they are in a ledger already, which takes no others.
    """
    (untrained, trained), (total,), points = losses, job.world.total(own), job.args.points
    change = trained - untrained
    if not abs(total - change) <= abs(change):  # NaN, too
        raise ValueError(
            f"contributions must sum to about what training did to the loss, {change:+.4f}, to pay by them; with "
            f"{points} point{'s' * (points > 1)} they sum to {total:+.4f}. Ask for more: --points {more_points(points)}"
            + " --ledger DIR" * begun
            + f". {ROUGH}."
        )
    return {"untrained": untrained, "trained": trained, "gap": total - trained + untrained, "points": points}
