"""What `cascadice detect` computes, writes and says."""

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cascadice.applications.detect import picture
from cascadice.applications.detect.between import receive
from cascadice.applications.detect.charts import charts
from cascadice.applications.detect.evidence import ALLOWANCE
from cascadice.applications.detect.idea import MAJORITY, Verdict, check, detect, votes
from cascadice.applications.detect.signals import SIGNALS, Received
from cascadice.applications.in_step import run_in_step
from cascadice.applications.plain import Json, plain
from cascadice.applications.writer import Section, Writer, comma_separated, open_writer
from cascadice.engine import Evaluation, Network, evaluate_on
from cascadice.influence import own_data
from cascadice.runs.flags import open_from
from cascadice.runs.processes import ONE_PROCESS, World
from cascadice.runs.summary import injected_faults

SAMPLES = 128  # to evaluate on in a round, where participants hold as many
HONEST = (
    "Honest participants can stand out too, with very different data or much smaller batches; --unlike allows for more."
)
COLUMNS = ("participant", "flagged by", "heard by", "since round", "injected", "because")
SECTION = Section(
    "Who behaves unlike the others?",
    "cascadice detect {run}",
    "Each participant compares the updates it receives from its neighbours and flags those that stand out. Those "
    "flagged by at least half of their receivers are marked in the network. Rounds count from 0.",
    charts=charts,
)


def run(args: argparse.Namespace) -> None:
    """Detect as the flags ask."""
    check(args.rate, args.allowance, args.memory)
    run_in_step(args, "detect", _run)


def _run(args: argparse.Namespace, world: World) -> None:
    if not world.alone and args.allowance is None:
        args.allowance = ALLOWANCE  # nobody can measure how all of them differ
    recording = open_from(args, world)
    network = recording.network
    evaluation, samples = own_samples(network, args.samples, world)
    writer = open_writer(args, recording, "detect")
    options = {"rate": args.rate, "allowance": args.allowance, "memory": args.memory, "samples": samples}
    options |= {"unlike": args.unlike}
    rounds = recording.load_rounds()
    with writer.console.doing("looking at what everyone heard"), world.exchange(network) as exchange:
        look: Any = Received if exchange is None else partial(receive, exchange=exchange)
        verdicts = detect(network, rounds, evaluation, **options, look=look)
        shares = [votes(verdict := each) for each in verdicts]
    results = _results(writer, verdict, torch.stack(shares).cpu(), options)
    writer.write(results, picture.plot)
    shown = [row[:-1] for row in results["table"]["rows"] if row[1] or row[4]]  # flagged or injected
    writer.print_table(COLUMNS[:-1], shown, right=3)
    writer.print_files()


def own_samples(network: Network, asked: int | None = None, world: World = ONE_PROCESS) -> tuple[Evaluation, int]:
    """An evaluation on samples of each participant's own, and how many of these to use in a round, in turn."""
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # without one, own_data refuses
    least = min(world.tell(least))
    if asked is not None and not 1 <= asked <= least:
        raise ValueError(f"--samples must be in 1..{least}, the fewest that a participant holds; found {asked}.")
    evaluation = evaluate_on(network, own_data(network, min(least, 4 * SAMPLES)))
    return evaluation, min(asked or SAMPLES, least)


def _results(writer: Writer, verdict: Verdict, votes: Tensor, options: Json) -> Json:
    own = writer.recording.network.members
    injected = {} if own else injected_faults(writer.recording.network)  # no process knows those of others
    share = [-1.0 if math.isnan(vote) else vote for vote in votes[-1].tolist()]
    order = sorted(range(len(share)), key=lambda node: -share[node])
    suspects = [node for node in order if share[node] >= MAJORITY]
    rows = [_row(verdict, node, injected) for node in order]
    unknown = not options["unlike"] and set(suspects) - set(injected)
    judged = [
        *_suspicions(verdict, rows, suspects),
        *([HONEST] if unknown else []),
        *_injected(injected, suspects),
        _terms(len(votes), options, verdict, own),
    ]
    sentences = _sight(verdict, own or range(len(verdict.heard))) + (judged if bool(votes.isfinite().any()) else [])
    return {
        **writer.header("Who is unlike the others", sentences, COLUMNS, rows),
        **plain(options),
        "rounds": list(writer.recording.round_numbers),
        "votes": plain(votes.tolist()),
        **{name: getattr(verdict, name).tolist() for name in ("strength", "heard", "since")},
        "spread": dict(zip(SIGNALS, verdict.spread.tolist(), strict=True)),
        "deviation": dict(zip(SIGNALS, verdict.deviation.tolist(), strict=True)),
        "known": {str(node): kind for node, kind in injected.items()},
    }


def _row(verdict: Verdict, node: int, injected: Mapping[int, str]) -> list[Any]:
    flags, heard = verdict.flagged[node], int(verdict.heard[node].sum())
    since = min(verdict.since[node][flags].tolist(), default=None)
    reason = _reason(verdict, node, flags) if flags.any() else ""
    return [node, int(flags.sum()), heard, since, injected.get(node, ""), reason]


def _reason(verdict: Verdict, node: int, flags: Tensor) -> str:
    """What those that flag this participant notice: the clearest signal, and a second one if beyond its threshold."""
    deviation = verdict.deviation[:, node, flags]
    thresholds = deviation.abs().amax(0) / verdict.strength[node, flags]
    beyond = dict(zip(SIGNALS.values(), (deviation.mean(1) / thresholds.mean()).tolist(), strict=True))
    clearest, *others = sorted(beyond, key=lambda signal: -abs(beyond[signal]))
    named = [clearest, *(signal for signal in others[:1] if abs(beyond[signal]) > 1)]
    return ", and ".join(signal.above if beyond[signal] > 0 else signal.below for signal in named)


def _sight(verdict: Verdict, receivers: Sequence[int]) -> list[str]:
    """Who can tell at all, where not everyone can."""
    nodes = len(receivers)
    blind = [k for k in receivers if not verdict.able[:, k].any()]
    few = "fewer than three neighbours, too few to tell which one stands out"
    if len(blind) == nodes:
        return [f"No participant can judge: each has {few}. Use a topology with more neighbours."]
    have = f"{comma_separated(blind)} {'have' if len(blind) > 1 else 'has'}"
    return [f"Only {nodes - len(blind)} of {nodes} participants can judge: {have} {few}."] if blind else []


def _suspicions(verdict: Verdict, rows: Sequence[Sequence[Any]], suspects: Sequence[int]) -> list[str]:
    """Who is flagged by at least half of its receivers and why, and who by fewer."""
    able = verdict.able.sum(1).tolist()
    sentences = []
    for node, flags, heard, since, _, because in (row for row in rows if row[0] in suspects):
        who = f"its {able[node]} receivers{' that can judge' if able[node] < heard else ''}"
        sentences.append(f"Participant {node} is flagged by {flags} of {who}, first in round {since}: {because}.")
    if any(able) and not suspects:
        sentences.append("No participant is flagged by half of its receivers.")
    if few := [row[0] for row in rows if row[1] and row[0] not in suspects]:
        sentences.append(f"Flagged by fewer than half of their receivers: {comma_separated(few)}.")
    return sentences


def _injected(injected: Mapping[int, str], suspects: Sequence[int]) -> list[str]:
    """Which of the injected faults were found, where any were injected."""
    if not injected:
        return []
    names = ", ".join(f"{node} ({kind})" for node, kind in sorted(injected.items()))
    missed, wrong = sorted(set(injected) - set(suspects)), sorted(set(suspects) - set(injected))
    flagged = "All were flagged" if len(injected) > 1 else "It was flagged"
    flagged = f"Missed: {comma_separated(missed)}" if missed else flagged
    nobody = "no one was wrongly flagged" if missed else "no one else was"
    others = f"wrongly flagged: {comma_separated(wrong)}" if wrong else nobody
    return [f"Injected: {names}. {flagged}; {others}."]


def _terms(rounds: int, options: Json, verdict: Verdict, own: Sequence[int]) -> str:
    """On which terms participants were flagged: samples, rounds, and the false-alarm rate."""
    on = f"on {options['samples']} of its own samples in each of {rounds} rounds"
    rate = f"{100 * options['rate']:g} % per link and check"
    votes = "Votes are counted over all receivers; no participant alone can see them."
    if own:
        votes = f"Votes count the receivers of this process alone: {comma_separated(own)}."
    kept = _rate(rate, options, verdict, bool(own))
    return f"Each participant evaluated its neighbours' updates {on}. {kept} {votes}"


def _rate(rate: str, options: Json, verdict: Verdict, part: bool) -> str:
    """The false-alarm rate, and what was allowed for the lasting differences between honest participants.

    A process that judges for a `part` of them measures no allowance, and there is nothing to leave out.
    """
    spread, allowance = max(verdict.spread.tolist()), options["allowance"]
    if options["unlike"]:
        return f"False-alarm rate: about {rate}, by the spread of each receiver's own neighbours (--unlike)."
    differ = f"honest-looking participants' long-run scores differ by up to {spread:.2f}"
    if allowance is None and spread > ALLOWANCE:
        return f"False-alarm rate: about {rate}; {differ}, more than the usual {ALLOWANCE:g}, and that is allowed for."
    if allowance is None or spread <= allowance:
        allowed = ALLOWANCE if allowance is None else allowance
        return f"False-alarm rate: {rate}; {differ}, and {allowed:g} is allowed for."
    kept = "Use a larger --allowance, or --unlike" if part else "Leave out --allowance, or use --unlike"
    beyond = f"because {differ}, beyond the allowance of {allowance:g}"
    return f"False-alarm rate: more than {rate}, {beyond}. {kept}, to keep the rate."
