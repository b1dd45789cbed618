"""`cascadice choose`: who should listen to whom, by what a recorded run shows."""

import argparse
from typing import TYPE_CHECKING, Any

from cascadice.applications.writer import Writer, nested_lists, open_writer
from cascadice.runs.flags import add_recording, open_from

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from torch import Tensor

    from cascadice.applications.choose.idea import Observed
    from cascadice.runs.recording import Recording

MIXING = "mixing.csv"
SAMPLES = 128  # to evaluate on in a round, where participants hold as many
TIMES = 20  # points in time at which the balance is kept
COLUMNS = ("participant", "group", "helps", "heard by", "gave", "took", "advice", "injected")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recording(parser, "choose")
    parser.add_argument("--groups", type=int, metavar="N", help="how many groups to find (by the gap of eigenvalues)")
    parser.add_argument("--degree", type=int, metavar="N", help="greatest number of neighbours in the suggested W")
    text = "suggest links that the run did not have, where they would help more"
    parser.add_argument("--new-links", action="store_true", help=text)
    parser.set_defaults(command=_choose)


def _choose(args: argparse.Namespace) -> None:
    from cascadice import files
    from cascadice.applications.choose.idea import suggest_mixing
    from cascadice.applications.choose.picture import plot
    from cascadice.topology import write_csv

    if args.degree is not None and args.degree < 1:
        raise ValueError(f"--degree must be at least 1; found {args.degree}.")
    recording = open_from(args)
    if args.groups is not None and not 1 <= args.groups <= recording.network.nodes:
        raise ValueError(f"--groups must be in 1..{recording.network.nodes}, the participants; found {args.groups}.")
    writer = open_writer(args, recording, "choose", MIXING)
    with writer.console.status("measuring what everyone did for everyone"):
        observed = _observe(recording)
    suggested = suggest_mixing(observed.trust, observed.W, degree=args.degree, new_links=args.new_links)
    results = _results(writer, observed, suggested, args)
    with files.replacing(writer.folder / MIXING) as draft:
        write_csv(suggested, draft)
    writer.write(results, plot)
    writer.print(results["findings"])
    _print_table(writer, results)
    writer.print_files()
    writer.print([f"try the suggested W: cascadice run RECIPE --mixing {writer.folder / MIXING}"])


def _observe(recording: "Recording") -> "Observed":
    from cascadice.applications.choose.idea import observe
    from cascadice.influence import evaluate_on, own_data

    network, every = recording.network, -(-len(recording.round_numbers) // TIMES)
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # without one, own_data refuses
    evaluation = evaluate_on(network, own_data(network, min(least, 4 * SAMPLES)))
    return observe(network, recording.load_rounds(), evaluation, samples=min(least, SAMPLES), every=every)


def _results(writer: Writer, observed: "Observed", suggested: "Tensor", args: argparse.Namespace) -> dict[str, Any]:
    from cascadice.applications.choose import findings
    from cascadice.applications.choose.balance import advise
    from cascadice.applications.choose.groups import find_groups
    from cascadice.engine.exchange.geometry import neighbours
    from cascadice.runs.summary import injected_faults

    (trust, balance, W), injected = observed, injected_faults(writer.recording.network)
    given, heard, helps = trust.influence.T, neighbours(W), trust.trusted & (trust.influence < 0)
    gave, took = balance.gave, balance.took
    groups = find_groups(given, args.groups)
    advice = advise(helps, heard, groups, gave[-1], took[-1])
    sentences = [
        *findings.group_sentences(groups.tolist()),
        *findings.advice_sentences(advice, gave[-1], took[-1]),
        *findings.mixing_sentences(W, suggested, args.degree),
        *findings.accuracy_sentences(writer.recording),
    ]
    columns = (
        range(len(W)), groups, (helps & heard).sum(0), heard.sum(0), gave[-1], took[-1],
        [a.verdict for a in advice], [injected.get(a.node, "") for a in advice],
    )  # fmt: skip
    rows = zip(*(part if isinstance(part, (range, list)) else part.tolist() for part in columns), strict=True)
    return {
        **writer.header("With whom to collaborate", sentences, COLUMNS, [list(row) for row in rows]),
        "groups": groups.tolist(),
        "influence": given.tolist(),
        "given": balance.given[-1].tolist(),
        "gave": gave.tolist(),
        "took": took.tolist(),
        "rounds": list(balance.t),
        "pairs": nested_lists(balance.pairs),
        "neighbourhoods": nested_lists(balance.neighbourhoods),
        "advice": [{"participant": a.node, "verdict": a.verdict, "reason": a.reason} for a in advice],
        "mixing": suggested.tolist(),
        "known": {str(node): kind for node, kind in injected.items()},
    }


def _print_table(writer: Writer, results: dict[str, Any]) -> None:
    from cascadice.applications.choose.groups import ALONE

    shown = ("participant", "group", "helps", "gave", "took", "advice", "injected")
    columns: dict[str, JustifyMethod] = {
        column: "right" if 0 < place < 5 else "left" for place, column in enumerate(shown)
    }
    rows = []
    for node, group, helps, heard, gave, took, advice, injected in results["table"]["rows"]:
        name = "" if group == ALONE else str(group)
        rows.append([str(node), name, f"{helps} of {heard}", f"{gave:+.3f}", f"{took:+.3f}", advice, injected])
    writer.print_table(columns, rows, wrap="advice")
