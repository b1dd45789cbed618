"""All settings of a run as plain data, and the only place where names are turned into objects."""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from inspect import signature
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from cascadice.names import lookup
from cascadice.runs.options import SETTINGS, check_once, read_options, read_participants

if TYPE_CHECKING:  # torch takes seconds to import; settings can be read, listed and changed without it
    from cascadice.engine.networks import Network
    from cascadice.optimizers import Optimizer
    from cascadice.topology import Schedule


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Config:
    """The settings of a run. Each is a flag of `cascadice run` and an entry of config.json.

    Names are those of `cascadice list`. Options are written `name=value`, the value as JSON or as plain text:
    `hidden=[64]`, `activation=gelu`. A default is part of the file format: changing one changes what old files mean.
    """

    data: str = _setting("digits", "data set, or package.module:make for your own")
    data_root: str | None = _setting(None, "folder to look for data in, before $CASCADICE_DATA and the cache")
    nodes: int | None = _setting(16, "number of participants")
    topology: str = _setting("exponential", "communication graph: who gossips with whom")
    topology_options: tuple[str, ...] = _setting((), "options of the topology, e.g. degree=6")
    weights: str = _setting("uniform", "how the graph becomes a mixing matrix: uniform or metropolis")
    mixing: str | None = _setting(None, "CSV file with the mixing matrix, instead of a topology")
    normalize: bool = _setting(False, "divide each row of the CSV file by its sum")
    connected: bool = _setting(False, "refuse a graph that is not strongly connected")
    link_loss: float = _setting(0.0, "probability that a link fails in a round")
    partition: str = _setting("iid", "how the data are divided among the participants")
    per_node: int | None = _setting(None, "samples per participant (none: all samples are used)")
    alpha: float = _setting(0.5, "skew of the dirichlet partition; smaller is more skewed")
    classes_per_node: int = _setting(2, "classes per participant in the by-class partition")
    model: str = _setting("mlp", "model, or package.module:make for your own")
    model_options: tuple[str, ...] = _setting((), "options of the model, e.g. hidden=[64,64] activation=gelu")
    loss: str = _setting("cross-entropy", "training loss: cross-entropy, mse or package.module:f for your own")
    init: str = _setting("shared", "initial parameters: shared by all, or own")
    batch_size: int = _setting(32, "samples per local step")
    local_steps: int = _setting(1, "local steps per round")
    optimizer: str = _setting("sgd", "optimizer")
    optimizer_options: tuple[str, ...] = _setting((), "options of the optimizer, e.g. beta=0.95")
    weight_decay: float | None = _setting(None, "weight decay (none: the optimizer's default)")
    clip: float | None = _setting(None, "clip each participant's gradient to this norm")
    lr: float = _setting(0.1, "learning rate")
    lr_schedule: str = _setting("constant", "constant, cosine, step:EVERY:FACTOR or warmup:STEPS+SCHEDULE")
    participants: tuple[str, ...] = _setting(
        (), "settings that differ for some participants, nodes:name=value,…, e.g. 2,5-7:optimizer=adam,lr=0.003"
    )
    rounds: int | None = _setting(None, "rounds to train, instead of epochs")
    epochs: float | None = _setting(5.0, "passes over the data to train")
    corruptions: tuple[str, ...] = _setting(
        (), "corrupted data, kind:nodes[:strength][@from-to], e.g. flip-labels:3:0.5@10-20"
    )
    behaviours: tuple[str, ...] = _setting((), "misbehaving participants, in the same form, e.g. free-rider:0,1")
    rule: str | None = _setting(None, "mixing rule that chooses W in each round, e.g. cosine-trust (none: the given W)")
    compression: str | None = _setting(None, "compression of updates that are sent, e.g. 8-bit (none: uncompressed)")
    seed: int = _setting(0, "seed for all randomness")
    device: str = _setting("cpu", "cpu, cuda or cuda:N")
    dtype: str = _setting("float32", "float32, float64 or bfloat16")
    strategy: str = _setting("auto", "how local steps are computed: auto, loop, vmap or compile")
    eval_every: int = _setting(10, "rounds between evaluations on the test data")
    record: str = _setting("none", "rounds to record on disk: none, all, last:N or FROM-TO")
    checkpoint_every: int | None = _setting(None, "rounds between checkpoints (none: one per minute)")
    saved: str | None = _setting(None, "digest of a network that was built in Python, by cascadice.save")

    def __post_init__(self) -> None:
        for name, types in field_types().items():
            value, allowed = getattr(self, name), (*types, int) if float in types else types
            fits = isinstance(value, allowed) and (bool in types or not isinstance(value, bool))
            if not fits or (isinstance(value, tuple) and not all(isinstance(entry, str) for entry in value)):
                words = {NoneType: "none", tuple: "a list of strings"}
                wanted = " or ".join(words.get(kind, kind.__name__) for kind in types)
                raise TypeError(f"{name} must be {wanted}; found {value!r}.")
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError(f"give either rounds or epochs; found rounds={self.rounds}, epochs={self.epochs}.")
        for name in ("nodes", "rounds", "eval_every", "checkpoint_every", "batch_size", "local_steps"):
            if (value := getattr(self, name)) is not None and not 1 <= value < 2**63:
                raise ValueError(f"{name} must be at least 1{' and below 2^63' * (value > 1)}; found {value}.")
        if self.epochs is not None and not 0 < self.epochs < float("inf"):
            raise ValueError(f"epochs must be positive and finite; found {self.epochs}.")
        if self.nodes is None and self.mixing is None:
            raise ValueError("nodes may be left out only if a mixing matrix is given; found neither.")
        check_once(self.participants)


@cache
def field_types() -> Mapping[str, tuple[type, ...]]:
    """The types that each setting may have; a tuple holds strings."""
    hints = get_type_hints(Config)
    return {name: (tuple,) if hint == tuple[str, ...] else get_args(hint) or (hint,) for name, hint in hints.items()}


UNNAMED = "own"  # an optimizer that was built in Python, and has no name

# Giving one of these settings resets the ones that it replaces or that belong to its old value.
RESETS: Mapping[str, Mapping[str, Any]] = {
    "rounds": {"epochs": None},
    "epochs": {"rounds": None},
    "mixing": {"nodes": None},
    "topology": {"mixing": None, "topology_options": ()},
    "model": {"model_options": ()},
    "optimizer": {"optimizer_options": (), "weight_decay": None},
}


def override(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with these settings changed; settings that they replace are reset.

    Args:
        config: The configuration to change.
        settings: New values by name.

    Returns:
        A new configuration; `config` is unchanged.

    Example:
        >>> changed = override(Config(), {"rounds": 100})
        >>> changed.rounds, changed.epochs
        (100, None)
    """
    for name in settings:
        lookup(field_types(), name, "setting")
    changed = [name for name, value in settings.items() if value != getattr(config, name)]
    resets = {other: value for name in changed for other, value in RESETS.get(name, {}).items()}
    return replace(config, **{**resets, **settings})


def to_json(config: Config) -> dict[str, Any]:
    """The settings as JSON values; `from_json` returns the same configuration."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}


def from_json(settings: Mapping[str, Any]) -> Config:
    """The configuration in the entries of config.json; missing settings have their defaults."""
    try:
        return override(Config(), {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})
    except ValueError as error:
        if set(settings) <= set(field_types()):
            raise
        from cascadice import __version__

        raise ValueError(f"{error} A version newer than {__version__} may have written it.") from None


def build(
    config: Config, *, download: bool = False, quiet: bool = True, processes: int = 1, rank: int = 0
) -> "Network":
    """Build the network that these settings describe.

    Args:
        config: The settings.
        download: Fetch the data set if it is not on this machine.
        quiet: Do not show the progress of a download.
        processes: The number of processes that train together.
        rank: The number of this process.

    Returns:
        The network, or the part of it that belongs to this process.

    Example:
        >>> build(Config(nodes=4)).nodes  # doctest: +SKIP
        4
    """
    from cascadice import learning_rates
    from cascadice.data import corruption
    from cascadice.data import partition as partitions
    from cascadice.engine.assembly import network
    from cascadice.engine.behaviours import parse as parse_behaviour
    from cascadice.engine.parts import split
    from cascadice.runs import sources

    if config.saved is not None:
        raise ValueError("this network was built in Python and can only be trained there. Train and save it again.")

    mixing = schedule(config)
    each = per_participant(config, config.nodes or mixing(0).shape[0])
    corruptions, behaviours = [*map(corruption.parse, config.corruptions)], [*map(parse_behaviour, config.behaviours)]
    dataset = sources.load_data(config.data, config.data_root, download, quiet)
    shape, classes, options = dataset.train.shape, len(dataset.classes), read_options(config.model_options)
    members = split(len(each), processes)[rank] if processes > 1 else ()
    here = [each[k] for k in members] or each
    _check_memory(config, here, sources.count_parameters(config.model, shape, classes, options))
    parts = partitions.build(
        config.partition, dataset.train.y, len(each), per_node=config.per_node, alpha=config.alpha,
        classes_per_node=config.classes_per_node, minimum=max(one.batch_size for one in each), seed=config.seed,
    )  # fmt: skip
    loss, rounds = sources.training_loss(config.loss), length(config, parts)
    return network(
        # the engine seeds torch for each participant whose parameters are drawn
        lambda: sources.make_model(config.model, shape, classes, options),
        dataset, mixing=mixing, partition=parts, loss=loss, init=config.init, corruptions=corruptions,
        behaviours=behaviours, compression=config.compression, seed=config.seed, device=config.device,
        dtype=config.dtype, strategy=config.strategy, members=members,
        batch_size=alike(each, lambda one: one.batch_size), local_steps=alike(each, lambda one: one.local_steps),
        optimizer=alike(each, optimizer_of),
        lr=alike(each, lambda one: learning_rates.parse(one.lr_schedule, one.lr, rounds)),
    )  # fmt: skip


def per_participant(config: Config, nodes: int) -> list[Config]:
    """The configuration of each participant: the run's, with the changes that `participants` lists."""
    from cascadice.optimizers import OPTIMIZERS

    each = [replace(config, participants=())] * nodes
    for text in config.participants:
        different, settings, options = read_participants(text)
        for node in different:
            if node >= nodes:
                raise ValueError(f"participants must be from 0 to {nodes - 1}; found {node} in {text!r}.")
            changed = override(each[node], settings)
            make, _ = lookup(OPTIMIZERS, changed.optimizer, "optimizer")
            known = {**dict.fromkeys(SETTINGS), **signature(make).parameters}
            for name in read_options(options):
                lookup(known, name, "setting of participants")
            each[node] = replace(changed, optimizer_options=(*changed.optimizer_options, *options))
    return each


def sees_scale(config: Config, nodes: int) -> bool:
    """Whether all steps are linear in the gradients; Adam and clipping hide the size of gradients."""
    if config.optimizer == UNNAMED:
        return "linear=true" in config.optimizer_options
    return all(optimizer_of(one).linear for one in per_participant(config, nodes))


def alike(each: Sequence[Config], value: Callable[[Config], Any]) -> Any:
    """One value if it is the same for all participants, otherwise a list with one value each."""
    return value(each[0]) if all(one == each[0] for one in each) else [value(one) for one in each]


def schedule(config: Config) -> "Schedule":
    """The mixing matrix of each round, from the CSV file or the named topology.

    Args:
        config: The settings of the run.

    Returns:
        A function from the round number to W.

    Example:
        >>> schedule(Config(nodes=4, topology="ring"))(0).shape
        torch.Size([4, 4])
    """
    from cascadice import topology
    from cascadice.runs import forecast, memory

    if config.saved is not None:
        raise ValueError("the network was built in Python: only recorded rounds have a known W.")
    if config.mixing is not None:
        W = topology.read_csv(config.mixing, normalize=config.normalize)
        if config.nodes not in (None, nodes := W.shape[0]):
            raise ValueError(f"{config.mixing} has {nodes} participants, nodes is {config.nodes}. Leave nodes out.")
        mixing: Schedule = topology.constant(W)
    else:
        options = read_options(config.topology_options)
        parts = forecast.of_graph(config.topology, config.nodes or 1, options)
        memory.check(f"this graph of {config.nodes} participants", parts, memory.device_named("cpu"))
        mixing = topology.build(config.topology, config.nodes or 1, weights=config.weights, seed=config.seed, **options)
    if config.link_loss:
        mixing = topology.link_loss(mixing, config.link_loss, seed=config.seed)
    if config.connected:
        topology.check(topology.average(mixing, topology.period(mixing)), connected=True)
    return mixing


def length(config: Config, parts: Sequence[Sized]) -> int:
    """The number of rounds, given the samples that participants hold.

    An epoch is the number of rounds in which all participants together use all their batches.

    Args:
        config: The settings of the run.
        parts: The samples of each participant.

    Returns:
        The number of rounds.

    Example:
        >>> length(Config(epochs=2.0, batch_size=10), [range(100)] * 16)
        20
    """
    from cascadice.data.batches import rounds_per_epoch

    if config.rounds is not None:
        return config.rounds
    each = per_participant(config, len(parts))
    per_epoch = rounds_per_epoch(parts, [one.batch_size for one in each], [one.local_steps for one in each])
    return max(1, round((config.epochs or 0) * per_epoch))


def length_of(config: Config, network: "Network") -> int:
    """The number of rounds of this network, or of the whole network that it is a part of."""
    if network.members:
        return length(config, [range(size) for size in network.holdings])
    return length(config, network.partition or ())


def _check_memory(config: Config, each: Sequence[Config], parameters: int) -> None:
    """Refuse a network that does not fit in memory, before it is made."""
    from cascadice.runs import forecast, memory

    state = max(forecast.state_of(optimizer_of(one)) for one in dict.fromkeys(each))
    steps, batch = max(one.local_steps for one in each), max(one.batch_size for one in each)
    size = 8 if config.dtype == "float64" else 4
    parts = forecast.of_network(len(each), parameters, state, size, steps, batch, config.init == "own")
    memory.check("this network", parts, memory.device_named(config.device))


def optimizer_of(config: Config) -> "Optimizer":
    """The optimizer that these settings describe."""
    from cascadice import optimizers
    from cascadice.runs.sources import fitting

    decay = {} if config.weight_decay is None else {"weight_decay": config.weight_decay}
    options = read_options(config.optimizer_options) | decay
    optimizer: Optimizer = fitting(optimizers.build, config.optimizer, **options)
    return optimizer if config.clip is None else optimizers.clip(optimizer, config.clip)
