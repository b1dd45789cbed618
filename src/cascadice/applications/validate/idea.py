"""Find out which estimates of influence to trust: each predicts the loss of networks trained on random subsets.

    f(S) = Σ_k q_k L(θ_k^T) of the network trained with the subset S        predicted: Σ_{i ∈ S} score_i

The linear datamodeling score (LDS) of an estimate is the rank correlation of the two over subsets: 1 where it ranks all
subsets as training does, 0 where it says nothing, below 0 where it ranks them the wrong way round.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from math import comb, isfinite, nan
from time import perf_counter
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.applications.validate.estimates import (
    ESTIMATES,
    Setting,
    check_kind,
    estimate,
    how_to_compute,
    kinds_of,
    name_of,
    read_scores,
)
from cascadice.engine import DivergedError, Operator, Participants, draw, simulate
from cascadice.influence.by_class import ByClass
from cascadice.influence.checks import check_samples_are_separate
from cascadice.influence.full_horizon import changed_statistic
from cascadice.influence.retraining import Prediction, paired_advantage, predicts, random_subsets, retrain, without_each

LEAST = 4  # subsets; a rank correlation of fewer says nothing
TOGETHER = {"cpu": 8, "cuda": 48}  # networks trained side by side, then saved; on a CPU more gain little
SUBSETS, EACH, COST = "subsets", "with one left out", "{}: trainings"  # names of results, beside those of estimates
QUICK = 60.0  # seconds; shorter trainings are timed twice, because the first one also warms up the machine
NOTHING = Prediction(nan, nan, nan, nan)


class Trained(NamedTuple):
    """The run itself: its final models, f of them, and how long one training takes."""

    models: Participants
    value: float
    seconds: float


class Plan(NamedTuple):
    """What to compute: estimates by name, the subsets to predict, and whether to leave out each participant in turn."""

    kinds: tuple[str, ...]
    subsets: Float[Tensor, "subsets size"]
    leave_one_out: bool

    @property
    def networks(self) -> dict[str, Tensor]:
        """What the networks to train keep, by the name of their results."""
        each = without_each(self.subsets.shape[1]) if self.leave_one_out else self.subsets[:0]
        return {SUBSETS: self.subsets, EACH: each}


Results = dict[str, Tensor]
"""Results so far: scores and cost of each estimate, and f of the retrained networks."""


class Checked(NamedTuple):
    """An estimate compared with retrained networks.

    Attributes:
        predicted: Predicted f of each subset: the sum of its scores, unless the estimate predicts by class.
        lds: How well this predicts f of the networks trained on the subsets.
        leaving_out: How well scores predict f(1) − f(1 − e_j), if that was measured.
        trainings: The cost of the estimate: its time divided by that of one training.
        behind: How much lower its LDS is than that of the best estimate: a 95 % interval, by resampling the same
            subsets for both. None for the best itself.
        how: How to compute the estimate for itself, if it is one of `ESTIMATES`.
    """

    name: str
    predicted: Float[Tensor, " subsets"]
    lds: Prediction
    leaving_out: Prediction | None
    trainings: float
    behind: tuple[float, float] | None = None
    how: str = ""


def train(setting: Setting) -> Trained:
    """Train the network as it is, and time it: twice where that is quick, and the faster counts."""
    first = _train(setting)
    return first if first.seconds > QUICK else min(first, _train(setting), key=lambda trained: trained.seconds)


def _train(setting: Setting) -> Trained:
    network, began = setting.network, perf_counter()
    *_, last = simulate(network, setting.rounds, window=0)
    losses = Operator(network).losses(setting.evaluation, last.after, range(network.nodes))
    value = float((network.weights * losses).sum())  # on CUDA this waits for training to end
    return Trained(last.after, value, perf_counter() - began)


def distinct_subsets(size: int, keep: float, count: int, seed: int = 0) -> Float[Tensor, "subsets size"]:
    """Draw `count` random subsets, all different, or all that exist. A larger count begins with the same subsets."""
    subsets = random_subsets(size, keep, count, seed)
    if len(subsets) < LEAST:
        kept = round(keep * size)
        raise ValueError(
            f"at least {LEAST} different subsets are needed to compare estimates; found {len(subsets)}, of "
            f"{comb(size, kept)} that keep {kept} of {size}. Ask for more, or for another part to keep."
        )
    return subsets


def check(
    name: str, scores: Float[Tensor, " size"] | ByClass, trainings: float, subsets: Float[Tensor, "subsets size"],
    retrained: Float[Tensor, " subsets"], left_out: Float[Tensor, " n"] | None = None,
) -> Checked:  # fmt: skip
    """Compare an estimate with retrained networks.

    Args:
        scores: A score for each participant or sample, negative helped; or the classes to predict by.
        trainings: What the scores cost, in trainings.
        subsets: Rows of 0 and 1.
        retrained: f of the network trained on each subset.
        left_out: What leaving out each participant changed, from `leave_one_out`.

    Returns:
        The comparison.

    Example:
        >>> check("mine", scores, 1.0, subsets, retrain(network, 100, evaluation, updates=subsets)).lds
    """
    predicted = _predicted(scores, subsets)
    leaving_out = None
    if left_out is not None:
        everybody, *without = _predicted(scores, torch.cat([torch.ones(1, len(left_out)), without_each(len(left_out))]))
        leaving_out = _predicts(everybody - torch.stack(without), left_out)
    return Checked(name, predicted, _predicts(predicted, retrained), leaving_out, trainings)


def _predicted(scores: Tensor | ByClass, subsets: Tensor) -> Tensor:
    """Predicted f of networks trained on the subsets; for sums of scores, up to a constant."""
    return scores.predicted(subsets) if isinstance(scores, ByClass) else subsets.double() @ scores.double()


def _predicts(predicted: Tensor, measured: Tensor) -> Prediction:
    """How well one predicts the other; NaN if either is constant, because then there is nothing to rank."""
    vary = all(bool((values != values[0]).any()) for values in (predicted, measured))
    return predicts(predicted, measured) if vary else NOTHING


def validate(
    setting: Setting, *, subsets: int = 48, kinds: Sequence[str] | str | None = None, leave_one_out: bool = False,
    seed: int = 0,
) -> list[Checked]:  # fmt: skip
    """Compare estimates of influence with networks trained on random subsets.

    Cost: `subsets` trainings, one more for each participant with `leave_one_out`, and the estimates.

    Args:
        setting: The network, its length, its evaluation, and what subsets keep.
        subsets: How many networks to train.
        kinds: Names of `ESTIMATES`, or one; by default all usual ones that score what subsets are made of.
        leave_one_out: Also leave out each participant in turn.
        seed: Seed of the random subsets.

    Returns:
        The estimates, the best first.

    Raises:
        ValueError: If subsets would keep nobody or everybody, or are too few; if a kind does not score samples.
        DivergedError: If a network diverges.

    Example:
        >>> best, *others = validate(Setting(network, 100, evaluate_on(network), keep=0.8))
        >>> best.name, best.lds.spearman
    """
    chosen = distinct_subsets(setting.size, setting.keep, subsets, seed)
    plan = make_plan(setting, chosen, kinds, leave_one_out)
    trained, results = train(setting), Results()
    deque(steps(setting, plan, trained, results), maxlen=0)
    return compare(setting, plan, trained, results)


def make_plan(
    setting: Setting, subsets: Float[Tensor, "subsets size"], kinds: Sequence[str] | str | None, leave_one_out: bool,
    kept: Results | None = None,
) -> Plan:  # fmt: skip
    """Plan what to compute, and to compare with what is kept of earlier calls; ValueError if it cannot be computed."""
    kept = kept or {}
    usable, statistic = _usable(setting)
    usual = [kind for kind in usable if ESTIMATES[kind].unasked]
    names = usual if kinds is None else [kinds] if isinstance(kinds, str) else list(kinds)
    for name in names:
        check_kind(name, setting.samples)
        if name not in usable:
            raise ValueError(
                f"the estimate {name!r} does not follow changes of running statistics; {statistic!r} changes in "
                f"training. Use any of {', '.join(usable)}, or GroupNorm or LayerNorm in the model."
            )
    if not names or len(set(names)) < len(names):
        found = ", ".join(names) or "none"
        raise ValueError(f"there must be at least one estimate to check, each once; found {found}.")
    if leave_one_out and setting.samples:
        raise ValueError(
            f"samples are too many to leave each of {setting.size} out in turn. Leave out participants in turn, or "
            "check random subsets of the samples alone."
        )
    before = [kind for kind in ESTIMATES if kind in kept]
    left_out_before = len(kept.get(EACH, ())) == setting.size
    return Plan(tuple(dict.fromkeys([*names, *before])), subsets, leave_one_out or left_out_before)


def _usable(setting: Setting) -> tuple[list[str], str]:
    """The kinds that can be computed, and the name of a running statistic that whole-run estimates cannot follow."""
    network = setting.network
    if setting.samples:
        check_samples_are_separate(network, draw(network, 0), network.initial)
    statistic = changed_statistic(next(simulate(network, 1))) if network.initial.buffers else ""
    kinds = kinds_of(setting.samples)
    return [kind for kind in kinds if not (statistic and kind.startswith("whole-run"))], statistic


def steps(setting: Setting, plan: Plan, trained: Trained, results: Results) -> Iterator[str]:
    """Add what `results` lack, step by step; each step yields what was done.

    If results are saved after each step, an interrupted call can continue.
    """
    for kind in plan.kinds:
        if kind not in results:
            began = perf_counter()
            try:
                results[kind] = estimate(kind, setting)
            except DivergedError as error:
                raise _diverged(error, kind, plan, setting) from None
            results[COST.format(kind)] = torch.tensor((perf_counter() - began) / trained.seconds, dtype=torch.float64)
        yield f"estimated {name_of(kind, setting)}"
    for name, subsets in plan.networks.items():
        for chunk in chunks(setting, len(subsets)):
            done = results.get(name, subsets.new_zeros(0))
            if len(done) < chunk.stop:
                fresh = range(len(done), chunk.stop)
                results[name] = torch.cat([done, _train_subsets(setting, subsets, fresh)])
            yield f"trained {chunk.stop} of {len(subsets)} {name}"


def _diverged(error: DivergedError, kind: str, plan: Plan, setting: Setting) -> DivergedError:
    """The same error, saying which estimate diverged and how to check the others."""
    others = ",".join(one for one in plan.kinds if one != kind)
    advice = f" To check the other estimates alone, use --kinds {others}." if others else ""
    which = f"in the estimate {name_of(kind, setting)!r}, "
    return DivergedError(error.t, error.node, f"{error.remedy}{advice}", which, error.sent)


def chunks(setting: Setting, count: int) -> list[range]:
    """Networks to train side by side before their results are saved."""
    size = TOGETHER[setting.network.device.type]
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def _train_subsets(setting: Setting, subsets: Tensor, numbers: range) -> Tensor:
    network, rounds, evaluation, *_ = setting
    rows, names = subsets[numbers.start : numbers.stop], []
    for number, row in zip(numbers, rows, strict=True):
        absent = (row == 0).nonzero().flatten().tolist()
        if setting.samples:
            names.append(f"the network of subset {number}, without {len(absent)} of {len(row)} samples")
        else:
            names.append(f"the network without participant{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}")
    updates, samples = (None, rows) if setting.samples else (rows, None)
    values = retrain(network, rounds, evaluation, updates=updates, samples=samples, names=names)
    if not bool(values.isfinite().all()):
        name = names[int((~values.isfinite()).nonzero()[0])]
        raise ArithmeticError(f"in {name}, the final loss is NaN or infinite. Lower the learning rate.")
    return values


def compare(setting: Setting, plan: Plan, trained: Trained, results: Results) -> list[Checked]:
    """Compare each estimate with the retrained networks; the best first."""
    retrained = results[SUBSETS][: len(plan.subsets)]
    left_out = trained.value - results[EACH] if plan.leave_one_out else None
    checked = [
        check(name_of(kind, setting), read_scores(kind, setting, results[kind]), float(results[COST.format(kind)]),
              plan.subsets, retrained, left_out)._replace(how=how_to_compute(kind, setting))
        for kind in plan.kinds
    ]  # fmt: skip
    return ranked(checked, retrained)


def ranked(checked: Sequence[Checked], retrained: Float[Tensor, " subsets"]) -> list[Checked]:
    """Sort estimates, the best first, and add how far the others are behind it."""
    best, *others = sorted(checked, key=lambda one: -one.lds.spearman if isfinite(one.lds.spearman) else 2.0)
    behind = (paired_advantage(best.predicted, one.predicted, retrained) for one in others)
    return [best, *(one._replace(behind=interval) for one, interval in zip(others, behind, strict=True))]
