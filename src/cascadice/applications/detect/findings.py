"""What `cascadice detect` computes, writes and says."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cascadice.applications.detect.charts import charts
from cascadice.applications.detect.evidence import ALLOWANCE
from cascadice.applications.detect.idea import MAJORITY, Verdict, check_options, detect, votes
from cascadice.applications.detect.signals import SIGNALS
from cascadice.applications.neighbours import own_samples, receive, with_holdings
from cascadice.applications.plain import Json, plain
from cascadice.applications.writer import (
    Section,
    Writer,
    check_same,
    comma_separated,
    concatenate,
    open_writer,
    run_in_processes,
)
from cascadice.runs.distributed.processes import World
from cascadice.runs.flags import open_from
from cascadice.runs.summary import injected_faults

HONEST = (
    "Honest participants can stand out too, with very different data or much smaller batches; --unlike allows for more."
)
COLUMNS = ("participant", "flagged by", "heard by", "since round", "injected", "because")
MATRICES = ("strength", "heard", "since")  # by source and receiver


def merge(parts: Sequence[Json]) -> Json:
    """Merge the results of several processes, each of which judged by its own receivers.

    `spread` is the largest of any process, because a few links vary more than all of them together. The reason why a
    participant stands out comes from the process in which most receivers flag it.
    """
    check_same(parts, "run", "rate", "allowance", "memory", "samples", "unlike", "rounds")
    able, rows = np.array([part["able"] for part in parts]), []
    for each in zip(*(sorted(part["table"]["rows"]) for part in parts), strict=True):
        nodes, flags, heard, since, injected, because = zip(*each, strict=True)
        first = min((t for t in since if t is not None), default=None)
        rows.append([nodes[0], sum(flags), sum(heard), first, max(injected), because[flags.index(max(flags))]])
    merged = {
        **{name: entry for name, entry in parts[0].items() if name != "deviation"},
        "table": {**parts[0]["table"], "rows": sorted(rows, key=lambda row: -row[1] / max(able[:, row[0]].sum(), 1))},
        "able": able.sum(0).tolist(),
        **concatenate(parts, "blind", "members"),
        "spread": {name: max(part["spread"][name] for part in parts) for name in parts[0]["spread"]},
        "known": {node: kind for part in parts for node, kind in part["known"].items()},
    }
    if all("votes" in part for part in parts):
        votes = np.array([part["votes"] for part in parts], dtype=float)
        judges = np.where(np.isnan(votes), 0, able[:, None])  # assumes that as many could judge as in the last round
        with np.errstate(invalid="ignore"):
            merged["votes"] = plain(((np.nan_to_num(votes) * judges).sum(0) / judges.sum(0)).tolist())
        for name in MATRICES:
            matrix = np.array(parts[0][name])
            for part in parts:
                matrix[:, part["members"]] = np.array(part[name])[:, part["members"]]
            merged[name] = matrix.tolist()
    return {**merged, "findings": [*_sentences(merged)]}


SECTION = Section(
    "Who behaves unlike the others?",
    "cascadice detect {run}",
    "Each participant compares the updates it receives from its neighbours and flags those that stand out. Those "
    "flagged by at least half of their receivers are marked in the network. Rounds count from 0.",
    charts=charts,
    merge=merge,
    charts_only=("votes", *MATRICES, "deviation"),
)


def run(args: argparse.Namespace) -> None:
    """Run `cascadice detect` with these flags."""
    check_options(args.rate, args.allowance, args.memory)
    run_in_processes(args, "detect", _run)


def _run(args: argparse.Namespace, world: World) -> None:
    if not world.alone and args.allowance is None:
        args.allowance = ALLOWANCE  # no process sees the spread over all receivers
    recording = open_from(args, world)
    network = recording.network
    evaluation, samples = own_samples(with_holdings(recording), args.samples, world)
    writer = open_writer(args, recording, "detect")
    options = {name: getattr(args, name) for name in ("rate", "allowance", "memory", "unlike")} | {"samples": samples}
    rounds = recording.load_rounds()
    with writer.console.doing("comparing what everyone received"), world.exchange(network) as exchange:
        verdicts = detect(network, rounds, evaluation, **options, look=partial(receive, exchange=exchange))
        shares = [votes(verdict := each) for each in verdicts]
    results = _results(writer, verdict, torch.stack(shares).cpu(), options)
    merged = writer.write(results, SECTION, world)
    shown = [row[:-1] for row in merged["table"]["rows"] if row[1] or row[4]]  # flagged or injected
    writer.print_table(COLUMNS[:-1], shown, right=3)
    writer.print_files()


def _results(writer: Writer, verdict: Verdict, votes: Tensor, options: Json) -> Json:
    network, rows = writer.recording.network, []
    injected, receivers = injected_faults(network), network.members or range(network.whole)
    for node in votes[-1].nan_to_num(-1).argsort(descending=True, stable=True).tolist():
        flags, heard = verdict.flagged[node], int(verdict.heard[node].sum())
        since = min(verdict.since[node][flags].tolist(), default=None)
        because = _reason(verdict, node, flags) if flags.any() else ""
        rows.append([node, int(flags.sum()), heard, since, injected.get(node, ""), because])
    results = {
        **writer.header("Who is unlike the others", COLUMNS, rows),
        **options,
        "rounds": list(writer.recording.round_numbers),
        "votes": votes.tolist(),
        **{name: getattr(verdict, name).tolist() for name in MATRICES},
        "able": verdict.able.sum(1).tolist(),
        "blind": [k for k in receivers if not verdict.able[:, k].any()],
        **writer.members(),
        "spread": dict(zip(SIGNALS, verdict.spread.tolist(), strict=True)),
        "deviation": dict(zip(SIGNALS, verdict.deviation.tolist(), strict=True)),
        "known": {str(node): kind for node, kind in injected.items()},
    }
    return {**results, "findings": [*_sentences(results)]}


def _reason(verdict: Verdict, node: int, flags: Tensor) -> str:
    """Why receivers flag this participant: the clearest signal, and a second one if it exceeds its threshold too."""
    deviation = verdict.deviation[:, node, flags]
    thresholds = deviation.abs().amax(0) / verdict.strength[node, flags]
    beyond = dict(zip(SIGNALS.values(), (deviation.mean(1) / thresholds.mean()).tolist(), strict=True))
    clearest, *others = sorted(beyond, key=lambda signal: -abs(beyond[signal]))
    named = [clearest, *(signal for signal in others[:1] if abs(beyond[signal]) > 1)]
    return ", and ".join(signal.above if beyond[signal] > 0 else signal.below for signal in named)


def _sentences(results: Json) -> Iterator[str]:
    """Who can judge, who stands out and why, which injected faults were flagged, and on which terms."""
    rows, able, blind = results["table"]["rows"], results["able"], results["blind"]
    receivers = results.get("members") or range(len(able))
    complete = len(receivers) == len(able)  # a single process does not know all injected faults
    injected = {int(node): kind for node, kind in results["known"].items()} if complete else {}
    suspects = [row[0] for row in rows if able[row[0]] and row[1] / able[row[0]] >= MAJORITY]
    few = "fewer than three neighbours, too few to tell which one stands out"
    if len(blind) == len(receivers):
        yield f"No participant can judge: each has {few}. Use a topology with more neighbours."
    elif blind:
        have = f"{comma_separated(blind)} {'have' if len(blind) > 1 else 'has'}"
        yield f"Only {len(receivers) - len(blind)} of {len(receivers)} participants can judge: {have} {few}."
    if not any(able):
        return
    for node, flags, heard, since, _, because in (row for row in rows if row[0] in suspects):
        who = f"its {able[node]} receivers{' that can judge' if able[node] < heard else ''}"
        yield f"Participant {node} is flagged by {flags} of {who}, first in round {since}: {because}."
    if not suspects:
        yield "No participant is flagged by half of its receivers."
    if unsure := [row[0] for row in rows if row[1] and row[0] not in suspects]:
        yield f"Flagged by fewer than half of their receivers: {comma_separated(unsure)}."
    missed, wrong = sorted(set(injected) - set(suspects)), sorted(set(suspects) - set(injected))
    if wrong and not results["unlike"]:
        yield HONEST
    if injected:
        names = ", ".join(f"{node} ({kind})" for node, kind in sorted(injected.items()))
        flagged = "All were flagged" if len(injected) > 1 else "It was flagged"
        flagged = f"Missed: {comma_separated(missed)}" if missed else flagged
        nobody = "no one was wrongly flagged" if missed else "no one else was"
        yield f"Injected: {names}. {flagged}; {f'wrongly flagged: {comma_separated(wrong)}' if wrong else nobody}."
    on = f"on {results['samples']} of its own samples in each of {len(results['rounds'])} rounds"
    votes = "Votes are counted over all receivers; no participant alone can see them."
    if not complete:
        votes = f"Votes count the receivers of this process alone: {comma_separated(receivers)}."
    yield f"Each participant evaluated its neighbours' updates {on}. {_rate(results)} {votes}"


def _rate(results: Json) -> str:
    """The false-alarm rate, and how much honest participants may differ in the long run.

    Several processes cannot measure the allowance, so there is no --allowance to leave out.
    """
    rate = f"{100 * results['rate']:g} % per link and check"
    if results["unlike"]:
        return f"False-alarm rate: about {rate}, by the spread of each receiver's own neighbours (--unlike)."
    spread, allowance, several = max(results["spread"].values()), results["allowance"], "members" in results
    among = " among the receivers of one process" if several else ""
    differ = f"honest-looking participants' long-run scores differ by up to {spread:.2f}{among}"
    allowed = ALLOWANCE if allowance is None else allowance
    if spread <= allowed:
        return f"False-alarm rate: {rate}; {differ}, and {allowed:g} is allowed for."
    if allowance is None:
        return f"False-alarm rate: about {rate}; {differ}, more than the usual {ALLOWANCE:g}, and that is allowed for."
    remedy = "Use a larger --allowance, or --unlike" if several else "Leave out --allowance, or use --unlike"
    beyond = f"because {differ}, beyond the allowance of {allowance:g}"
    return f"False-alarm rate: {'possibly ' * several}more than {rate}, {beyond}. {remedy}, to keep the rate."
