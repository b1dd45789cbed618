"""Every setting of a run as plain data, and the one place where names become objects."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from cascadice.names import lookup

if TYPE_CHECKING:  # torch takes seconds to import; settings can be read, listed and changed without it
    from cascadice.data.partition import Partition
    from cascadice.engine.behaviours import Behaviour
    from cascadice.engine.networks import Network
    from cascadice.optimizers import Optimizer
    from cascadice.topology import Schedule


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Config:
    """A run. Each field is a flag of `cascadice run` and an entry of config.json; names are those of `cascadice list`.

    Options are written `name=value`, the value as JSON or as it is: `hidden=[64]`, `activation=gelu`.
    """

    data: str = _setting("digits", "data set")
    data_root: str | None = _setting(None, "folder to look for data in, before $CASCADICE_DATA and the cache")
    nodes: int | None = _setting(16, "participants")
    topology: str = _setting("exponential", "who gossips with whom")
    topology_options: tuple[str, ...] = _setting((), "options of the topology, e.g. degree=6")
    weights: str = _setting("uniform", "from graph to mixing matrix: uniform or metropolis")
    mixing: str | None = _setting(None, "CSV file with the mixing matrix, in place of a topology")
    normalize: bool = _setting(False, "divide each row of the CSV file by its sum")
    connected: bool = _setting(False, "refuse a network that is not strongly connected")
    link_loss: float = _setting(0.0, "probability that a link fails in a round")
    partition: str = _setting("iid", "who holds what")
    per_node: int | None = _setting(None, "samples of each participant (none: all are shared out)")
    alpha: float = _setting(0.5, "skew of the dirichlet partition; smaller is more skewed")
    classes_per_node: int = _setting(2, "classes of each participant in the by-class partition")
    model: str = _setting("mlp", "model")
    model_options: tuple[str, ...] = _setting((), "options of the model, e.g. hidden=[64,64] activation=gelu")
    loss: str = _setting("cross-entropy", "training loss: cross-entropy or mse")
    init: str = _setting("shared", "initial parameters: shared by all, or one's own")
    batch_size: int = _setting(32, "samples in a local step")
    local_steps: int = _setting(1, "local steps in a round")
    optimizer: str = _setting("sgd", "optimizer")
    optimizer_options: tuple[str, ...] = _setting((), "options of the optimizer, e.g. beta=0.95")
    weight_decay: float | None = _setting(None, "weight decay (none: the optimizer's default)")
    clip: float | None = _setting(None, "largest norm of a participant's gradient")
    lr: float = _setting(0.1, "learning rate")
    lr_schedule: str = _setting("constant", "constant, cosine, step:EVERY:FACTOR or warmup:STEPS+SCHEDULE")
    rounds: int | None = _setting(None, "rounds to train, in place of epochs")
    epochs: float | None = _setting(5.0, "passes over the data to train")
    corruptions: tuple[str, ...] = _setting(
        (), "bad data, kind:nodes[:strength][@from-to], e.g. flip-labels:3:0.5@10-20"
    )
    behaviours: tuple[str, ...] = _setting((), "bad participants, in the same form, e.g. free-rider:0,1")
    rule: str | None = _setting(None, "how W is chosen anew in each round, e.g. influence (none: it is not)")
    seed: int = _setting(0, "what all chance is drawn from")
    device: str = _setting("cpu", "cpu, cuda or cuda:N")
    dtype: str = _setting("float32", "float32, float64 or bfloat16")
    strategy: str = _setting("auto", "how local work is done: auto, loop, vmap or compile")
    eval_every: int = _setting(10, "rounds between evaluations on the test data")
    record: str = _setting("none", "rounds to keep on disk: none, all, last:N or FROM-TO")
    checkpoint_every: int | None = _setting(None, "rounds between checkpoints (none: one a minute)")

    def __post_init__(self) -> None:
        for name, kinds in kinds_of_fields().items():
            _check_kind(name, getattr(self, name), kinds)
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError(f"give either rounds or epochs; found rounds={self.rounds}, epochs={self.epochs}.")
        for name in ("nodes", "rounds", "eval_every", "checkpoint_every", "batch_size", "local_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; found {value}.")
        if self.epochs is not None and not 0 < self.epochs < float("inf"):
            raise ValueError(f"epochs must be positive and finite; found {self.epochs}.")
        if self.nodes is None and self.mixing is None:
            raise ValueError("nodes may be left out only where a mixing matrix is given; found neither.")


@cache
def kinds_of_fields() -> Mapping[str, tuple[type, ...]]:
    """The types that each field may have; a tuple holds strings."""
    hints = get_type_hints(Config)
    return {f.name: _kinds(hints[f.name]) for f in fields(Config)}


def _kinds(hint: Any) -> tuple[type, ...]:
    if hint == tuple[str, ...]:
        return (tuple,)
    return get_args(hint) or (hint,)


def _check_kind(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    allowed = (*kinds, int) if float in kinds else kinds
    fits = isinstance(value, allowed) and (bool in kinds or not isinstance(value, bool))
    if not fits or (isinstance(value, tuple) and not all(isinstance(entry, str) for entry in value)):
        wanted = " or ".join(
            "none" if k is NoneType else "a list of texts" if k is tuple else k.__name__ for k in kinds
        )
        raise TypeError(f"{name} must be {wanted}; found {value!r}.")


# A setting that is given puts these back, which mean the same thing in another way.
RIVALS: Mapping[str, Mapping[str, Any]] = {
    "rounds": {"epochs": None},
    "epochs": {"rounds": None},
    "mixing": {"nodes": None},
    "topology": {"mixing": None, "topology_options": ()},
    "model": {"model_options": ()},
    "optimizer": {"optimizer_options": (), "weight_decay": None},
}


def override(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with these settings; those they stand in for are put back: rounds for epochs, say."""
    for name in settings:
        lookup(kinds_of_fields(), name, "setting")
    given = {name: value for name, value in settings.items() if value != getattr(config, name)}
    cleared = {rival: value for name in given for rival, value in RIVALS.get(name, {}).items()}
    return replace(config, **{**cleared, **settings})


def to_json(config: Config) -> dict[str, Any]:
    """The settings as JSON knows them; `from_json` gives the very same configuration."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}


def from_json(settings: Mapping[str, Any]) -> Config:
    """A configuration from the entries of config.json; what is absent has its default."""
    return override(Config(), {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})


# What may differ when a run goes on: where things are, how long it runs, what it keeps.
INCIDENTAL = ("data_root", "mixing", "rounds", "epochs", "checkpoint_every", "record")


def determining(config: Config) -> dict[str, Any]:
    """The settings on which the numbers of a round depend; the run's length is one if the learning rate sees it."""
    sees_the_end = ("rounds", "epochs") if "cosine" in config.lr_schedule else ()
    ruled = () if config.rule else ("rule",)  # runs from before there were rules keep their fingerprint
    left_out = {*INCIDENTAL, *ruled} - set(sees_the_end)
    return {name: v for name, v in to_json(config).items() if name not in left_out}


def fingerprint(config: Config) -> str:
    """A digest of all that determines the rounds of a run, the content of the mixing file included."""
    content = Path(config.mixing).read_bytes() if config.mixing else b""
    return blake2b(json.dumps(determining(config), sort_keys=True).encode() + content, digest_size=8).hexdigest()


def build(config: Config, *, download: bool = False, quiet: bool = True) -> "Network":
    """The network that these settings describe; the data are fetched first if that is allowed."""
    import torch

    from cascadice import data, learning_rates, losses, models
    from cascadice.data import corruption
    from cascadice.data import partition as partitions
    from cascadice.engine.assembly import network

    mixing = schedule(config)
    nodes = mixing(0).shape[0]
    corruptions, behaviours = map(corruption.parse, config.corruptions), map(parse_behaviour, config.behaviours)
    dataset = data.load(config.data, config.data_root, download, quiet)
    shares = partitions.build(
        config.partition, dataset.train.y, nodes, per_node=config.per_node, alpha=config.alpha,
        classes_per_node=config.classes_per_node, minimum=config.batch_size, seed=config.seed,
    )  # fmt: skip
    shape, classes, options = dataset.train.shape, len(dataset.classes), read_options(config.model_options)
    loss, _ = lookup(losses.LOSSES, config.loss, "loss")
    return network(
        # the engine seeds torch for each participant whose parameters are drawn; models seed themselves
        lambda: _fitting(models.build, config.model, shape, classes, seed=torch.initial_seed(), **options),
        dataset, mixing=mixing, partition=shares, batch_size=config.batch_size, local_steps=config.local_steps,
        optimizer=_optimizer(config), lr=learning_rates.parse(config.lr_schedule, config.lr, length(config, shares)),
        loss=loss, init=config.init, corruptions=list(corruptions), behaviours=list(behaviours), seed=config.seed,
        device=config.device, dtype=config.dtype, strategy=config.strategy,
    )  # fmt: skip


def schedule(config: Config) -> "Schedule":
    """Who gossips with whom in each round, from the CSV file or the named topology."""
    from cascadice import topology

    if config.mixing is not None:
        W = topology.read_csv(config.mixing, normalize=config.normalize)
        if config.nodes not in (None, W.shape[0]):
            raise ValueError(
                f"{config.mixing} has {W.shape[0]} participants, nodes is {config.nodes}. Leave nodes out."
            )
        found: Schedule = topology.constant(W)
    else:
        options = read_options(config.topology_options)
        found = topology.build(config.topology, config.nodes or 1, weights=config.weights, seed=config.seed, **options)
    if config.link_loss:
        found = topology.link_loss(found, config.link_loss, seed=config.seed)
    if config.connected:
        topology.check(topology.average(found, topology.period(found)), connected=True)
    return found


def length(config: Config, shares: "Partition") -> int:
    """How many rounds the run has."""
    from cascadice.data.batches import rounds_per_epoch

    if config.rounds is not None:
        return config.rounds
    return max(1, round((config.epochs or 0) * rounds_per_epoch(shares, config.batch_size, config.local_steps)))


def _fitting(build: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
    """`build(name, …)`; an option of the wrong kind is a mistake in the settings."""
    try:
        return build(name, *arguments, **options)
    except TypeError as error:
        raise ValueError(f"the options of {name} do not fit: {error}.") from error


def _optimizer(config: Config) -> "Optimizer":
    from cascadice import optimizers

    decay = {} if config.weight_decay is None else {"weight_decay": config.weight_decay}
    found = _fitting(optimizers.build, config.optimizer, **(read_options(config.optimizer_options) | decay))
    return found if config.clip is None else optimizers.clip(found, config.clip)


def parse_behaviour(text: str) -> "Behaviour":
    """A behaviour written `kind:nodes[:strength][@from-to]`."""
    from cascadice.engine.behaviours import BEHAVIOURS, Behaviour
    from cascadice.intervals import parse_interval

    kind, nodes, strength, rounds = parse_interval(text, "behaviour")
    found = lookup(BEHAVIOURS, kind, "behaviour")
    if strength is not None and found.factor == 1 and not found.noise:
        raise ValueError(f"{kind} takes no strength; found {strength} in {text!r}.")
    return Behaviour(kind, nodes, rounds, 1.0 if strength is None else strength)


def read_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """`("hidden=[64]", "activation=gelu")` as {"hidden": (64,), "activation": "gelu"}."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"an option reads name=value, e.g. hidden=[64,64]; found {text!r}.")
        options[name.replace("-", "_")] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


Reader = Callable[[str], Any]


def reader(name: str) -> Reader:
    """How the text of a flag becomes the value of a field."""
    kinds = kinds_of_fields()[name]

    def read(text: str) -> Any:
        if NoneType in kinds and text.lower() == "none":
            return None
        kind = next(kind for kind in kinds if kind is not NoneType)
        try:
            return text if kind is tuple else kind(text)
        except ValueError:
            wanted = {int: "a whole number", float: "a number"}[kind] + (" or none" if NoneType in kinds else "")
            raise ValueError(f"--{name.replace('_', '-')} must be {wanted}; found {text!r}.") from None

    return read
