"""What `cascadice choose` computes, writes and says."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cascadice.applications.choose import by_contribution
from cascadice.applications.choose.balance import DISAGREE, Advice, advise
from cascadice.applications.choose.charts import HALF_WIDTHS, charts, signed_table
from cascadice.applications.choose.groups import ALONE, find_groups
from cascadice.applications.choose.idea import Observed, observe, suggest_mixing
from cascadice.applications.neighbours import LEAST, own_samples, with_holdings
from cascadice.applications.plain import Json
from cascadice.applications.writer import SIGN_RULE, Section, Writer, comma_separated, open_writer, run_in_processes
from cascadice.engine.exchange.geometry import neighbours
from cascadice.influence.tables import parts, read_note
from cascadice.influence.uncertainty import Bounds, decimals, plus_minus
from cascadice.names import lookup
from cascadice.runs import store
from cascadice.runs.distributed.processes import World
from cascadice.runs.flags import open_from
from cascadice.runs.folder import WHOLE_RUN
from cascadice.runs.recording import Recording
from cascadice.runs.summary import injected_faults, read_summary, sides
from cascadice.topology import write_csv

MIXING = "mixing.csv"
TIMES = 20  # rounds after which the balance is saved
MOST_GENEROUS = 5  # participants that are named
GIVEN, TAKEN = "influence given", "influence taken"
COLUMNS = ("participant", "group", "helps", "heard by", GIVEN, "± given", TAKEN, "± taken", "advice", "injected")
SIGNS = (
    "Influence given: how a participant changed its neighbours' losses. Influence taken: how they changed its own. "
    f"{SIGN_RULE} Helps: how many of its receivers its updates fit, by cosine."
)
SHOWN = ("who", "group", "helps", GIVEN, TAKEN, "advice", "injected")  # on the console, which is narrow
NO_INTERVALS = (
    "Who helps, the groups and the suggested W go by cosines of summed updates. These have no intervals, because the "
    "sums overlap from round to round. The intervals of influence come from how much it varies between rounds."
)
WHY = (
    "Cosines compare the directions of updates over many rounds; what a link carried is an update times its receiver's "
    "gradient after the same round."
)
OVERSHOOT = " Where steps overshoot, as they can at a high learning rate, even updates that fit count as harm."
CONTRADICT = " Labels that contradict each other show in cosines, and hardly in what a link carried."
FINAL = (
    "The two disagree: follow the final models, which the test data judge. The suggested W goes by cosines, and drops "
    "links that those who helped should keep."
)
FOLLOW = "Where the two disagree, follow the cosines; --by contribution says who helped the final models."
APART = (
    "The suggested W drops most links. Cosines and what links carried both go by the receiver's own data, so "
    "participants with different classes look harmful to each other even where they need what the others know. Before "
    "you use this W, ask --by contribution, which goes by the test data, and follow it if it says otherwise."
)
SECTION = Section(
    "Who should collaborate with whom?",
    "cascadice choose {run}",
    f"{SIGNS} Both are summed over the recorded rounds. ± is half of a 95 % interval, from how much influence varies "
    "between rounds. W is the mixing matrix: the weight that each receiver gives to each source.",
    charts=charts,
    table=signed_table,
)


def run(args: argparse.Namespace) -> None:
    """Run `cascadice choose` with these flags."""
    if lookup({"exchange": False, "contribution": True}, args.by, "criterion"):
        by_contribution.run(args)
        return
    for flag, given in {"--on": args.on, "--points": args.points}.items():
        if given is not None:
            raise ValueError(f"{flag} is for contributions. Use --by contribution, or leave it out.")
    if args.degree is not None and args.degree < 1:
        raise ValueError(f"--degree must be at least 1; found {args.degree}.")
    run_in_processes(args, "choose", _run)


def _run(args: argparse.Namespace, world: World) -> None:
    recording = open_from(args, world)
    network = recording.network
    if args.groups is not None and not 1 <= args.groups <= network.whole:
        raise ValueError(f"--groups must be in 1..{network.whole}, the participants; found {args.groups}.")
    writer = open_writer(args, recording, "choose", MIXING)
    with writer.console.doing("measuring what everyone did for everyone"):
        observed = _observed(recording, args.heard, world)
    suggested = suggest_mixing(observed.trust, observed.W, degree=args.degree, new_links=args.new_links)
    results = _results(writer, observed, suggested, args)
    write_csv(suggested, writer.folder / MIXING)
    writer.write(results, SECTION)
    digits = decimals(results["influence_given"][-1], results["influence_taken"][-1]) - 1
    rows = [
        [node, "" if group == ALONE else group, f"{helps} of {heard}", *sums, *others]
        for node, group, helps, heard, given, one, taken, two, *others in results["table"]["rows"]
        for sums in [(plus_minus(given, one, digits), plus_minus(taken, two, digits))]
    ]
    writer.print(SIGNS)
    writer.print_table(SHOWN, rows, right=4, wrap="advice", padding=2)
    writer.print_files()
    writer.print(f"try the suggested W: cascadice run RECIPE --mixing {writer.folder / MIXING}")


def _observed(recording: Recording, heard: bool, world: World) -> Observed:
    """What the recorded rounds show. Each of several processes judges what it hears, then shares its scores."""
    network, rounds = recording.network, recording.load_rounds()
    evaluation, samples = own_samples(with_holdings(recording), None, world)
    every = -(-len(recording.round_numbers) // TIMES)
    options: dict[str, Any] = {"samples": samples, "every": every}
    if heard or not world.alone:  # network.mixing has the rows of all processes
        W = network.mixing if network.members else lambda t: store.load_draw(recording.folder, t).W
        options["hears"] = torch.stack([neighbours(W(t)) for t in recording.round_numbers]).any(0)
    with world.exchange(network) as exchange:
        return observe(network, rounds, evaluation, **options, world=world, exchange=exchange)


def _results(writer: Writer, observed: Observed, suggested: Tensor, args: argparse.Namespace) -> Json:
    (trust, balance, W), injected = observed, injected_faults(writer.recording.network)
    heard, helps = neighbours(W), trust.trusted & (trust.score < 0)
    gave, took, halves = balance.gave, balance.took, balance.half_widths
    groups = find_groups(trust.score.T, args.groups)
    sure = (gave[-1] - took[-1]).abs() > halves[2]
    advice = advise(helps, heard, groups, gave[-1], took[-1], sure, helped_finally(writer.recording))
    numbers = (groups, (helps & heard).sum(0), heard.sum(0), 0 - gave[-1], halves[0], 0 - took[-1], halves[1])
    columns = zip(*(column.tolist() for column in numbers), strict=True)
    rows = [[a.node, *row, a.verdict, injected.get(a.node, "")] for a, row in zip(advice, columns, strict=True)]
    findings = [
        *_groups(groups.tolist()),
        *_advice(advice, gave[-1], took[-1], halves),
        *_mixing(neighbours(W), neighbours(suggested), args.degree, balance.link_bounds, helps),
        NO_INTERVALS,
        *_accuracy(writer.recording),
    ]
    return {
        **writer.header("With whom to collaborate", COLUMNS, rows),
        "findings": findings,
        "sign": SIGN_RULE,
        "groups": groups.tolist(),
        "cosines": (0 - trust.score.T).tolist(),
        "influence_between": balance.given[-1].tolist(),
        "intervals": {"influence_between": [end.tolist() for end in balance.link_bounds]},
        "half_widths": dict(zip(HALF_WIDTHS.values(), halves.tolist(), strict=True)),
        "influence_given": (0 - gave).tolist(),
        "influence_taken": (0 - took).tolist(),
        "rounds": list(balance.t),
        "pairs": balance.pairs.tolist(),
        "neighbourhoods": balance.neighbourhoods.tolist(),
        "advice": [{"participant": a.node, "verdict": a.verdict, "reason": a.reason} for a in advice],
        "mixing": suggested.tolist(),
        "known": {str(node): kind for node, kind in injected.items()},
    }


def helped_finally(recording: Recording) -> set[int]:
    """Who clearly helped the final models of all, if `cascadice influence` has computed that for this run."""
    folder = recording.folder / WHOLE_RUN
    note = read_note(folder) if parts(folder) else {}
    if recording.network.members or note.get("run") != recording.fingerprint or note.get("on", "all") != "all":
        return set()
    summary = read_summary(folder, recording.folder, recording.network)
    return {node for kind in [*summary.updates][:1] for node, _ in sides(summary, kind).helped}


def _groups(groups: Sequence[int]) -> Iterator[str]:
    """The members of each group, and who is in none."""
    for group in sorted(set(groups) - {ALONE}):
        members = comma_separated(k for k, g in enumerate(groups) if g == group)
        yield f"Group {group}, whose updates are most alike: {members}."
    if alone := comma_separated(k for k, g in enumerate(groups) if g == ALONE):
        yield f"In no group: {alone}."


def _advice(advice: Sequence[Advice], gave: Tensor, took: Tensor, halves: Tensor) -> Iterator[str]:
    """Whom to expel or move, and who clearly gives more than it takes."""
    for node, verdict, reason in advice:
        given, half = float(gave[node]), float(halves[0, node])
        if verdict in ("expel", "move") or reason == DISAGREE:
            what = "within noise" if abs(given) <= half else "it helped" if given > 0 else "it harmed"
            amount = f"{plus_minus(-given, half, 3)} ({what})" if given else "0"
            changed = f"It changed its neighbours' losses by {amount}."
            yield f"Participant {node}: {verdict}; by cosine, {reason}. {changed}"
    if any(a.reason == DISAGREE for a in advice):
        yield FINAL
    clear = ((gave > took.clamp(min=0)) & (gave - took > halves[2])).tolist()
    if generous := [k for k in (took - gave).argsort(stable=True).tolist() if clear[k]]:
        names = comma_separated(generous[:MOST_GENEROUS])
        yield f"These clearly give more than they take, the largest difference first: {names}."


def _mixing(before: Tensor, after: Tensor, degree: int | None, bounds: Bounds, fits: Tensor) -> Iterator[str]:
    """Which links the suggested W drops and adds, and whether what they carried agrees; all as `[k, j]`.

    Warns if `degree` leaves too few neighbours, or if most links go although it was not given.
    """
    links, dropped, added = int(before.sum()), int((before & ~after).sum()), int((after & ~before).sum())
    yield f"The suggested W drops {dropped} of {links} links and adds {added}."
    if degree is not None and degree < LEAST:
        few = f"{degree} neighbour{'s are' if degree > 1 else ' is'} too few to tell which one is the odd one out"
        mixing = ", and too few to mix: what one participant learns hardly reaches the others" if degree == 1 else ""
        yield f"Warning: {few}{mixing}."
    if np.isnan(bounds.low).any():
        yield "With one round there are no intervals: all of this may be noise."
    else:
        for what, which in (("keeps", before & after), ("drops", before & ~after)):
            count, (helped, harmed) = int(which.sum()), (int((clear & which).sum()) for clear in _clear(bounds))
            if count:
                yield (
                    f"Of the {count} links it {what}, {helped} clearly helped, {harmed} clearly harmed and "
                    f"{count - helped - harmed} did neither beyond noise, by what they carried."
                )
    yield from conflict(fits, before, bounds)
    if degree is None and 2 * dropped > links:
        yield APART


def _clear(bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Whether j clearly helped k, and whether it clearly harmed it, as `[k, j]`."""
    return torch.from_numpy(bounds.high.T < 0), torch.from_numpy(bounds.low.T > 0)


def conflict(fits: Tensor, heard: Tensor, bounds: Bounds) -> Iterator[str]:
    """On how many links cosines and carried influence disagree, why they may, and which to follow; empty if on none."""
    helped, harmed = _clear(bounds)
    fitting, other = int((fits & harmed & heard).sum()), int((~fits & helped & heard).sum())
    both = [f"{fitting} fit by cosine but clearly harmed"] if fitting else []
    both += [f"{other} clearly helped but fit less than others"] if other else []
    if both:
        yield (
            f"Cosines and what links carried disagree about {fitting + other} of {int(heard.sum())} links: "
            f"{' and '.join(both)}. {WHY}{OVERSHOOT if fitting else ''}{CONTRADICT if other else ''}"
        )
        yield FOLLOW


def _accuracy(recording: Recording) -> Iterator[str]:
    """The test accuracy of the final models, if it was measured."""
    metrics = store.metrics_so_far(recording.folder)
    accuracy = next((m.test.accuracy for m in reversed(metrics) if m.test is not None), None)
    if accuracy is not None and not bool(accuracy.isnan().any()) and not recording.network.members:
        spread = f"{accuracy.min():.3f} to {accuracy.max():.3f}"
        yield f"The run's test accuracy was {accuracy.mean():.3f} on average ({spread})."
