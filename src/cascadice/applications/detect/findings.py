"""What `cascadice detect` computes, writes and says."""

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cascadice.applications.detect.charts import charts
from cascadice.applications.detect.evidence import ALLOWANCE
from cascadice.applications.detect.idea import MAJORITY, Verdict, check, detect, votes
from cascadice.applications.detect.signals import SIGNALS
from cascadice.applications.in_step import run_in_step
from cascadice.applications.neighbours import own_samples, receive
from cascadice.applications.plain import Json, plain
from cascadice.applications.writer import Section, Writer, agreed, comma_separated, open_writer
from cascadice.runs.flags import open_from
from cascadice.runs.processes import World
from cascadice.runs.summary import injected_faults

HONEST = (
    "Honest participants can stand out too, with very different data or much smaller batches; --unlike allows for more."
)
COLUMNS = ("participant", "flagged by", "heard by", "since round", "injected", "because")
MATRICES = ("strength", "heard", "since")  # by source and receiver


def everybody(parts: Sequence[Json]) -> Json:
    """What the receivers of all processes think, from what each of them wrote about its own.

    `spread` is the largest of any process: few links vary more than all of them together. Why a participant stands out
    is what the process with the most receivers that flag it says.
    """
    agreed(parts, "run", "rate", "allowance", "memory", "samples", "unlike", "rounds")
    able = np.array([part["able"] for part in parts])
    by_node = zip(*(sorted(part["table"]["rows"]) for part in parts), strict=True)
    rows = sorted(map(_row_of_all, by_node), key=lambda row: -row[1] / max(able[:, row[0]].sum(), 1))
    whole = {
        **{name: entry for name, entry in parts[0].items() if name != "deviation"},
        "table": {**parts[0]["table"], "rows": rows},
        "able": able.sum(0).tolist(),
        **{name: [k for part in parts for k in part[name]] for name in ("blind", "members")},
        "spread": {name: max(part["spread"][name] for part in parts) for name in parts[0]["spread"]},
        "known": {node: kind for part in parts for node, kind in part["known"].items()},
    }
    if all("votes" in part for part in parts):
        whole |= _pairs_of_all(parts, able)
    return {**whole, "findings": _sentences(whole)}


def _row_of_all(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """A participant's row, from those of all processes."""
    flags, heard = (sum(row[place] for row in rows) for place in (1, 2))
    since = min((row[3] for row in rows if row[3] is not None), default=None)
    injected, because = max(row[4] for row in rows), max(rows, key=lambda row: row[1])[5]
    return [rows[0][0], flags, heard, since, injected, because]


def _pairs_of_all(parts: Sequence[Json], able: NDArray[np.int64]) -> Json:
    """The votes of all receivers, round by round, and what each thinks of each source."""
    votes = np.array([part["votes"] for part in parts], dtype=float)
    known = np.where(np.isnan(votes), 0, able[:, None])  # how many can judge, if it is as many as in the end
    with np.errstate(invalid="ignore"):
        share = (np.nan_to_num(votes) * known).sum(0) / known.sum(0)
    matrices = {}
    for name in MATRICES:
        matrix = np.array(parts[0][name])
        for part in parts:
            matrix[:, part["members"]] = np.array(part[name])[:, part["members"]]
        matrices[name] = matrix.tolist()
    return {"votes": plain(share.tolist()), **matrices}


SECTION = Section(
    "Who behaves unlike the others?",
    "cascadice detect {run}",
    "Each participant compares the updates it receives from its neighbours and flags those that stand out. Those "
    "flagged by at least half of their receivers are marked in the network. Rounds count from 0.",
    charts=charts,
    everybody=everybody,
    kept=("votes", *MATRICES, "deviation"),
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
        verdicts = detect(network, rounds, evaluation, **options, look=partial(receive, exchange=exchange))
        shares = [votes(verdict := each) for each in verdicts]
    results = _results(writer, verdict, torch.stack(shares).cpu(), options)
    of_all = writer.write(results, SECTION, world)
    shown = [row[:-1] for row in of_all["table"]["rows"] if row[1] or row[4]]  # flagged or injected
    writer.print_table(COLUMNS[:-1], shown, right=3)
    writer.print_files()


def _results(writer: Writer, verdict: Verdict, votes: Tensor, options: Json) -> Json:
    network = writer.recording.network
    injected, receivers = injected_faults(network), network.members or range(network.whole)
    share = [-1.0 if math.isnan(vote) else vote for vote in votes[-1].tolist()]
    rows = [_row(verdict, node, injected) for node in sorted(range(len(share)), key=lambda node: -share[node])]
    results = {
        **writer.header("Who is unlike the others", [], COLUMNS, rows),
        **plain(options),
        "rounds": list(writer.recording.round_numbers),
        "votes": plain(votes.tolist()),
        **{name: getattr(verdict, name).tolist() for name in MATRICES},
        "able": verdict.able.sum(1).tolist(),
        "blind": [k for k in receivers if not verdict.able[:, k].any()],
        **({"members": list(network.members)} if network.members else {}),
        "spread": dict(zip(SIGNALS, verdict.spread.tolist(), strict=True)),
        "deviation": dict(zip(SIGNALS, verdict.deviation.tolist(), strict=True)),
        "known": {str(node): kind for node, kind in injected.items()},
    }
    return {**results, "findings": _sentences(results)}


def _sentences(results: Json) -> list[str]:
    """Who stands out, by how many of the receivers that can judge, and on which terms."""
    rows, able, blind = results["table"]["rows"], results["able"], results["blind"]
    receivers = results.get("members") or range(len(able))
    whole = len(receivers) == len(able)
    injected = {int(node): kind for node, kind in results["known"].items()} if whole else {}  # else not of all
    suspects = [row[0] for row in rows if able[row[0]] and row[1] / able[row[0]] >= MAJORITY]
    judged = [
        *_suspicions(rows, able, suspects),
        *([HONEST] if not results["unlike"] and set(suspects) - set(injected) else []),
        *_injected(injected, suspects),
        _terms(results, () if whole else receivers),
    ]
    return _sight(blind, len(receivers)) + (judged if any(able) else [])


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


def _sight(blind: Sequence[int], nodes: int) -> list[str]:
    """How many of these receivers can tell at all, where not everyone can."""
    few = "fewer than three neighbours, too few to tell which one stands out"
    if len(blind) == nodes:
        return [f"No participant can judge: each has {few}. Use a topology with more neighbours."]
    have = f"{comma_separated(blind)} {'have' if len(blind) > 1 else 'has'}"
    return [f"Only {nodes - len(blind)} of {nodes} participants can judge: {have} {few}."] if blind else []


def _suspicions(rows: Sequence[Sequence[Any]], able: Sequence[int], suspects: Sequence[int]) -> list[str]:
    """Who is flagged by at least half of its receivers and why, and who by fewer."""
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


def _terms(results: Json, own: Sequence[int]) -> str:
    """On which terms participants were flagged: samples, rounds, and the false-alarm rate; `own` if not everybody."""
    on = f"on {results['samples']} of its own samples in each of {len(results['rounds'])} rounds"
    votes = "Votes are counted over all receivers; no participant alone can see them."
    if own:
        votes = f"Votes count the receivers of this process alone: {comma_separated(own)}."
    return f"Each participant evaluated its neighbours' updates {on}. {_rate(results)} {votes}"


def _rate(results: Json) -> str:
    """The false-alarm rate, and what was allowed for the lasting differences between honest participants.

    Several processes measure no allowance, and there is nothing to leave out.
    """
    rate = f"{100 * results['rate']:g} % per link and check"
    spread, allowance = max(results["spread"].values()), results["allowance"]
    if results["unlike"]:
        return f"False-alarm rate: about {rate}, by the spread of each receiver's own neighbours (--unlike)."
    several = "members" in results
    among = " among the receivers of one process" if several else ""
    differ = f"honest-looking participants' long-run scores differ by up to {spread:.2f}{among}"
    if allowance is None and spread > ALLOWANCE:
        return f"False-alarm rate: about {rate}; {differ}, more than the usual {ALLOWANCE:g}, and that is allowed for."
    if allowance is None or spread <= allowance:
        allowed = ALLOWANCE if allowance is None else allowance
        return f"False-alarm rate: {rate}; {differ}, and {allowed:g} is allowed for."
    kept = "Use a larger --allowance, or --unlike" if several else "Leave out --allowance, or use --unlike"
    beyond = f"because {differ}, beyond the allowance of {allowance:g}"
    return f"False-alarm rate: {'possibly ' * several}more than {rate}, {beyond}. {kept}, to keep the rate."
