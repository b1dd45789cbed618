"""The sentences of `cascadice choose`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cascadice.applications.choose.groups import ALONE
from cascadice.applications.detect.evidence import LEAST
from cascadice.applications.writer import comma_separated
from cascadice.engine.exchange.geometry import neighbours
from cascadice.runs import store

if TYPE_CHECKING:
    from torch import Tensor

    from cascadice.applications.choose.balance import Advice
    from cascadice.runs.recording import Recording

MOST_GENEROUS = 5  # participants that are named


def group_sentences(groups: Sequence[int]) -> list[str]:
    """Who helps whom, group by group, and who is in none."""
    members = {group: [k for k, g in enumerate(groups) if g == group] for group in sorted(set(groups))}
    alone = members.pop(ALONE, [])
    sentences = [f"Group {group}: {comma_separated(nodes)} help one another." for group, nodes in members.items()]
    return sentences + ([f"In no group: {comma_separated(alone)}."] if alone else [])


def advice_sentences(advice: Sequence["Advice"], gave: "Tensor", took: "Tensor") -> list[str]:
    """Whom to expel or move, and who gives more than it takes."""
    sentences = [f"Participant {a.node}: {a.verdict}; {a.reason}." for a in advice if a.verdict in ("expel", "move")]
    generous = [k for k in (took - gave).argsort(stable=True).tolist() if gave[k] > max(float(took[k]), 0)]
    if generous:
        names = comma_separated(generous[:MOST_GENEROUS])
        sentences.append(f"Giving more than they take, the most generous first: {names}.")
    return sentences


def mixing_sentences(W: "Tensor", suggested: "Tensor", degree: int | None) -> list[str]:
    """What the suggested W changes, and whether it leaves participants too few neighbours."""
    before, after = neighbours(W), neighbours(suggested)
    dropped, added = int((before & ~after).sum()), int((after & ~before).sum())
    sentences = [f"The suggested W drops {dropped} of {int(before.sum())} links and adds {added}."]
    if degree is not None and degree < LEAST:
        few = f"{degree} neighbour{'s are' if degree > 1 else ' is'} too few to tell which one is the odd one out"
        mixing = ", and too few to mix: what one participant learns hardly reaches the others" if degree == 1 else ""
        sentences.append(f"Warning: {few}{mixing}.")
    return sentences


def accuracy_sentences(recording: "Recording") -> list[str]:
    """How good the run's models were in the end, where that was measured."""
    metrics = store.read_metrics(recording.folder) if (recording.folder / store.METRICS).exists() else []
    accuracy = next((m.test.accuracy for m in reversed(metrics) if m.test is not None), None)
    if accuracy is None or bool(accuracy.isnan().any()):
        return []
    spread = f"{accuracy.min():.3f} to {accuracy.max():.3f}"
    return [f"The run's test accuracy was {accuracy.mean():.3f} on average ({spread})."]
