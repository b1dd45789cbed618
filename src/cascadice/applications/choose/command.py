"""`cascadice choose`: who should listen to whom, by what a recorded run shows."""

import argparse
from typing import TYPE_CHECKING, Any

from cascadice.applications import over_runs

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from cascadice.applications.choose.balance import Exchange
    from cascadice.applications.choose.idea import Evidence
    from cascadice.runs.recordings import Recording

MADE = ["choose.json", "choose.png", "mixing.csv"]
SAMPLES = 128  # to evaluate on in a round, where there are as many
LITTLE = 0.05  # of the most that anybody has learnt of anybody
TIMES = 20  # at which reciprocity is kept
COLUMNS = ["participant", "group", "helps", "heard by", "gave", "took", "advice", "known"]


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    over_runs.add(parser, "choose")
    parser.add_argument("--groups", type=int, metavar="N", help="how many groups to find (by the gap of eigenvalues)")
    parser.add_argument("--degree", type=int, metavar="N", help="greatest number of neighbours in the suggested W")
    text = "suggest links that the run did not have, where they would help more"
    parser.add_argument("--new-links", action="store_true", help=text)
    parser.set_defaults(command=_choose)


def _choose(args: argparse.Namespace) -> None:
    from rich.console import Console

    from cascadice import files
    from cascadice.applications.choose.idea import suggested
    from cascadice.applications.choose.picture import draw
    from cascadice.topology import write_csv

    if args.degree is not None and args.degree < 1:
        raise ValueError(f"--degree must be at least 1; found {args.degree}.")
    recording = over_runs.opened(args)
    if args.groups is not None and not 1 <= args.groups <= recording.network.nodes:
        raise ValueError(f"--groups must be in 1..{recording.network.nodes}, the participants; found {args.groups}.")
    console = Console(quiet=args.quiet)
    place = over_runs.place(args, "choose", MADE)
    with console.status("looking at what everybody did for everybody"):
        evidence, exchanged, W = _seen(recording)
    evidence = _firm(evidence)
    better = suggested(evidence, W, degree=args.degree, new_links=args.new_links)
    found = _found(recording, evidence, exchanged, W, better, args.groups)
    found["findings"] += _too_few(args.degree)
    with files.aside(place / MADE[2]) as draft:
        write_csv(better, draft)
    draw(found, place / MADE[1])
    files.write_json(place / MADE[0], found)
    _tell(console, found)
    text = (
        f"\nfound in {place}: {', '.join(MADE)}\ntry the suggested W: cascadice run RECIPE --mixing {place / MADE[2]}"
    )
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _seen(recording: "Recording") -> "tuple[Evidence, Exchange, Tensor]":
    """What all updates say of everybody to everybody, what the links carried, and the run's mean W."""
    import torch

    from cascadice.applications.choose.balance import exchange
    from cascadice.applications.choose.idea import learnt, nothing, over_a_pass
    from cascadice.influence import evaluate_on, own_data, proximity
    from cascadice.influence.proximity import in_turn

    network, count = recording.network, len(recording.recorded)
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # own_data says what is wrong
    yardstick, size = evaluate_on(network, own_data(network, min(least, 4 * SAMPLES))), min(least, SAMPLES)
    evidence, fading = nothing(network.initial.theta), over_a_pass(network)
    everybody = ~torch.eye(network.nodes, dtype=torch.bool)
    mean = torch.zeros(network.nodes, network.nodes, dtype=torch.float64)

    def carried() -> Any:
        nonlocal evidence
        for done in recording.rounds():
            evidence = learnt(evidence, done.update, everybody, fading)
            mean.add_(done.W.to_dense().cpu() / count)
            yield proximity(network, done, in_turn(yardstick, done.t, size))

    exchanged = exchange(carried(), every=max(1, -(-count // TIMES)))
    return evidence, exchanged, mean


def _firm(evidence: "Evidence") -> "Evidence":
    """Without what receivers have hardly learnt: one with whom nobody agrees has next to no evidence of anybody."""
    firm = evidence.weight >= LITTLE * evidence.weight.max()
    return evidence._replace(sum=evidence.sum * firm, weight=evidence.weight * firm)


def _found(
    recording: "Recording", evidence: "Evidence", exchanged: "Exchange", W: "Tensor", better: "Tensor",
    count: int | None,
) -> dict[str, Any]:  # fmt: skip
    import cascadice
    from cascadice.applications.choose.balance import advise
    from cascadice.applications.choose.groups import find_groups
    from cascadice.engine.exchange.robust import others
    from cascadice.runs.summary import wrongs

    given, heard = evidence.influence.T, others(W)
    helps = evidence.trusted & (evidence.influence < 0)
    groups, known = find_groups(given, count), wrongs(recording.network)
    advice = advise(helps, heard, groups, exchanged.gave[-1], exchanged.took[-1])
    rows = [
        [
            node, group, int((helps & heard)[:, node].sum()), int(heard[:, node].sum()),
            float(exchanged.gave[-1, node]), float(exchanged.took[-1, node]), advice[node].verdict, known.get(node, ""),
        ]
        for node, group in enumerate(groups.tolist())
    ]  # fmt: skip
    return {
        "command": "choose",
        "version": cascadice.__version__,
        "run": recording.fingerprint,
        "title": "With whom to collaborate",
        "findings": _findings(recording, rows, [one.reason for one in advice], W, better),
        "table": {"columns": COLUMNS, "rows": rows},
        "figure": MADE[1],
        "groups": groups.tolist(),
        "influence": given.tolist(),
        "given": exchanged.given[-1].tolist(),
        "gave": exchanged.gave.tolist(),
        "took": exchanged.took.tolist(),
        "rounds": list(exchanged.t),
        "pairs": _plain(exchanged.pairs),
        "neighbourhoods": _plain(exchanged.neighbourhoods),
        "advice": [{"participant": a.node, "verdict": a.verdict, "reason": a.reason} for a in advice],
        "mixing": better.tolist(),
        "known": {str(node): kind for node, kind in known.items()},
    }


def _plain(values: "Tensor") -> Any:
    """Nested lists in which what is no number is null, as JSON has it."""
    import torch

    array = values.double().numpy().astype(object)
    array[~torch.isfinite(values).numpy()] = None
    return array.tolist()


def _findings(
    recording: "Recording", rows: list[list[Any]], reasons: list[str], W: "Tensor", better: "Tensor"
) -> list[str]:
    from cascadice.applications.choose.groups import ALONE
    from cascadice.engine.exchange.robust import others

    groups: dict[int, list[int]] = {}
    for node, group, *_ in rows:
        groups.setdefault(group, []).append(node)
    alone = groups.pop(ALONE, [])
    found = [f"Group {group}: {_names(members)} help one another." for group, members in sorted(groups.items())]
    if alone:
        found.append(f"Tied to nobody: {_names(alone)}.")
    for node, *_, verdict, _ in rows:
        if verdict in ("expel", "move"):
            found.append(f"Participant {node}: {verdict}; {reasons[node]}.")
    givers = sorted((row for row in rows if row[4] > max(row[5], 0)), key=lambda row: row[5] - row[4])
    if givers:
        found.append(f"Giving more than they take, the most generous first: {_names([row[0] for row in givers[:5]])}.")
    before, after = others(W), others(better)
    found.append(
        f"The suggested W drops {int((before & ~after).sum())} of {int(before.sum())} links and adds "
        f"{int((after & ~before).sum())}."
    )
    return [*found, *_accuracy(recording)]


def _too_few(degree: int | None) -> list[str]:
    """What to expect of a W with so few neighbours."""
    from cascadice.applications.detect.idea import LEAST

    if degree is None or degree >= LEAST:
        return []
    mixing = ", and too few to mix: what one learns hardly reaches the others" if degree == 1 else ""
    heard = f"{degree} neighbour{'s' * (degree > 1)}"
    return [f"Warning: {heard} {'are' if degree > 1 else 'is'} too few to tell who is the odd one{mixing}."]


def _names(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes))


def _accuracy(recording: "Recording") -> list[str]:
    from cascadice.runs import store

    try:
        judged = [m for m in store.read_metrics(recording.folder) if m.test is not None]
    except FileNotFoundError:
        return []
    if not judged or judged[-1].test is None or bool(judged[-1].test.accuracy.isnan().any()):
        return []
    held = judged[-1].test.accuracy
    return [f"The run's test accuracy was {held.mean():.3f} on average, {held.min():.3f} to {held.max():.3f}."]


def _tell(console: "Console", found: dict[str, Any]) -> None:
    from rich.table import Table

    from cascadice.applications.choose.groups import ALONE

    table = Table(box=None, padding=(0, 3, 0, 0))
    for place, column in enumerate(("participant", "group", "helps", "gave", "took", "advice", "known")):
        table.add_column(column, justify="right" if 0 < place < 5 else "left", no_wrap=column != "advice")
    for node, group, helps, heard, gave, took, advice, known in found["table"]["rows"]:
        named = "" if group == ALONE else str(group)
        table.add_row(str(node), named, f"{helps} of {heard}", f"{gave:+.3f}", f"{took:+.3f}", advice, known)
    for sentence in found["findings"]:
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    console.print()
    console.print(table)
