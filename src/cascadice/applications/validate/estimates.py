"""The estimates that `cascadice validate` compares: a score for each participant or sample, over a whole run."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network, simulate
from cascadice.influence import score_rounds, whole_run_shares
from cascadice.influence.by_class import ByClass, unpack, whole_run_by_class
from cascadice.influence.readings import sample_contributions
from cascadice.influence.whole_run import WholeRun, whole_run
from cascadice.names import lookup

SCORED = 32  # rounds scored by estimates that look at single rounds; of longer runs, every N-th round
FEW_HOPS = 4


class Setting(NamedTuple):
    """What estimates are about: the run, the data its final models are evaluated on, and the subsets to predict.

    Attributes:
        rounds: How many rounds the run has; they are replayed.
        keep: The fraction of participants or samples that subsets keep, to the nearest whole number of them.
        samples: Whether samples are scored, or participants.
        recorded: Whether the run's folder has all its rounds, which `cascadice influence` needs to score them.
    """

    network: Network
    rounds: int
    evaluation: Evaluation
    keep: float = 0.8
    samples: bool = False
    recorded: bool = True

    @property
    def size(self) -> int:
        """How many samples or participants there are to score."""
        return len(self.network.data.train) if self.samples else self.network.nodes

    @property
    def kept(self) -> int:
        """How many of them each subset keeps."""
        return round(self.keep * self.size)

    @property
    def part(self) -> float:
        """The fraction that subsets actually keep: of 8 participants, 0.75 at keep=0.8."""
        return self.kept / self.size

    @property
    def every(self) -> int:
        """Estimates that look at single rounds score every N-th, which counts for N."""
        return -(-self.rounds // SCORED)

    @property
    def in_words(self) -> str:
        """What each subset keeps, e.g. "6 of 8 participants"."""
        return f"{self.kept} of {self.size} {self.what}"

    @property
    def what(self) -> str:
        """What is scored, in a word."""
        return "samples" if self.samples else "participants"


class Kind(NamedTuple):
    """An estimate that scores everybody over a whole run."""

    scores: Callable[[Setting], Tensor]
    name: str
    description: str
    how: str
    """How to compute it for itself: the end of a command, after --kind, or a function of the library."""
    trainings: int
    """About the least that it costs, for a forecast."""
    scoring: int = 0
    """About the least that scoring single rounds adds, if all of them are scored."""
    of_samples: bool = True
    unasked: bool = True
    """Whether it is checked by default."""
    by_class: bool = False
    """Whether it predicts class by class, with packed scores; the others predict by sums."""


def _over_run(setting: Setting, estimate: Callable[..., WholeRun], **options: Any) -> Tensor:
    run = estimate(setting.network, setting.rounds, setting.evaluation, samples=setting.samples, **options)
    return run.by_sample(setting.size) if setting.samples else run.participants


def _summed(setting: Setting, kind: str, hops: int) -> Tensor:
    """Sum scores of single rounds; if only every N-th round is scored, it counts for N rounds."""
    (network, rounds, evaluation, _, samples, _), every = setting, setting.every
    hops = min(hops, rounds)
    played = simulate(network, rounds, window=hops, taped=samples)
    results = score_rounds(network, played, evaluation, hops=hops, kinds=[kind], samples=samples, every=every)
    if samples:
        each = ((result.round, next(iter(result.samples.values()))) for result in results)
        return every * sample_contributions(each, setting.size).value
    totals = (one.cascades[0].total if one.cascades else next(iter(one.participants.values())) for one in results)
    return every * torch.stack([total.double().cpu() for total in totals]).sum(0)


ESTIMATES: Mapping[str, Kind] = {
    "whole-run": Kind(
        lambda setting: _over_run(setting, whole_run, at=setting.part), "whole-run at {part:.3g}",
        "how the final models' loss changes with its weight, at the fraction that subsets keep (`influence --kind "
        "whole-run` is at 1, unless given --at)", "whole-run --at {part}", 3,
    ),
    "whole-run-at-1": Kind(
        lambda setting: _over_run(setting, whole_run), "whole-run at 1",
        "how the final models' loss changes with its weight, in the run as it was", "whole-run", 3,
    ),
    "whole-run-at-0.5": Kind(
        lambda setting: _over_run(setting, whole_run, at=0.5), "whole-run at 0.5",
        "how the final models' loss changes with its weight, in a smoother run: that at half the learning rate",
        "whole-run --at 0.5", 3, unasked=False,
    ),
    "whole-run-by-class": Kind(
        lambda setting: whole_run_by_class(*setting[:3], at=setting.part).packed, "whole-run at {part:.3g}, by class",
        "as whole-run, for each class of the test data: better where participants hold different classes and many are "
        "left out; costs two trainings a class",
        "cascadice.influence.by_class.whole_run_by_class(…, at={part}) in Python", 22,
        of_samples=False, unasked=False, by_class=True,
    ),
    "whole-run-shares": Kind(
        lambda setting: _over_run(setting, whole_run_shares), "whole-run shares",
        "its share of what training as a whole did to the final models", "whole-run-shares", 10,
    ),
    "first-order": Kind(
        lambda setting: _summed(setting, "first-order", 1), "first order, 1 hop",
        "DICE-E one hop, summed over rounds", "first-order --hops 1", 1, scoring=4,
    ),
    "truth": Kind(
        lambda setting: _summed(setting, "truth", 1), "truth, 1 hop",
        "what each update really did within one hop, by replay, summed over rounds", "truth --hops 1", 1,
        scoring=12, of_samples=False,
    ),
    "shares": Kind(
        lambda setting: _summed(setting, "shares", FEW_HOPS), f"shares, {FEW_HOPS} hops",
        f"its share of what each round achieved within {FEW_HOPS} hops, summed over rounds",
        "shares --hops {hops}", 1, scoring=40,
    ),
}  # fmt: skip


def kinds_of(samples: bool) -> list[str]:
    """The kinds that score samples, or participants."""
    return [name for name, kind in ESTIMATES.items() if kind.of_samples or not samples]


def name_of(kind: str, setting: Setting) -> str:
    """The name of the estimate in tables and pictures."""
    return ESTIMATES[kind].name.format(part=setting.part)


def how_to_compute(kind: str, setting: Setting) -> str:
    """The command, where RUN is the run's folder, or the function of the library, that gives these scores.

    If only every N-th round is scored, it gives their sum, not N times as much.
    """
    (network, rounds, evaluation, *_), known = setting, ESTIMATES[kind]
    how = known.how.format(part=setting.part, hops=min(FEW_HOPS, rounds))
    if known.by_class:
        return how
    unrecorded = known.scoring and not setting.recorded
    command = f"run RUN --out RUN-scored --rounds {rounds}" if unrecorded else "influence RUN"
    every = f" --every {setting.every}" if known.scoring and setting.every > 1 else ""
    some = f" --eval-samples {n}" if (n := len(evaluation.y)) < len(network.data.test) else ""
    return f"cascadice {command} --kind {how}{every}{some}" + " --samples" * setting.samples


def estimate(kind: str, setting: Setting) -> Float[Tensor, " size"] | Float[Tensor, "classes columns"]:
    """Score every participant, or sample, over the whole run. Negative helped.

    Args:
        kind: A name of `ESTIMATES`.

    Returns:
        A score for each, whose sums over subsets predict networks trained on these subsets; or the packed scores of
        `ByClass`.

    Raises:
        ValueError: If there is no such kind, or it does not score samples.

    Example:
        >>> estimate("whole-run", Setting(network, 100, evaluate_on(network), keep=0.8))
    """
    check_kind(kind, setting.samples)
    return ESTIMATES[kind].scores(setting).double().cpu()


def read_scores(kind: str, setting: Setting, scores: Tensor) -> Tensor | ByClass:
    """The result of `estimate`, ready to predict."""
    return unpack(scores, setting.part) if ESTIMATES[kind].by_class else scores


def check_kind(kind: str, samples: bool) -> None:
    """Raise ValueError unless the estimate exists and, if `samples`, scores samples."""
    if not lookup(ESTIMATES, kind, "estimate").of_samples and samples:
        known = ", ".join(kinds_of(samples=True))
        raise ValueError(f"the estimate {kind!r} scores participants only. For samples use any of {known}.")
