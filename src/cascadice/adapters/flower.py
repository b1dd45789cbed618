"""Measure influence in Flower: a strategy that wraps FedAvg, and the steps that clients may report."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import safetensors.torch
from torch import Tensor, nn

from cascadice.adapters.federated import MakeOptimizer, Reply, Watch
from cascadice.data import Samples
from cascadice.losses import Loss

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise ImportError(f"Flower is not installed ({error}). Use: pip install flwr.") from None

RECORD = "cascadice"  # the name of the clients' report among the records of a reply


class Steps:
    """A client's report of its local work: the batch and learning rate of each step.

    It contains the client's samples: use it in simulations, or if clients agree.

    Example:
        >>> steps = Steps()
        >>> for x, y in batches:
        ...     loss = ...; loss.backward(); optimizer.step()     # as before
        ...     steps.add(x, y, lr=0.1)
        >>> RecordDict({"arrays": arrays, "metrics": metrics, "cascadice": steps.record(client=3)})
    """

    def __init__(self) -> None:
        self._batches: dict[str, Tensor] = {}
        self._rates: list[float] = []

    def add(self, x: Tensor, y: Tensor, lr: float) -> None:
        """Call after each optimizer step, with its batch and learning rate."""
        step = len(self._rates)
        self._batches |= {f"x{step}": x.detach().cpu().clone(), f"y{step}": y.detach().cpu().clone()}
        self._rates.append(lr)

    def record(self, client: int) -> Any:
        """The record for the reply; `client` is its number, e.g. `context.node_config["partition-id"]`."""
        return ConfigRecord({"client": client, "rates": self._rates, "batches": safetensors.torch.save(self._batches)})


class Watched(Strategy):
    """Wraps an averaging strategy and shows its rounds to `watch`.

    Args:
        strategy: Flower's `FedAvg`, or another whose new model is the weighted mean of those received.
        model: A model like the clients'.
        loss: The clients' training loss, a function of (outputs, targets).
        test: The samples to measure influence on.
        optimizer: Makes a client's optimizer from its parameters, if clients report `Steps`: SGD without momentum.
        clients: How many clients there will be, if not all of them are there in the first round.
        verify: How many rounds to recompute from the reported steps, to check that they match.

    Raises:
        ValueError: If a round is not a weighted mean, or does not match its recomputation.

    Example:
        >>> strategy = Watched(FedAvg(), model, F.cross_entropy, test)
        >>> strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)
        >>> strategy.watch.shares().sum(0)
    """

    def __init__(
        self, strategy: Any, model: nn.Module, loss: Loss, test: Samples, *, optimizer: MakeOptimizer | None = None,
        clients: int = 0, verify: int = 1,
    ) -> None:  # fmt: skip
        self.watch, self._strategy = Watch(model, loss, test, optimizer, verify), strategy
        self._nodes: list[int] = []
        self._clients = clients

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages to the clients, which all begin with the global model."""
        messages = list(self._strategy.configure_train(server_round, arrays, config, grid))
        self._nodes += sorted(set(grid.get_node_ids()) - set(self._nodes))  # after: the strategy waits for clients
        self.watch.begin(max(self._clients, len(self._nodes)), arrays.to_torch_state_dict())
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's result from the replies."""
        received = list(replies)
        arrays, metrics = self._strategy.aggregate_train(server_round, received)
        if arrays is not None:
            read = [self._read(reply) for reply in received if not reply.has_error()]
            self.watch.end(read, arrays.to_torch_state_dict())
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages."""
        return list(self._strategy.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The strategy's result from the replies."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's own summary."""
        self._strategy.summary()

    def _read(self, reply: Message) -> Reply:
        """Read a client's reply; its number is the reported one, or its index among the nodes."""
        (arrays,), (metrics,) = reply.content.array_records.values(), reply.content.metric_records.values()
        weight, model = float(metrics[self._strategy.weighted_by_key]), arrays.to_torch_state_dict()
        report = reply.content.config_records.get(RECORD)
        if report is None:
            return Reply(self._nodes.index(reply.metadata.src_node_id), weight, model)
        batches, rates = safetensors.torch.load(report["batches"]), report["rates"]
        steps = [(rate, batches[f"x{step}"], batches[f"y{step}"]) for step, rate in enumerate(rates)]
        return Reply(report["client"], weight, model, steps)


class InProcess(Grid):
    """Runs clients one after another in this process: small simulations need no ray.

    Args:
        app: The clients' `ClientApp`; it finds its number in `context.node_config["partition-id"]`.
        clients: How many there are.
        run_config: What `context.run_config` holds.

    Example:
        >>> FedAvg().start(InProcess(app, clients=10), ArrayRecord(model.state_dict()), num_rounds=3)
    """

    def __init__(
        self, app: Callable[[Message, Context], Message], clients: int, run_config: dict[str, Any] | None = None
    ) -> None:
        _identify()
        config, parts = run_config or {}, range(clients)
        nodes = [{"partition-id": k, "num-partitions": clients} for k in parts]
        self._app, self._contexts = app, {k + 1: Context(0, k + 1, nodes[k], RecordDict(), config) for k in parts}
        self._run: Any = None
        self._replies: dict[str, Message] = {}

    @property
    def run(self) -> Any:
        """The run that was set, if any; clients in this process belong to no other."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Set what `run` returns."""
        self._run = run

    def get_node_ids(self) -> Iterable[int]:
        """The clients, numbered from 1: Flower reserves 0."""
        return list(self._contexts)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a client."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let each client answer; the keys by which its reply can be fetched."""
        replies = [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in messages]
        keys = [uuid4().hex for _ in replies]
        self._replies |= dict(zip(keys, replies, strict=True))
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies, each of them once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and return the replies; clients compute them before this returns, whatever the time limit."""
        return self.pull_messages(self.push_messages(messages))


def _identify() -> None:
    """Set the identity of the sender, as Flower does when it starts a server; messages need one."""
    with suppress(ImportError):  # earlier versions do not need one
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("task_id", "run_id", "node_id"):
            if getattr(TaskIdentity, f"_{name}", None) is None:
                setattr(TaskIdentity, name, 1)
