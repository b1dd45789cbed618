"""The findings about a run in plain words."""

from collections import Counter
from collections.abc import Sequence

from cascadice.runs.config import Config
from cascadice.runs.store import RoundMetrics
from cascadice.runs.summary import InfluenceSummary, ranked

NAMED = 3  # helpers and harmers
TOP = 20  # samples


def sentences(
    config: Config, nodes: int, rounds: int, measures: Sequence[RoundMetrics], asked: Sequence[InfluenceSummary]
) -> list[str]:
    """How good the network became, who helped and who harmed, how far it went, and how surely one knows."""
    found = [_training(config, nodes, rounds, measures)]
    for one in asked[:1]:
        found += [*_participants(one), *_distance(one), *_trust(one)]
    return found + [text for one in asked for text in _samples(one)][:1]


def _training(config: Config, nodes: int, rounds: int, measures: Sequence[RoundMetrics]) -> str:
    start = (
        f"{nodes} participants trained {config.model} on {config.data} together for {rounds} rounds, with no server."
    )
    judged = next((m.test for m in reversed(measures) if m.test is not None), None)
    if judged is None:
        return start
    named, values = ("accuracy", judged.accuracy) if not bool(judged.accuracy.isnan().any()) else ("loss", judged.loss)
    spread = f"from {float(values.min()):.3f} to {float(values.max()):.3f}"
    return f"{start} Their test {named} is {float(values.mean()):.3f} on average, {spread}."


def _name(node: int, found: InfluenceSummary) -> str:
    return f"participant {node}" + (f" ({found.known[node]})" if node in found.known else "")


def _participants(found: InfluenceSummary) -> list[str]:
    totals = next(iter(found.participants.values()), None)
    if totals is None:
        return []
    sides, texts = ranked(totals, NAMED), []
    for verb, side in zip(("helped", "harmed"), sides, strict=True):
        if side:
            names = _listed([f"{_name(node, found)} ({value:+.3g})" for node, value in side])
            texts.append(f"{_capital(names)} {verb} most.")
    if idle := [_name(node, found) for node, value in enumerate(totals) if value == 0]:
        texts.append(f"{_capital(_listed(idle[:NAMED]))} neither helped nor harmed.")
    return texts


def _distance(found: InfluenceSummary) -> list[str]:
    for values in found.by_hop.values():
        if len(values) > 1 and values[0] > 0:
            hops = [f"{value:.3g} ({value / values[0]:.0%}) at hop {hop}" for hop, value in enumerate(values)]
            start = f"The mean size of an update's influence is {values[0]:.3g} on its own participant"
            return [f"{start}, {_listed(hops[1 : NAMED + 1])}."]
    return []


def _trust(found: InfluenceSummary) -> list[str]:
    if not found.agreements:
        return []
    named = [
        f"{kind}: Pearson {a.pearson:.3f}, relative RMSE {a.relative_rmse:.3f}" for kind, a in found.agreements.items()
    ]
    return [f"Against the truth, update by update; {'; '.join(named)}."]


def _samples(found: InfluenceSummary) -> list[str]:
    for kind, scored in found.samples.items():
        worst = [one for one in scored[: -TOP - 1 : -1] if one.value > 0]
        if worst:
            (node, count), *_ = Counter(one.node for one in worst).most_common(1)
            return [f"Of the {len(worst)} samples that harmed most ({kind}), {count} belong to {_name(node, found)}."]
    return []


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
