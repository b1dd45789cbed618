"""The sentences of `cascadice validate`: what a comparison of estimates with retrained networks means."""

from collections.abc import Sequence
from math import isnan

from torch import Tensor

from cascadice.applications.validate.estimates import Setting
from cascadice.applications.validate.idea import Checked

GOOD = 0.7  # LDS
FEWEST = 16  # subsets; with fewer, intervals by resampling are too narrow, and a perfect ranking has none at all


def advise(
    checked: Sequence[Checked], setting: Setting, trained: float, retrained: Tensor, quality: tuple[str, Tensor]
) -> list[str]:
    """Which estimates to trust, how that was measured, and how good the network is.

    Args:
        checked: Estimates, the best first.
        trained: f of the run itself.
        retrained: f of the network trained on each subset.
        quality: The name of the measure of the run's models, and its value for each model.
    """
    measure, values = quality
    low, high = float(retrained.min()), float(retrained.max())
    spread = f"{float(values.min()):.3f} to {float(values.max()):.3f}"
    useless = [one for one in checked[1:] if one.lds.low <= 0 <= one.lds.high or isnan(one.lds.spearman)]
    return [
        trust(checked),
        *_comparable(checked),
        *([f"No better than guessing, as far as these subsets show: {_listed(useless)}."] if useless else []),
        f"LDS is the rank correlation of predicted and retrained test loss over {len(retrained)} random subsets, each "
        f"with {setting.in_words}; the 95 % interval is over these subsets of this run. "
        "Cost is in trainings of the run, by time.",
        f"The full run's test {measure} is {float(values.mean()):.3f} on average ({spread}). Its mean test loss is "
        f"{trained:.4f}; networks trained on subsets had {low:.4f} to {high:.4f}.",
    ]


def trust(checked: Sequence[Checked]) -> str:
    """Name the estimate to trust, and those that rank subsets the wrong way round.

    Args:
        checked: From `validate`: estimates, the best first.

    Returns:
        A sentence.

    Example:
        >>> trust(validate(setting))
        'On your network, trust whole-run at 0.8 (LDS 0.93, 0.87 to 0.97); truth, 1 hop (-0.41) ranks subsets the …'
    """
    best, wrong = checked[0], [one for one in checked if one.lds.high < 0]
    if isnan(best.lds.spearman):
        return "No estimate distinguishes subsets on your network, or all subsets gave the same loss."
    figures = f"LDS {best.lds.spearman:.2f}, {best.lds.low:.2f} to {best.lds.high:.2f}"
    few = f", from {len(best.predicted)} subsets only" if _too_few(best) else ""
    care = " most, but with care" if best.lds.spearman < GOOD or few else ""
    sentence = f"On your network, trust {best.name}{care} ({figures}{few})"
    if best.lds.low <= 0:
        none = "trust none of these estimates"
        sentence = f"On your network, {none}: the best is {best.name} ({figures}), and more --subsets may settle it"
    if wrong:
        verb = "rank" if len(wrong) > 1 else "ranks"
        sentence += f"; {_listed(wrong)} {verb} subsets the wrong way round"
    return f"{sentence}."


def _too_few(best: Checked) -> bool:
    """Whether there are too few subsets to call another estimate clearly worse than this one."""
    return len(best.predicted) < FEWEST


def _comparable(checked: Sequence[Checked]) -> list[str]:
    """Which of the others may be as good as the best, and which are clearly worse."""
    best, *others = checked
    few, useful = _too_few(best), [one for one in others if best.lds.low > 0 and one.lds.low > 0]
    worse = [] if few else [one for one in useful if _clearly_behind(one)]
    alike = [one for one in useful if one not in worse]
    sentences = [f"Clearly worse: {_listed(worse, behind=True)}."] if worse else []
    if not alike:
        return sentences
    start = f"Too few subsets ({len(best.predicted)}) to tell whether these are worse" if few else "Not clearly worse"
    cheapest, sentence = min(alike, key=lambda one: one.trainings), f"{start}: {_listed(alike, behind=not few)}."
    if round(cheapest.trainings, 1) < round(best.trainings, 1):  # as they are printed
        sentence += f" {cheapest.name} is cheaper: {cheapest.trainings:.1f} trainings, not {best.trainings:.1f}."
    return [sentence, *sentences]


def _clearly_behind(one: Checked) -> bool:
    """Whether it is worse than the best in nearly all resamples of the subsets."""
    return one.behind is not None and round(one.behind[0], 2) > 0  # as it is printed


def _listed(checked: Sequence[Checked], behind: bool = False) -> str:
    words = [f"{one.name} ({one.lds.spearman:.2f}{_behind(one) if behind else ''})" for one in checked]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _behind(one: Checked) -> str:
    return "" if one.behind is None else f"; {interval_text(*one.behind)} behind"


def interval_text(low: float, high: float) -> str:
    """An interval as it is printed; 0 has no sign."""
    return f"{round(low, 2) + 0.0:.2f} to {round(high, 2) + 0.0:.2f}"
