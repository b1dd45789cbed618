"""`cascadice detect`: what every participant of a recorded run would have thought of those it heard."""

import argparse
import math
from typing import TYPE_CHECKING, Any

from cascadice.applications.writer import Writer, nested_lists, open_writer
from cascadice.runs.flags import add_recording, open_from

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from torch import Tensor

    from cascadice.applications.detect.idea import Verdict
    from cascadice.runs.recording import Recording

SAMPLES = 128  # to evaluate on in a round, where participants hold as many
COLUMNS = ("participant", "flagged by", "heard by", "since round", "injected", "because")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recording(parser, "detect")
    text = "false-alarm rate: how often an honest neighbour may be flagged [0.01]"
    parser.add_argument("--rate", type=float, default=0.01, metavar="X", help=text)
    text = "how much honest neighbours may differ for good, in units of their mean difference within a round [0.5]"
    parser.add_argument("--allowance", type=float, default=0.5, metavar="X", help=text)
    text = "keep the rate however much participants' data differ; fewer attackers are flagged"
    parser.add_argument("--unlike", action="store_true", help=text)
    text = "rounds over which evidence is forgotten; 1 looks at each round alone (never)"
    parser.add_argument("--memory", type=float, default=math.inf, metavar="N", help=text)
    text = f"own samples to evaluate on in a round (up to {SAMPLES})"
    parser.add_argument("--samples", type=int, metavar="N", help=text)
    parser.set_defaults(command=_detect)


def _detect(args: argparse.Namespace) -> None:
    import torch

    from cascadice.applications.detect.idea import check, detect, votes
    from cascadice.applications.detect.picture import plot
    from cascadice.influence import evaluate_on, own_data

    check(args.rate, args.allowance, args.memory)
    recording = open_from(args)
    samples, size = _samples(recording, args.samples)
    evaluation = evaluate_on(recording.network, own_data(recording.network, size))
    writer = open_writer(args, recording, "detect")
    options = {"rate": args.rate, "allowance": args.allowance, "memory": args.memory, "samples": samples}
    options |= {"unlike": args.unlike}
    shares = []
    with writer.console.status("looking at what everyone heard"):
        for verdict in detect(recording.network, recording.load_rounds(), evaluation, **options):
            shares.append(votes(verdict))
    results = _results(writer, verdict, torch.stack(shares).cpu(), options)
    writer.write(results, plot)
    writer.print(results["findings"])
    _print_table(writer, results)
    writer.print_files()


def _samples(recording: "Recording", asked: int | None) -> tuple[int, int]:
    """How many samples to evaluate on in a round, and how many of each participant's own take turns."""
    if recording.network.partition is None:
        return asked or SAMPLES, asked or SAMPLES  # own_data says what is wrong
    least = min(len(part) for part in recording.network.partition)
    if asked is not None and not 1 <= asked <= least:
        raise ValueError(f"--samples must be in 1..{least}, the fewest that a participant holds; found {asked}.")
    return min(asked or SAMPLES, least), min(least, 4 * SAMPLES)


def _results(writer: Writer, verdict: "Verdict", votes: "Tensor", options: dict[str, Any]) -> dict[str, Any]:
    """The content of detect.json, from the last verdict and the votes after each round."""
    from cascadice.applications.detect import findings
    from cascadice.applications.detect.idea import MAJORITY
    from cascadice.applications.detect.signals import SIGNALS
    from cascadice.runs.summary import injected_faults

    injected = injected_faults(writer.recording.network)
    share = [-1.0 if math.isnan(vote) else vote for vote in votes[-1].tolist()]
    order = sorted(range(len(share)), key=lambda node: -share[node])
    suspects = [node for node in order if share[node] >= MAJORITY]
    rows = [_row(verdict, node, injected) for node in order]
    sentences = [
        *findings.sight_sentences(verdict),
        *findings.suspicion_sentences(verdict, rows, suspects),
        *findings.injected_sentences(injected, suspects),
        findings.terms_sentence(len(votes), options),
    ]
    return {
        **writer.header("Who is unlike the others", sentences, COLUMNS, rows),
        **{name: None if value == math.inf else value for name, value in options.items()},
        "rounds": list(writer.recording.round_numbers),
        "votes": nested_lists(votes),
        "strength": verdict.strength.tolist(),
        "heard": verdict.heard.tolist(),
        "since": verdict.since.tolist(),
        "deviation": dict(zip(SIGNALS, verdict.deviation.tolist(), strict=True)),
        "known": {str(node): kind for node, kind in injected.items()},
    }


def _row(verdict: "Verdict", node: int, injected: dict[int, str]) -> list[Any]:
    from cascadice.applications.detect.findings import reason

    flags = verdict.flagged[node]
    since = min(verdict.since[node][flags].tolist(), default=None)
    heard = int(verdict.heard[node].sum())
    return [node, int(flags.sum()), heard, since, injected.get(node, ""), reason(verdict, node)]


def _print_table(writer: Writer, results: dict[str, Any]) -> None:
    """Those that somebody flags or that have an injected fault; the reason is in the sentences."""
    columns: dict[str, JustifyMethod] = {
        column: "right" if 0 < place < 4 else "left" for place, column in enumerate(COLUMNS[:-1])
    }
    rows = [row[:-1] for row in results["table"]["rows"] if row[1] or row[4]]
    writer.print_table(columns, [["" if value is None else str(value) for value in row] for row in rows])
