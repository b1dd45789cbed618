"""The sentences of `cascadice detect`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cascadice.applications.detect.signals import SIGNALS
from cascadice.applications.writer import comma_separated

if TYPE_CHECKING:
    from cascadice.applications.detect.idea import Verdict

Row = Sequence[Any]  # participant, flagged by, heard by, since round, injected, because


def reason(verdict: "Verdict", node: int) -> str:
    """What those that flag this participant notice: the clearest signal, and a second one if beyond its threshold."""
    flags = verdict.flagged[node]
    if not flags.any():
        return ""
    deviation = verdict.deviation[:, node, flags]
    thresholds = deviation.abs().amax(0) / verdict.strength[node, flags]
    beyond = dict(zip(SIGNALS.values(), (deviation.mean(1) / thresholds.mean()).tolist(), strict=True))
    clearest, *others = sorted(beyond, key=lambda signal: -abs(beyond[signal]))
    named = [clearest, *(signal for signal in others[:1] if abs(beyond[signal]) > 1)]
    return ", and ".join(signal.above if beyond[signal] > 0 else signal.below for signal in named)


def sight_sentences(verdict: "Verdict") -> list[str]:
    """Who can tell at all, where not everyone can."""
    nodes = len(verdict.heard)
    blind = [k for k in range(nodes) if not verdict.able[:, k].any()]
    few = "fewer than three others, too few to tell which one is the odd one out"
    if len(blind) == nodes:
        return [f"Nobody can tell here: everyone hears {few}. Use a topology with more neighbours."]
    hear = "hear" if len(blind) > 1 else "hears"
    return [f"Only {nodes - len(blind)} of {nodes} can tell: {comma_separated(blind)} {hear} {few}."] if blind else []


def suspicion_sentences(verdict: "Verdict", rows: Sequence[Row], suspects: Sequence[int]) -> list[str]:
    """Who is flagged by at least half of its receivers and why, and who by fewer."""
    able = verdict.able.sum(1).tolist()
    sentences = []
    for node, flags, heard, since, _, because in (row for row in rows if row[0] in suspects):
        who = f"the {able[node]} that hear it{' and can tell' if able[node] < heard else ''}"
        what = f"{flags} of {who} flag it, the first since round {since}; {because}"
        sentences.append(f"Participant {node} is unlike the others: {what}.")
    if any(able) and not suspects:
        sentences.append("Nobody is flagged by half of those that hear it.")
    if few := [row[0] for row in rows if row[1] and row[0] not in suspects]:
        sentences.append(f"Flagged by fewer than half: {comma_separated(few)}.")
    return sentences


def injected_sentences(injected: Mapping[int, str], suspects: Sequence[int]) -> list[str]:
    """Which of the injected faults were found, where any were injected."""
    if not injected:
        return []
    names = ", ".join(f"{node} ({kind})" for node, kind in sorted(injected.items()))
    missed, wrong = sorted(set(injected) - set(suspects)), sorted(set(suspects) - set(injected))
    found = (
        f"Missed: {comma_separated(missed)}" if missed else f"{'All were' if len(injected) > 1 else 'It was'} flagged"
    )
    return [
        f"Injected: {names}. {found}; {f'wrongly flagged: {comma_separated(wrong)}' if wrong else 'no one else was'}."
    ]


def terms_sentence(rounds: int, options: Mapping[str, Any]) -> str:
    """On which terms participants were flagged: samples, rounds, and the false-alarm rate."""
    rate, allowance = f"{100 * options['rate']:g} % per link and check", options["allowance"]
    alike = f"{rate}, as long as honest participants' long-run scores differ by less than {allowance:g} (--allowance)"
    condition = f"about {rate}, however much honest participants differ (--unlike)" if options["unlike"] else alike
    return (
        f"Each participant evaluated its neighbours' updates on {options['samples']} of its own samples in each of "
        f"{rounds} rounds. False-alarm rate: {condition}. Votes count all receivers; no participant sees them alone."
    )
