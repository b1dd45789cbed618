"""A summary of influence in words, for the console and for the page."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cascadice.console import Console, say
from cascadice.influence.quadrature import more_points
from cascadice.influence.uncertainty import decimals, plus_minus
from cascadice.influence.whole_run_shares import FAR, POINTS
from cascadice.runs.summary import MOST, EvaluationResult, InfluenceSummary, clear_samples, sides

NEAR = 0.01  # of what training changed: if shares miss less, it is not worth a word
UNCOVERED = (
    "The 95 % intervals of shares, and of payments made from them, show only how much shares vary between rounds; they "
    "do not include this error, which may be larger for a single participant"
)
ROUGH = "If that brings the sum no closer, training is too rough for shares: lower the learning rate"
PLANNED = "planned"  # in the note of a table that is not finished: how many rounds it will have
NOT_FINAL = "These sums do not tell who contributed to the final models. For that, use --kind whole-run."
SIGNS = "Negative lowered the loss (helped), positive raised it (harmed)"


def print_summary(
    console: Console, summary: InfluenceSummary, classes: Sequence[str] = (), labels: Mapping[int, int] | None = None,
    where: str = "", whose: str = "",
) -> None:  # fmt: skip
    """Print who helped and who harmed, how far influence reached, and how close the estimates are to the truth.

    `where` says where to find the rest, `whose` whose samples are shown if not everyone's.
    """
    rounds, kind = summary.rounds, next(iter(summary.updates), "")
    span = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    say(console, f"Influence of the updates in {span}: {meaning(kind, summary)}.")
    if kind:
        _print_participants(console, summary, kind, where)
    if sentence := adding_up(summary):
        say(console, sentence)
    if by_hop := summary.by_hop:
        title = "How far influence reaches (mean absolute influence of an update)"
        names = [f"{hop} hop{'s' * (hop > 1)}" for hop in range(max(map(len, by_hop.values())))]
        names[0] = "on itself, before gossip"
        rows = ((name, *(f"{values[hop]:.5f}" for values in by_hop.values())) for hop, name in enumerate(names))
        _print_table(console, title, by_hop, rows)
    if summary.samples:
        _print_samples(console, summary, next(iter(summary.samples)), whose, classes, labels)
    if summary.agreements or summary.sample_agreements:
        title = "How close the estimates are to the truth, update by update"
        agreements = summary.agreements | {f"{kind}, of samples": a for kind, a in summary.sample_agreements.items()}
        rows = (
            (n, f"{a.pearson:.4f}", f"{a.spearman:.4f}", _within(summary, n), f"{a.relative_rmse:.3f}")
            for n, a in agreements.items()
        )
        _print_table(console, title, ("Pearson", "Spearman", "within a round (range)", "relative RMSE"), rows)
    if tests := summary.test_results:
        say(console, f"mean test {tests[0].metric} of the participants: {in_words(tests)}")


def _within(summary: InfluenceSummary, kind: str) -> str:
    """The mean rank correlation within a round, and its range over rounds."""
    if kind not in summary.within_rounds:
        return ""
    mean, lowest, highest = summary.within_rounds[kind]
    return f"{mean:.2f}" + f" ({lowest:.2f} to {highest:.2f})" * (lowest < highest)


def _print_participants(console: Console, summary: InfluenceSummary, kind: str, where: str) -> None:
    """Print who helped and harmed most, how many more did, and who did neither."""
    found, bounds = sides(summary, kind), summary.bounds[kind]
    both, form = {"helped": found.helped, "harmed": found.harmed}, f"+.{decimals(summary.participants[kind])}f"
    columns = ["influence", "95 % interval"] if len(summary.rounds) > 1 else ["influence"]
    rows = (
        (f"{verb}  {with_faults(k, summary)}", f"{value:{form}}", f"{bounds.low[k]:{form}} to {bounds.high[k]:{form}}")
        for verb, side in both.items()
        for k, value in side[:MOST]
    )
    title = f"{headline(summary)} ({kind}, summed over rounds)"
    _print_table(console, title, columns, (row[: len(columns) + 1] for row in rows))
    if more := [f"{len(side) - MOST} more {verb}" for verb, side in both.items() if len(side) > MOST]:
        say(console, f"{' and '.join(more)}{where}")
    if noise := [f"{with_faults(k, summary)} {value:{form}}" for k, value in found.within_noise]:
        rest = f" and {len(noise) - MOST} more" if len(noise) > MOST else ""
        say(console, f"within noise (the interval includes 0): {', '.join(noise[:MOST])}{rest}")
    if idle := [with_faults(node, summary) for node in found.idle]:
        say(console, f"no influence: {', '.join(idle)}")
    if not summary.whole_run:
        say(console, NOT_FINAL)


def _print_samples(
    console: Console, summary: InfluenceSummary, kind: str, whose: str, classes: Sequence[str],
    labels: Mapping[int, int] | None,
) -> None:  # fmt: skip
    """Print the samples that clearly helped and harmed; if the order is in doubt, the lowest and highest scores."""
    samples, doubt = summary.samples[kind], caution(summary)
    if doubt:
        title, verbs = "Samples with the lowest and the highest scores", ("lowest", "highest")
        both = [[one for one in samples if one.value < 0], [one for one in samples[::-1] if one.value > 0]]
    else:
        title, verbs = "Samples that clearly helped and harmed, the largest first", ("helped", "harmed")
        both = clear_samples(samples)
    say(console, doubt or counted_samples(summary.verdicts[kind]))
    shown = [(verb, one) for verb, side in zip(verbs, both, strict=True) for one in side[:MOST]]
    digits = decimals([one.value for _, one in shown])
    rows = (
        (
            f"{verb}  {with_faults(one.node, summary)}",
            str(one.sample),
            "" if labels is None or not classes else classes[int(labels[one.sample])],
            str(one.uses),
            plus_minus(one.value, one.high - one.value if one.uses > 1 else None, digits),
        )
        for verb, one in shown
    )
    columns = ("sample", "true\nlabel", "uses", "influence ± 95 %")
    _print_table(console, f"{title} ({kind}{whose})", columns, rows, padding=2)


def meaning(kind: str, summary: InfluenceSummary) -> str:
    """What numbers of this kind are, and what their sign means."""
    if not kind.startswith("whole-run"):
        return f"the change of the weighted mean test loss. {SIGNS}"
    if kind == "whole-run shares":
        return f"each participant's share of what {summary.cause} did to the test loss of {summary.models}. {SIGNS}"
    return (
        f"how the test loss of {summary.models} changes with the weight of a participant's updates: a derivative, not "
        "the effect of leaving them out. Negative: more weight lowers the loss (helps); positive: more weight raises "
        "it (harms)"
    )


def caution(summary: InfluenceSummary) -> str:
    """Why the order of samples means little, if so: because of Adam, or because no sign is clear."""
    if not summary.samples:
        return ""
    if summary.whole_run and not summary.sees_scale:
        return (
            "Do not choose samples by these scores: Adam and clipping hide the size of gradients, and scores of "
            "samples may hardly predict training without them (LDS 0.1 to 0.3 for an MLP on images, 0.63 for a "
            "transformer on text, with Adam's usual ε of 1e-8: docs/retraining.md). A larger ε may help: train with "
            "--optimizer-options eps=1e-4 (in Python, cascadice.optimizers.adam(eps=1e-4) or torch.optim.Adam(…, "
            "eps=1e-4)). Run cascadice validate --of samples to see how it is here."
        )
    verdicts = set(next(iter(summary.verdicts.values())))
    if verdicts == {"used once"}:
        return "The order of samples may be noise: each was used once in these rounds, so its score has no interval."
    if verdicts & {"helped", "harmed"}:
        return ""
    return "The order of samples may be noise: no score has a 95 % interval that excludes 0."


def counted_samples(verdicts: Mapping[str, int]) -> str:
    """How many samples clearly helped and harmed, how many to expect by chance, and how many have no interval."""
    count = Counter(verdicts)
    once, several = count["used once"], count.total() - count["used once"]
    return (
        f"Of {several:,} samples used more than once, {count['helped']:,} clearly helped and {count['harmed']:,} "
        "clearly harmed: their 95 % intervals exclude 0. If none had any influence, at most about "
        f"{several / 40:.0f} would appear on each side."
        + (f" {once:,} more were used once and have no interval." if once else "")
    )


def headline(summary: InfluenceSummary) -> str:
    """A headline for the totals of participants; it claims help or harm only if some interval excludes 0."""
    found = sides(summary, next(iter(summary.updates)))
    if summary.whole_run:
        helped, harmed = f"Who helped {summary.models}", f"Who harmed {summary.models}"
        them = "them" if summary.models.endswith("models") else "it"
        both, neither = f"{helped}, and who harmed {them}", f"Nobody clearly helped or harmed {summary.models}"
    else:
        hops = summary.asked.get("hops")
        far = (
            "" if hops is None else " before any gossip" if hops == "0" else f" within {hops} hop{'s' * (hops != '1')}"
        )
        helped, harmed = f"Whose updates lowered the loss{far}", f"Whose updates raised the loss{far}"
        both, neither = f"{helped}, and whose raised it", f"Nobody's updates clearly lowered or raised the loss{far}"
    if found.helped and found.harmed:
        return both
    return helped if found.helped else harmed if found.harmed else neither


def as_sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def adding_up(summary: InfluenceSummary) -> str:
    """The sum of the whole-run shares beside what training changed; empty if there are none."""
    shares, change = summary.participants.get("whole-run shares"), summary.training_change
    if shares is None or change is None or np.isnan(shares).any():
        return ""
    points = more_points(int(summary.asked.get("points", POINTS)))
    more = f"Use more points: repeat the command with --points {points} --overwrite"
    return sum_in_words(float(shares.sum()), change, more, summary.cause)


def sum_in_words(total: float, change: float, advice: str, cause: str = "training") -> str:
    """The sum of shares beside what they divide; if it misses that, by how much, what intervals omit, and advice."""
    sums, error = f"shares sum to {total:+.4f}; {cause} changed the loss by {change:+.4f}", abs(total - change)
    if error <= NEAR * abs(change):
        return sums
    missed = f"do not even have the same sign as what {cause} changed"
    if total * change > 0:
        missed = f"miss what {cause} changed by {100 * error / abs(change):.0f} %"
    if error <= FAR * abs(change):
        return f"{sums}. The shares {missed}. {UNCOVERED}"
    return f"{sums}. The shares {missed}: do not read them as parts of a whole. {UNCOVERED}. {advice}. {ROUGH}"


def unfinished(note: Mapping[str, object], there: int) -> str:
    """A message that a table lacks requested rounds; empty if none is known to be missing."""
    planned = int(str(note.get(PLANNED, 0)))
    return f"{there} of {planned} rounds; repeat the command to finish" if there < planned else ""


def in_words(results: Sequence[EvaluationResult]) -> str:
    """The test results in words: "0.412 (round 3) -> 0.873 (round 39)"."""
    return " -> ".join(f"{result.mean:.3f} (round {result.t})" for result in results)


def _print_table(
    console: Console, title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]], padding: int = 3
) -> None:
    """Print a table whose first column, of names, has no heading; without rows, only its title."""
    console.print()
    console.print(title, style="bold", highlight=False, soft_wrap=True, markup=False)
    names, shown = ["", *columns], list(rows)
    if shown:
        console.print_table(names, shown, right=len(names), padding=padding)


def with_faults(node: int, summary: InfluenceSummary, value: str = "") -> str:
    """A participant with its injected faults, and a value if there is one."""
    details = [text for text in (summary.injected.get(node), value) if text]
    return f"participant {node}" + (f" ({', '.join(details)})" if details else "")
