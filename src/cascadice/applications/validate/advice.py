"""The sentences of `cascadice validate`: what a comparison of estimates with retrained networks means."""

from collections.abc import Iterator, Sequence
from math import isnan, log, sqrt

import torch.nn.functional as F
from torch import Tensor

from cascadice.applications.validate.estimates import Setting
from cascadice.applications.validate.idea import Checked
from cascadice.data.inputs import IGNORED
from cascadice.losses import cross_entropy

GOOD = 0.7  # LDS
SMOOTHER = (
    "The final loss may depend too roughly on what is left out. Smoother training is easier to predict: a lower "
    "learning rate for more rounds (docs/retraining.md shows what that did for a CNN), smooth activations or, under "
    "Adam, a larger ε (--optimizer-options eps=1e-4)."
)
FEWEST = 16  # subsets; with fewer, intervals by resampling are too narrow, and a perfect ranking has none at all


def advise(
    checked: Sequence[Checked], setting: Setting, trained: float, retrained: Tensor, quality: tuple[str, Tensor]
) -> Iterator[str]:
    """Whether the network learned, which estimates to trust, the best first, how that was measured, and its quality.

    `trained` is f of the run itself, `retrained` that of each subset's network; `quality` names a measure of the run's
    models and has its value for each.
    """
    if doubt := unlearned(setting, trained, quality):
        yield doubt
    yield trust(checked)
    if checked[0].how and checked[0].lds.low > 0:
        yield f"To compute it: {checked[0].how}."
    yield from _comparable(checked)
    if useless := [one for one in checked[1:] if one.lds.low <= 0 <= one.lds.high or isnan(one.lds.spearman)]:
        yield f"No better than guessing, as far as these subsets show: {_listed(useless)}."
    if not doubt and not checked[0].lds.spearman >= GOOD:
        yield SMOOTHER
    yield (
        f"LDS is the rank correlation of predicted and retrained test loss over {len(retrained)} random subsets, each "
        f"with {setting.in_words}; the 95 % interval is over these subsets of this run. Cost is in trainings of the "
        "run, by time."
    )
    measure, values = quality
    yield (
        f"The full run's test {measure} is {float(values.mean()):.3f} on average ({float(values.min()):.3f} to "
        f"{float(values.max()):.3f}). Its mean test loss is {trained:.4f}; networks trained on subsets had "
        f"{float(retrained.min()):.4f} to {float(retrained.max()):.4f}."
    )


def unlearned(setting: Setting, trained: float, quality: tuple[str, Tensor]) -> str:
    """What to say if the network is no better than chance, up to two standard errors of its accuracy; else ""."""
    (measure, values), data = quality, setting.network.data
    if measure != "accuracy":
        return ""
    targets = data.test.y[data.test.y != IGNORED]
    classes, accuracy = len(data.classes) or int(targets.max()) + 1, float(values.mean())
    if accuracy <= 1 / classes + 2 * sqrt((classes - 1) / targets.numel()) / classes:
        return (
            f"The network has not learned (test accuracy {accuracy:.2f} with {classes} classes): correlations mean "
            "little."
        )
    if setting.evaluation.measure in (cross_entropy, F.cross_entropy) and trained >= log(classes):
        return (
            f"The mean test loss ({trained:.3f}) is not below that of predicting all {classes} classes equally "
            f"({log(classes):.3f}): correlations mean little."
        )
    return ""


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
    few = f", from {len(best.predicted)} subsets only" if len(best.predicted) < FEWEST else ""
    care = " most, but with care" if best.lds.spearman < GOOD or few else ""
    which = f"trust {best.name}{care} ({figures}{few})"
    if best.lds.low <= 0:
        which = f"trust none of these estimates: the best is {best.name} ({figures}), and more --subsets may settle it"
    order = f"; {_listed(wrong)} rank{'s' * (len(wrong) == 1)} subsets the wrong way round" if wrong else ""
    return f"On your network, {which}{order}."


def _comparable(checked: Sequence[Checked]) -> Iterator[str]:
    """Which of the others may be as good as the best, and which are worse in nearly all resamples of the subsets."""
    best, *others = checked
    few, useful = len(best.predicted) < FEWEST, [one for one in others if best.lds.low > 0 and one.lds.low > 0]
    # as it is printed
    worse = [one for one in useful if not few and one.behind is not None and round(one.behind[0], 2) > 0]
    if alike := [one for one in useful if one not in worse]:
        start = f"Too few subsets ({len(best.predicted)}) to tell whether these are worse"
        sentence = f"{start if few else 'Not clearly worse'}: {_listed(alike, behind=not few)}."
        cheapest = min(alike, key=lambda one: one.trainings)
        if round(cheapest.trainings, 1) < round(best.trainings, 1):  # as they are printed
            sentence += f" {cheapest.name} is cheaper: {cheapest.trainings:.1f} trainings, not {best.trainings:.1f}."
        yield sentence
    if worse:
        yield f"Clearly worse: {_listed(worse, behind=True)}."


def _listed(checked: Sequence[Checked], behind: bool = False) -> str:
    *others, last = (
        f"{one.name} ({one.lds.spearman:.2f}"
        + (f"; {interval_text(*one.behind)} behind)" if behind and one.behind else ")")
        for one in checked
    )
    return f"{', '.join(others)} and {last}" if others else last


def interval_text(low: float, high: float) -> str:
    """An interval as it is printed; 0 has no sign."""
    return f"{round(low, 2) + 0.0:.2f} to {round(high, 2) + 0.0:.2f}"
