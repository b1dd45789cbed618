"""The scores of a batch's samples by other libraries, set up beforehand: what is called is only the computation.

All give what `influence.by_sample` gives for the direct effect (hop 0) of one participant,

    score_i = −η/B ∇ℓ_i(θ)ᵀ ∇L(θ; z')        ℓ: cross-entropy, L: its mean over the evaluation data

and are told to be as fast as they can: the evaluation gradient aggregated, the whole batch at once, nothing on disk.
`make peers` installs them.
"""

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

Scores = Callable[[], Tensor]


def captum_scores(model: nn.Module, x: Tensor, y: Tensor, x_eval: Tensor, y_eval: Tensor, lr: float) -> Scores:
    """By captum's TracInCP at one checkpoint, all gradients of a batch by its activation × backprop trick."""
    from captum.influence import TracInCP

    tracin = TracInCP(
        deepcopy(model),
        whole(x, y),
        checkpoints=["as it is"],
        checkpoints_load_func=lambda model, checkpoint: lr,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        sample_wise_grads_per_batch=True,
    )
    evaluation, scale = whole(x_eval, y_eval), -1 / (len(y) * len(y_eval))

    def scores() -> Tensor:
        found: Tensor = tracin.influence(evaluation, aggregate=True)
        return scale * found[0]

    return quiet(scores)


def kronfluence_scores(model: nn.Module, x: Tensor, y: Tensor, x_eval: Tensor, y_eval: Tensor, lr: float) -> Scores:
    """By kronfluence with the identity for a Hessian and aggregated queries, below the layer that writes to disk."""
    from kronfluence.analyzer import prepare_model
    from kronfluence.score.pairwise import compute_pairwise_query_aggregated_scores_with_loaders
    from kronfluence.utils.state import State

    task, (factor, score) = classification(), arguments(x)
    prepared = prepare_model(deepcopy(model), task)
    query, train, state = whole(x_eval, y_eval), whole(x, y), State(cpu=not x.is_cuda)
    scale = -lr / len(y)

    def scores() -> Tensor:
        found = compute_pairwise_query_aggregated_scores_with_loaders(
            loaded_factors={}, model=prepared, state=state, task=task, query_loader=query,
            per_device_query_batch_size=1, train_loader=train, score_args=score, factor_args=factor,
            tracked_module_names=None, disable_tqdm=True,
        )  # fmt: skip
        all_modules: Tensor = found["all_modules"]
        return scale * all_modules[0]

    return quiet(scores)


def quiet(scores: Scores) -> Scores:
    """Without warnings at every call: captum differentiates inputs and says so, kronfluence uses what torch retires."""

    def silently() -> Tensor:
        with warnings.catch_warnings(action="ignore"):
            return scores()

    return silently


def whole(x: Tensor, y: Tensor) -> "DataLoader[Any]":
    """All of it as one batch, as it lies: no time goes into stacking samples."""
    return DataLoader([(x, y)], batch_size=None)  # type: ignore[arg-type]


def classification() -> Any:
    """kronfluence's task: cross-entropy, summed over training samples, averaged over those of the evaluation."""
    from kronfluence.task import Task

    class Classification(Task):
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            x, y = batch
            return cross_entropy(model(x), y, reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            x, y = batch
            return cross_entropy(model(x), y)

    return Classification()


def arguments(like: Tensor) -> tuple[Any, Any]:
    """kronfluence's arguments for factors and scores: the identity, aggregated queries, everything as precise as x."""
    from kronfluence.arguments import FactorArguments, ScoreArguments

    names = ("query_gradient_svd_dtype", "per_sample_gradient_dtype", "precondition_dtype", "score_dtype")
    precision = dict.fromkeys(names, like.dtype)
    return FactorArguments(strategy="identity"), ScoreArguments(aggregate_query_gradients=True, **precision)
