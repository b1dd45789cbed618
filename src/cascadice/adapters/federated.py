"""Watch a server train with clients: whose updates helped the global model and, if clients tell, who contributed what.

A round of federated averaging is a round of gossip in which everybody gives client j the same weight:

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
from cascadice.engine.verification import check_gossip
from cascadice.influence import by_participant, truth
from cascadice.influence.shares import mean_adjoint
from cascadice.losses import Loss
from cascadice.optimizers import Optimizer, State

PROBE = 8  # samples of the batch that replayed work must have, although updates that are held fixed ignore it

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Step = tuple[float, Tensor, Tensor]
"""The learning rate, inputs and targets of a local step."""


class Reply(NamedTuple):
    """What a client sent: its number and weight, its model's state, and its steps, if it tells of them."""

    client: int
    weight: float
    model: dict[str, Tensor]
    steps: Sequence[Step] = ()


class Watch:
    """The rounds of a server and its clients, and who helped in them.

    Without an optimizer, nothing is asked of clients, and there are `one_hop` and `shares`. With one, every reply must
    hold the client's steps, and there are `network` and `rounds`, for `cd.score` and every estimator.

    Args:
        model: A model like theirs.
        loss: What clients train on, a function of (outputs, targets).
        test: What influence is measured on.
        optimizer: Makes a client's optimizer from its parameters: SGD without momentum, as a client's state does not
            outlast a round.
        verify: How many rounds are computed again from the steps told, and must come out the same.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, test: Samples, optimizer: MakeOptimizer | None = None, verify: int = 1
    ) -> None:
        self._model, self._loss, self._test = deepcopy(model), loss, test
        self._make, self._verify = optimizer, verify
        self._models: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._recorder: Recorder | None = None
        self._held: list[Round] = []

    @property
    def network(self) -> Network:
        """The clients as a network, whose data are the batches they told of."""
        return self._told.network

    @property
    def rounds(self) -> list[Round]:
        """The rounds of that network."""
        return self._told.rounds

    def one_hop(self, evaluation: Evaluation | None = None) -> Float[Tensor, "rounds n"]:
        """L(θ^{t+1}) − L(θ^{t+1} without the update of j), by round and client; negative helped.

        Args:
            evaluation: What is measured; the loss on the test data unless given. Cost: once for each client and round.
        """
        network, rounds = self._seen
        measured = evaluate_on(network) if evaluation is None else evaluation
        return torch.stack([truth(network, [round_], measured).value[1].sum(-1) for round_ in rounds])

    def shares(self, evaluation: Evaluation | None = None, points: int = 2) -> Float[Tensor, "rounds n"]:
        """Each client's Aumann–Shapley part of L(θ^{t+1}) − L(θ^t), by round and client; negative helped.

        Args:
            evaluation: What is measured; the loss on the test data unless given.
            points: Points of the quadrature; parts sum to the change but for its error.
        """
        network, rounds = self._seen
        measured = evaluate_on(network) if evaluation is None else evaluation
        adjoints = [mean_adjoint(network, [round_], measured, points, direct=False) for round_ in rounds]
        return torch.stack([by_participant(*pair) for pair in zip(rounds, adjoints, strict=True)])

    def begin(self, clients: int, model: dict[str, Tensor]) -> None:
        """A round begins: all clients have the global model."""
        if not self._models:
            self._models = [deepcopy(self._model) for _ in range(clients)]
            self._load(model)
            if self._make is not None:
                self._optimizers = [self._make(each.parameters()) for each in self._models]
                _check_stateless(self._models[0], self._optimizers[0])
                watched = (self._models, self._optimizers, self._loss)
                self._recorder = Recorder(*watched, test=self._test, verify=self._verify)
        elif clients > len(self._models):
            raise ValueError(
                f"there were {len(self._models)} clients, and now there are {clients}. Say how many there will be, or "
                "let the server wait for them (Flower: FedAvg(min_available_nodes=…))."
            )
        self._load(model)

    def end(self, replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
        """A round is over: these clients replied, and this is the new global model."""
        weights = torch.zeros(len(self._models), dtype=torch.float64)
        for reply in replies:
            if not 0 <= reply.client < len(weights) or weights[reply.client]:
                known = f"from 0 to {len(weights) - 1}"
                raise ValueError(f"clients must have different numbers {known}; found {[r.client for r in replies]}.")
            weights[reply.client] = reply.weight
        W = (weights / weights.sum()).expand(len(weights), -1).clone()
        if self._recorder is None:
            self._hold(W, replies, model)
        else:
            self._tell(self._recorder, W, replies, model)

    def _tell(self, recorder: Recorder, W: Tensor, replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
        """Let the recorder see the round as if clients had trained here."""
        with recorder.round(W) as note:
            for client, _, trained, steps in replies:
                if not steps:
                    raise ValueError(f"client {client} must report its steps; it did not. Or leave out the optimizer.")
                for number, (rate, x, y) in enumerate(steps, start=1):
                    for group in self._optimizers[client].param_groups:
                        group["lr"] = rate
                    self._optimizers[client].step()  # without gradients: it only marks a step
                    if number == len(steps):
                        self._load(trained, [client])
                    note(client, x, y)
            self._load(model)

    def _hold(self, W: Tensor, replies: Sequence[Reply], model: dict[str, Tensor]) -> None:
        """Keep the round with everybody's update as it was, whatever model it was computed from."""
        before = self._carried()
        for reply in replies:
            self._load(reply.model, [reply.client])
        half = self._carried()
        self._load(model)
        batch = torch.arange(min(PROBE, len(self._test))).expand(len(W), 1, -1)
        updates: State = {"update": half.theta - before.theta}
        before, half, after = (stage._replace(state=updates) for stage in (before, half, self._carried()))
        losses = half.theta.new_full((len(W),), torch.nan)
        round_ = Round(Draw(len(self._held), batch, W, 1.0), before, half, after, losses)
        check_gossip(round_)
        self._held.append(round_)

    @property
    def _told(self) -> Recorder:
        if self._recorder is None:
            raise ValueError(
                "beyond one hop, influence depends on what clients would have made of another model: let clients "
                "report their steps, and give their optimizer. Otherwise use one_hop and shares."
            )
        return self._recorder

    @property
    def _seen(self) -> tuple[Network, list[Round]]:
        """The rounds, and a network that makes them: the clients as they told, or updates that are held fixed."""
        if self._recorder is not None:
            return self._recorder.network, self._recorder.rounds
        if not self._held:
            raise ValueError("no round has been watched yet.")
        probe, first = self._test.subset(torch.arange(min(PROBE, len(self._test)))), self._held[0]
        work = learner(self._model, self._loss, Optimizer(lambda theta: {"update": torch.zeros_like(theta)}, _as_held))
        schedules = (lambda t: first.draw.batch, lambda t: first.W, lambda t: 1.0)
        q = torch.full((len(first.W),), 1 / len(first.W), dtype=torch.float64)
        data = DataSet(WATCHED, probe, self._test, ())
        return Network(work, first.before, data, *schedules, q, 0, "loop"), self._held

    def _load(self, model: dict[str, Tensor], clients: Sequence[int] | None = None) -> None:
        for k in range(len(self._models)) if clients is None else clients:
            self._models[k].load_state_dict(model)

    def _carried(self) -> Participants:
        buffers = [{name: buffer.detach().clone() for name, buffer in each.named_buffers()} for each in self._models]
        rows = [Participants(flatten(each), {}, own) for each, own in zip(self._models, buffers, strict=True)]
        participants: Participants = stacked(rows)
        return participants


def _check_stateless(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    kept = pure_version(settings(optimizer), group_places(model, optimizer)).init(flatten(model))
    if kept:
        raise ValueError(
            f"a client's optimizer must have no state: it does not outlast a round; this one keeps {', '.join(kept)}. "
            "Use SGD without momentum, or leave out the optimizer, for one_hop and shares."
        )


def _as_held(gradient: Tensor, state: State, theta: Tensor, lr: Tensor) -> tuple[Tensor, State]:
    return state["update"], state
