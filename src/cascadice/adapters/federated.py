"""Influence in federated learning: whose updates helped the global model and, if clients report their steps, more.

A round of federated averaging is a round of gossip in which everyone gives client j the same weight:

    θ_k^{t+½} = O_k(θ^t, z_k^t)        θ^{t+1} = Σ_j W[k, j] θ_j^{t+½}        W[k, j] = n_j / Σ_i n_i

so every estimator applies.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cascadice.data import DataSet, Samples
from cascadice.data.inputs import stacked
from cascadice.data.samples import WATCHED
from cascadice.engine import Draw, Evaluation, Network, Recorder, Round, evaluate_on
from cascadice.engine.learner import Participants, flatten, learner
from cascadice.engine.torch_optim import group_places, pure_version, settings
from cascadice.influence import by_participant, truth
from cascadice.influence.shares import mean_adjoint
from cascadice.losses import Loss
from cascadice.optimizers import Optimizer, State

PROBE = 8  # samples of the batch that a replay needs, although fixed updates ignore it

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Step = tuple[float, Tensor, Tensor]
"""The learning rate, inputs and targets of a local step."""


class Reply(NamedTuple):
    """What a client sent: its number and weight, its model's state, and its steps, if it reports them."""

    client: int
    weight: float
    model: dict[str, Tensor]
    steps: Sequence[Step] = ()


class Watch:
    """Watches the rounds of a server and its clients, and measures who helped.

    Without an optimizer, clients need not report anything, and `one_hop` and `shares` work. With one, every reply must
    contain the client's steps, and `network` and `rounds` work too, for `cd.score` and every estimator.

    Args:
        model: A model like the clients'.
        loss: The clients' training loss, a function of (outputs, targets).
        test: The samples to measure influence on.
        optimizer: Makes a client's optimizer from its parameters: SGD without momentum, because a client's state does
            not outlast a round.
        verify: How many rounds to recompute from the reported steps, to check that they match.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, test: Samples, optimizer: MakeOptimizer | None = None, verify: int = 1
    ) -> None:
        self._model, self._loss, self._test = deepcopy(model), loss, test
        self._make, self._verify = optimizer, verify
        self._models: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._recorder: Recorder | None = None
        self._fixed: list[Round] = []

    @property
    def network(self) -> Network:
        """The clients as a network, whose data is the batches that they reported."""
        return self._reported.network

    @property
    def rounds(self) -> list[Round]:
        """The rounds of that network."""
        return self._reported.rounds

    def one_hop(self, evaluation: Evaluation | None = None) -> Float[Tensor, "rounds n"]:
        """L(θ^{t+1}) − L(θ^{t+1} without the update of j), by round and client; negative helped.

        Args:
            evaluation: What to measure; defaults to the loss on the test data.

        Returns:
            `[round, client]`. Cost: one evaluation each.
        """
        network, rounds, measured = self._watched(evaluation)
        return torch.stack([truth(network, [round_], measured).value[1].sum(-1) for round_ in rounds])

    def shares(self, evaluation: Evaluation | None = None, points: int = 2) -> Float[Tensor, "rounds n"]:
        """Each client's Aumann–Shapley share of L(θ^{t+1}) − L(θ^t), by round and client; negative helped.

        Args:
            evaluation: What to measure; defaults to the loss on the test data.
            points: Quadrature points; shares sum to the change up to the quadrature's error.

        Returns:
            `[round, client]`.
        """
        network, rounds, measured = self._watched(evaluation)
        adjoints = [mean_adjoint(network, [round_], measured, points, direct=False) for round_ in rounds]
        return torch.stack([by_participant(*pair) for pair in zip(rounds, adjoints, strict=True)])

    def begin(self, clients: int, model: dict[str, Tensor]) -> None:
        """Call when a round begins, with the global model that all clients start from."""
        if self._models and clients > len(self._models):
            raise ValueError(
                f"there were {len(self._models)} clients, and now there are {clients}. Say how many there will be, or "
                "let the server wait for them (Flower: FedAvg(min_available_nodes=…))."
            )
        self._models = self._models or [deepcopy(self._model) for _ in range(clients)]
        self._load(model)
        if self._make is not None and self._recorder is None:
            self._optimizers = [self._make(each.parameters()) for each in self._models]
            _check_stateless(self._models[0], self._optimizers[0])
            watched = (self._models, self._optimizers, self._loss)
            self._recorder = Recorder(*watched, test=self._test, verify=self._verify)

    def end(self, replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
        """Call when a round is over, with the clients' replies and the new global model."""
        weights = torch.zeros(len(self._models), dtype=torch.float64)
        for reply in replies:
            if not 0 <= reply.client < len(weights) or weights[reply.client]:
                numbers = f"from 0 to {len(weights) - 1}; found {[r.client for r in replies]}"
                raise ValueError(f"clients must have different numbers {numbers}.")
            weights[reply.client] = reply.weight
        _check_mean(replies, model)
        W = (weights / weights.sum()).expand(len(weights), -1).clone()
        if self._recorder is None:
            self._keep_fixed(W, replies, model)
        else:
            self._record(self._recorder, W, replies, model)

    def _record(self, recorder: Recorder, W: Tensor, replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
        """Show the round to the recorder as if the clients had trained here."""
        with recorder.round(W) as note:
            for client, _, trained, steps in replies:
                if not steps:
                    raise ValueError(f"client {client} must report its steps; it did not. Or leave out the optimizer.")
                for number, (rate, x, y) in enumerate(steps, start=1):
                    for group in self._optimizers[client].param_groups:
                        group["lr"] = rate
                    self._optimizers[client].step()  # without gradients: it only marks a step
                    if number == len(steps):
                        self._models[client].load_state_dict(trained)
                    note(client, x, y)
            self._load(model)

    def _keep_fixed(self, W: Tensor, replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
        """Keep the round with fixed updates, which do not depend on the model."""
        before = self._carried()
        for reply in replies:
            self._models[reply.client].load_state_dict(reply.model)
        half = self._carried()
        self._load(model)
        batch = torch.arange(min(PROBE, len(self._test))).expand(len(W), 1, -1)
        updates: State = {"update": half.theta - before.theta}
        before, half, after = (stage._replace(state=updates) for stage in (before, half, self._carried()))
        losses = half.theta.new_full((len(W),), torch.nan)
        round_ = Round(Draw(len(self._fixed), batch, W, 1.0), before, half, after, losses)
        self._fixed.append(round_)

    @property
    def _reported(self) -> Recorder:
        if self._recorder is None:
            raise ValueError(
                "beyond one hop, influence depends on what clients would have made of another model: let clients "
                "report their steps, and give their optimizer. Otherwise use one_hop and shares."
            )
        return self._recorder

    def _watched(self, evaluation: Evaluation | None) -> tuple[Network, list[Round], Evaluation]:
        """The rounds, a network that makes them, from reported steps or with fixed updates, and what to measure."""
        network, rounds = (self.network, self.rounds) if self._recorder else (self._fixed_network(), self._fixed)
        return network, rounds, evaluation or evaluate_on(network)

    def _fixed_network(self) -> Network:
        if not self._fixed:
            raise ValueError("no round has been watched yet.")
        probe, first = self._test.subset(torch.arange(min(PROBE, len(self._test)))), self._fixed[0]
        fixed = Optimizer(
            init=lambda theta: {"update": torch.zeros_like(theta)},
            update=lambda gradient, state, theta, lr: (state["update"], state),
        )
        schedules = (lambda t: first.draw.batch, lambda t: first.W, lambda t: 1.0)
        q = torch.full((len(first.W),), 1 / len(first.W), dtype=torch.float64)
        data = DataSet(WATCHED, probe, self._test, ())
        work = learner(self._model, self._loss, fixed)
        return Network(work, first.before, data, *schedules, q, 0, "loop")

    def _load(self, model: dict[str, Tensor]) -> None:
        for each in self._models:
            each.load_state_dict(model)

    def _carried(self) -> Participants:
        buffers = [{name: buffer.detach().clone() for name, buffer in each.named_buffers()} for each in self._models]
        rows = [Participants(flatten(each), {}, own) for each, own in zip(self._models, buffers, strict=True)]
        participants: Participants = stacked(rows)
        return participants


def _check_mean(replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
    """Refuse a server that does more than average, up to rounding."""
    total = sum(reply.weight for reply in replies)
    for name, value in model.items():
        if not value.is_floating_point():
            continue
        sent = torch.stack([reply.model[name].double() for reply in replies])
        weights = torch.tensor([reply.weight / total for reply in replies], dtype=torch.float64)
        gap = (value.double() - torch.tensordot(weights, sent, 1)).abs()
        if not bool((gap <= 100 * torch.finfo(value.dtype).eps * sent.abs().amax()).all()):
            raise ValueError(
                f"the new model must be the weighted mean of the clients' models, as in FedAvg; its {name} is off by "
                f"{float(gap.max()):.3g}. A server that does more, such as FedAdam or FedAvgM, cannot be watched."
            )


def _check_stateless(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = pure_version(settings(optimizer), group_places(model, optimizer)).init(flatten(model))
    if state:
        raise ValueError(
            f"a client's optimizer must have no state: it does not outlast a round; this one keeps {', '.join(state)}. "
            "Use SGD without momentum, or leave out the optimizer, for one_hop and shares."
        )
