"""`cascadice detect`: what every participant of a recorded run would have thought of those it heard."""

import argparse
import math
from typing import TYPE_CHECKING, Any

from cascadice.applications.writer import Writer, add_arguments, comma_separated, nested_lists, open_run, open_writer

if TYPE_CHECKING:
    from torch import Tensor

    from cascadice.applications.detect.idea import Verdict
    from cascadice.runs.recordings import Recording

SAMPLES = 128  # to evaluate on in a round, where there are as many
HALF = 0.5  # of the receivers: a vote
COLUMNS = ("participant", "flagged by", "heard by", "since round", "told to", "because")

# sign -> what it means where it is above, and where it is below that of the others
MEANINGS = {
    "influence": ("it harms more than the others", "it helps more than the others"),
    "direction": ("its updates lead away from lower loss", "its updates lead to lower loss more directly"),
    "size": ("its updates are larger", "its updates are smaller"),
    "distance": ("its updates are far from those of the others", "its updates are nearer to the others than theirs"),
}


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_arguments(parser, "detect")
    parser.add_argument(
        "--rate", type=float, default=0.01, metavar="X", help="how often an honest neighbour may be flagged [0.01]"
    )
    text = "how much honest neighbours may differ for good, in their mean differences within a round [0.5]"
    parser.add_argument("--allowance", type=float, default=0.5, metavar="X", help=text)
    text = "keep the rate where participants hold unlike data: fewer are flagged"
    parser.add_argument("--unlike", action="store_true", help=text)
    text = "rounds over which evidence is forgotten; 1 looks at each round alone (never)"
    parser.add_argument("--memory", type=float, default=math.inf, metavar="N", help=text)
    text = f"own samples to evaluate on in a round (up to {SAMPLES})"
    parser.add_argument("--samples", type=int, metavar="N", help=text)
    parser.set_defaults(command=_detect)


def _detect(args: argparse.Namespace) -> None:
    import torch

    from cascadice.applications.detect.idea import check, detect, votes
    from cascadice.applications.detect.picture import draw
    from cascadice.influence import evaluate_on, own_data

    check(args.rate, args.allowance, args.memory)
    recording = open_run(args)
    samples, holdings = _samples(recording, args.samples)
    evaluation = evaluate_on(recording.network, own_data(recording.network, holdings))
    writer = open_writer(args, recording, "detect")
    votes_by_round, last = [], None
    options = {"rate": args.rate, "allowance": args.allowance, "memory": args.memory, "samples": samples}
    options |= {"unlike": args.unlike}
    with writer.console.status("looking at what everybody heard"):
        for last in detect(recording.network, recording.rounds(), evaluation, **options):
            votes_by_round.append(votes(last))
    assert last is not None  # a recording has rounds
    results = _results(writer, last, torch.stack(votes_by_round).cpu(), options)
    writer.write(results, draw)
    writer.print(results["findings"])
    _print_table(writer, results)
    writer.print_files()


def _samples(recording: "Recording", asked: int | None) -> tuple[int, int]:
    """How many samples to evaluate on in a round, and of how many of everybody's own to take them in turn."""
    if recording.network.partition is None:
        return asked or SAMPLES, asked or SAMPLES  # own_data says what is wrong
    least = min(len(part) for part in recording.network.partition)
    if asked is not None and not 1 <= asked <= least:
        raise ValueError(f"--samples must be in 1..{least}, the least that a participant holds; found {asked}.")
    return min(asked or SAMPLES, least), min(least, 4 * SAMPLES)


def _results(writer: Writer, last: "Verdict", votes: "Tensor", options: dict[str, Any]) -> dict[str, Any]:
    from cascadice.applications.detect.idea import LEAST, SIGNS
    from cascadice.runs.summary import wrongs

    share, known = votes[-1].tolist(), wrongs(writer.recording.network)
    rows = [_row(node, last, known) for node in sorted(range(len(share)), key=lambda j: _order(share[j]))]
    sees = last.known.sum(0) >= LEAST
    blind, able = (~sees).nonzero().flatten().tolist(), (last.known & sees).sum(1).tolist()
    suspects = [row for row in rows if share[row[0]] >= HALF]
    deviation = last.deviation.cpu()
    findings = [
        *_sight(blind, len(rows)),
        *(_suspicion(row, able[row[0]]) for row in suspects),
        *(["Nobody is flagged by half of those that hear it."] if any(able) and not suspects else []),
        *_others(rows, suspects, known),
        _terms(len(writer.recording.recorded), options),
    ]
    return {
        **writer.header("Who is unlike the others", findings, COLUMNS, rows),
        **{name: None if value == math.inf else value for name, value in options.items()},
        "rounds": list(writer.recording.recorded),
        "votes": nested_lists(votes),
        "strength": last.strength.tolist(),
        "heard": last.known.tolist(),
        "since": last.since.tolist(),
        "deviation": {sign: deviation[i].tolist() for i, sign in enumerate(SIGNS)},
        "known": {str(node): kind for node, kind in known.items()},
    }


def _order(share: float) -> float:
    return 1.0 if math.isnan(share) else -share


def _row(node: int, last: "Verdict", known: dict[int, str]) -> list[Any]:
    flags, heard = last.flagged[node], last.known[node]
    since = last.since[node][flags]
    first = int(since.min()) if len(since) else None
    return [node, int(flags.sum()), int(heard.sum()), first, known.get(node, ""), _because(node, last)]


def _because(node: int, last: "Verdict") -> str:
    """What those that flag it see, in one or two signs: whatever is beyond their thresholds, the clearest first."""
    from cascadice.applications.detect.idea import SIGNS

    flags = last.flagged[node]
    if not flags.any():
        return ""
    deviation = last.deviation[:, node, flags]
    beyond = (deviation.mean(1) / (deviation.abs().amax(0) / last.strength[node, flags]).mean()).tolist()
    clearest, second, *_ = sorted(range(len(SIGNS)), key=lambda sign: -abs(beyond[sign]))
    told = [clearest, second] if abs(beyond[second]) > 1 else [clearest]
    return ", and ".join(MEANINGS[SIGNS[sign]][0 if beyond[sign] > 0 else 1] for sign in told)


def _sight(blind: list[int], nodes: int) -> list[str]:
    """Who can tell at all, where not everybody can."""
    hear, few = "hear" if len(blind) > 1 else "hears", "fewer than three others, too few to tell who is the odd one"
    if len(blind) == nodes:
        return [f"Nobody can tell here: everybody hears {few}. Give participants more neighbours, in another topology."]
    return [f"Only {nodes - len(blind)} of {nodes} can tell: {comma_separated(blind)} {hear} {few}."] if blind else []


def _suspicion(row: list[Any], able: int) -> str:
    node, flags, heard, since, _, because = row
    who = f"the {able} that hear it{' and can tell' if able < heard else ''}"
    return (
        f"Participant {node} is unlike the others: {flags} of {who} flag it, the first since round {since}; {because}."
    )


def _others(rows: list[list[Any]], suspects: list[list[Any]], known: dict[int, str]) -> list[str]:
    """Who is flagged by some, and what is known about anybody."""
    found = []
    if single := [row[0] for row in rows if row[1] and row not in suspects]:
        found.append(f"Flagged by fewer than half: {comma_separated(single)}.")
    if known:
        caught = [row[0] for row in suspects]
        missed, wrong = sorted(set(known) - set(caught)), sorted(set(caught) - set(known))
        told = ", ".join(f"{node} ({kind})" for node, kind in sorted(known.items()))
        found.append(
            f"Told to misbehave were {told}: {'all were found' if not missed else f'missed {comma_separated(missed)}'}"
            f"{f', wrongly suspected {comma_separated(wrong)}' if wrong else ', nobody else is suspected'}."
        )
    return found


def _terms(rounds: int, options: dict[str, Any]) -> str:
    alike = f"if the honest differ for good by no more than the allowance of {options['allowance']:g}"
    condition = "about, however much the honest differ for good" if options["unlike"] else alike
    return (
        f"Each judged its neighbours by {options['samples']} of its own samples in each of {rounds} rounds. An honest "
        f"neighbour is flagged with probability {options['rate']:g} in a look, {condition}. "
        "The vote is more than one participant knows."
    )


def _print_table(writer: Writer, results: dict[str, Any]) -> None:
    """Those that somebody flags or that were told to misbehave; the reason is in the sentences."""
    columns = {column: "right" if 0 < place < 4 else "left" for place, column in enumerate(COLUMNS[:-1])}
    rows = [row[:-1] for row in results["table"]["rows"] if row[1] or row[4]]
    writer.print_table(columns, [["" if value is None else str(value) for value in row] for row in rows])
