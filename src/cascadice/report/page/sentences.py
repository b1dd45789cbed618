"""The findings about a run in plain English."""

from collections import Counter
from collections.abc import Sequence

from cascadice.engine import Metrics
from cascadice.influence.uncertainty import plus_minus
from cascadice.runs.config import Config
from cascadice.runs.round_metrics import RoundMetrics, quality
from cascadice.runs.summary import InfluenceSummary, clear_samples, sides
from cascadice.runs.words import adding_up, as_sentence, caution, meaning, unfinished, with_faults

NAMED = 3  # participants named on each side
TOP = 20  # samples
INTERVALS = "± is a 95 % interval, from how much the influence varies between rounds."
SIGNS = "Influence is the change in loss that an update caused: negative = the loss went down = it helped."


def sentences(
    config: Config, nodes: int, rounds: int, metrics: Sequence[RoundMetrics], summaries: Sequence[InfluenceSummary],
    tokens: bool = False,
) -> list[str]:  # fmt: skip
    """How good the models are, who helped and who harmed, how far it went, and how accurate the estimates are.

    `tokens` says that targets are tokens: then the loss says more than the accuracy.
    """
    texts = [_training(config, nodes, rounds, metrics, tokens)]
    whole, rounds_of = ([one for one in summaries if one.whole_run is final] for final in (True, False))
    for summary in whole[:1]:
        texts += [f"Influence is {meaning(next(iter(summary.updates)), summary)}.", *final_models(summary)]
    for summary in rounds_of[:1]:
        about = [] if whole else [SIGNS, *_participants(summary)]
        part = unfinished(summary.asked, len(summary.rounds))
        texts += [*([f"What follows is of {part}."] if part else []), *about, *_distance(summary), *_accuracy(summary)]
    return texts + [text for summary in (*whole, *rounds_of) for text in _samples(summary)][:1]


def final_models(summary: InfluenceSummary) -> list[str]:
    """Who helped the final models that were measured, who harmed them, doubt of slopes, and whether shares add up."""
    notes = [as_sentence(text) for text in (summary.doubt, adding_up(summary)) if text]
    return [*_participants(summary, f" {summary.models}"), *notes]


def _training(config: Config, nodes: int, rounds: int, metrics: Sequence[RoundMetrics], tokens: bool) -> str:
    together = f"{config.model} on {config.data} together for {rounds} rounds"
    start = f"{nodes} participants trained {together}, with no server."
    test = next((m.test for m in reversed(metrics) if m.test is not None), None)
    if test is None:
        return start
    name, values = ("loss", test.loss) if tokens else quality(test)
    values = values[~values.isnan()]  # of those whose folder it is
    spread = f"from {float(values.min()):.3f} to {float(values.max()):.3f}"
    whose = "Their" if len(values) == nodes else f"Those of this process are {len(values)}; their"
    end = _of_tokens(config, test) if tokens else ""
    return f"{start} {whose} test {name} is {float(values.mean()):.3f} on average, {spread}{end}."


def _of_tokens(config: Config, test: Metrics) -> str:
    """The end of the sentence about a loss of tokens: the perplexity, and how many of them are right."""
    right, perplexed = float(test.accuracy.nanmean()), float(test.loss.nanmean().exp())
    perplexity = f" (perplexity {perplexed:.3g}, e to the mean loss)" if config.loss == "cross-entropy" else ""
    return perplexity + (f"; {100 * right:.1f} % of tokens are right" if right == right else "")


def _participants(summary: InfluenceSummary, whom: str = "") -> list[str]:
    kind = next(iter(summary.updates), None)
    if kind is None:
        return []
    found, bounds, texts = sides(summary, kind), summary.bounds[kind], []
    for verb, side in (("helped", found.helped), ("harmed", found.harmed)):
        if side:
            most = [
                with_faults(node, summary, plus_minus(value, float(bounds.high[node]) - value))
                for node, value in side[:NAMED]
            ]
            texts.append(f"{_listed(most)} {verb}{whom}{' most' * (len(side) > 1)}.")
    if noise := [with_faults(node, summary) for node, _ in found.within_noise]:
        few = _listed(noise) if len(noise) <= NAMED else f"{len(noise)} participants"
        texts.append(f"Within noise (the interval includes 0): {few}.")
    if idle := [with_faults(node, summary) for node in found.idle]:
        texts.append(f"{_listed(idle[:NAMED])} had no influence.")
    if texts and len(summary.rounds) > 1:
        texts.append(INTERVALS)
    return [text[0].upper() + text[1:] for text in texts]


def _distance(summary: InfluenceSummary) -> list[str]:
    for values in summary.by_hop.values():
        if len(values) > 1 and values[0] > 0:
            hops = [f"{value:.3g} ({100 * value / values[0]:.0f} %) at hop {hop}" for hop, value in enumerate(values)]
            start = f"The mean size of an update's influence is {values[0]:.3g} on its own participant before gossip"
            return [f"{start} (hop 0), {_listed(hops[1 : NAMED + 1])}."]
    return []


def _accuracy(summary: InfluenceSummary) -> list[str]:
    how_close = "{} has Pearson correlation {:.3f} over all rounds, {}relative RMSE {:.3f}"
    texts = [
        how_close.format(
            kind, a.pearson, f"mean rank correlation {within[0]:.2f} within a round, " * bool(within), a.relative_rmse
        )
        for kind, a in summary.agreements.items()
        for within in (summary.within_rounds.get(kind, ()),)
    ]
    return [f"Compared with the truth, update by update: {'; '.join(texts)}."] if texts else []


def _samples(summary: InfluenceSummary) -> list[str]:
    if caution(summary):
        return []
    for kind, scores in summary.samples.items():
        worst = [score.node for score in clear_samples(scores)[1][:TOP]]
        if worst:
            (node, count), *_ = Counter(worst).most_common(1)
            owner, which = with_faults(node, summary), f"samples with the largest clear harm ({kind})"
            return [f"Of the {len(worst)} {which}, {count} belong to {owner}."]
    return []


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
