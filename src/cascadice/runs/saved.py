"""Save and load a network that was built in Python: its settings, and a file with everything settings cannot say.

    network.safetensors    the data, unless settings name them; who holds what; initial parameters; q
Batches, W and learning rates are those of the recorded rounds. Model and loss are built again by their names, or by
references to functions of your own, `package.module:name`; the first recorded round must then come out the same.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.utils._pytree import tree_map

from cascadice import files, models, references
from cascadice.data import DataSet, Samples, corruption
from cascadice.engine import Draw, Network
from cascadice.engine.assembly import DTYPES
from cascadice.engine.assembly import network as assemble
from cascadice.engine.behaviours import parse as parse_behaviour
from cascadice.engine.compression import COMPRESSIONS
from cascadice.engine.torch_optim import rebuilt
from cascadice.files import jsonl
from cascadice.files.tensors import Tensors, content_of, read_tensors, write_tensors
from cascadice.influence.checks import check_recording
from cascadice.losses import LOSSES
from cascadice.names import lookup
from cascadice.optimizers import OPTIMIZERS, Optimizer
from cascadice.runs import sources, store
from cascadice.runs.config import UNNAMED, Config, optimizer_of, override, per_participant
from cascadice.runs.folder import NETWORK
from cascadice.runs.options import read_options

PARTS = ("y", "mean", "std")
FORMAT = "cascadice-network-2"  # earlier files name no format, and hold every fact of their time
Settings = tuple[tuple[str, Any], ...]
FACTS: Mapping[str, Any] = {
    "name": "", "classes": [], "compression": None, "shape": [], "outputs": 0, "inputs": "Tensor", "autocast": "",
    "uneven": False, "optimizers": None,
}  # fmt: skip
"""What a file says of a network beside its tensors, with defaults. Defaults are not written: files stay readable when a
fact is added."""

_living: WeakValueDictionary[str, Network] = WeakValueDictionary()  # those that this process has saved, by digest


class SavedNetwork(NamedTuple):
    """The content of a saved network's file: tensors and facts."""

    tensors: Tensors
    written: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """All facts."""
        return {**FACTS, **self.written}

    @property
    def digest(self) -> str:
        """The SHA-256 of the whole content."""
        digest = sha256(json.dumps(self.written, sort_keys=True).encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(content_of(tensor))
        return digest.hexdigest()


def kept_of(network: Network, with_data: bool) -> SavedNetwork:
    """Collect what to save of a network beyond its settings."""
    if network.members or network.seeds:
        raise ValueError("only a single, whole network can be saved; found a part of one, or a fleet.")
    if network.compression is not None and network.compression not in COMPRESSIONS.values():
        raise ValueError(f"a saved network must use one of the compressions {', '.join(COMPRESSIONS)}, or none.")
    data, made = network.data, models.made_by(network.learner.training) or models.Made("")
    tensors = {**store.to_tensors("initial.", network.initial), "q": network.q}
    tensors |= {f"holds.{k}": part for k, part in enumerate(network.partition or ())}
    tensors |= {} if network.sample_weights is None else {"sample_weights": network.sample_weights}
    tensors |= {f"frozen.{name}": p for name, p in network.learner.training.named_parameters() if not p.requires_grad}
    for name, samples in (("train", data.train), ("test", data.test)) if with_data else ():
        parts = {part: getattr(samples, part) for part in PARTS} | _inputs(samples)
        tensors |= {f"{name}.{part}": value.clone() for part, value in parts.items() if value is not None}
    compression = next((name for name, code in COMPRESSIONS.items() if code == network.compression), None)
    facts: dict[str, Any] = {"name": data.name, "classes": list(data.classes), "compression": compression}
    facts |= {"shape": list(made.shape), "outputs": made.classes, "inputs": type(data.train.x).__name__}
    facts |= {"autocast": str(network.learner.autocast or "").removeprefix("torch."), "uneven": network.uneven}
    each = optimizers_of(network)
    ways = list(dict.fromkeys(each))
    unnamed = all(ways) and not all(dict(way)["optimizer"] in OPTIMIZERS for way in ways)
    facts["optimizers"] = {"ways": ways, "of": [ways.index(way) for way in each]} if unnamed else None
    return SavedNetwork(tensors, {name: value for name, value in facts.items() if value != FACTS[name]})


def optimizers_of(network: Network) -> list[Settings]:
    """The settings of each participant's optimizer."""
    each = [network.learner.optimizer.settings] * network.nodes
    for group in network.groups:
        for k in group.nodes:
            each[k] = group.learner.optimizer.settings
    return each


def _inputs(samples: Samples) -> Tensors:
    """The inputs of samples by name: one tensor, or those of a dictionary or a tuple."""
    if isinstance(samples.x, torch.Tensor):
        return {"x": samples.x}
    named = samples.x.items() if isinstance(samples.x, dict) else enumerate(samples.x)
    return {f"x.{name}": value for name, value in named}


def remember(digest: str, network: Network) -> None:
    """Let commands in this process use this network, as long as it exists, instead of building it again."""
    _living[digest] = network


def write(folder: Path, kept: SavedNetwork) -> None:
    """Write the file of a saved network."""
    write_tensors(folder / NETWORK, kept.tensors, {"network": json.dumps({"format": FORMAT, **kept.written})})


def read(folder: Path, config: Config) -> SavedNetwork:
    """Read the file of a saved network, which must belong to these settings."""
    tensors, metadata = read_tensors(folder / NETWORK, None)
    try:
        kept = SavedNetwork(tensors, dict(jsonl.parse(metadata["network"])))
    except (KeyError, TypeError, ValueError) as error:
        raise files.damaged(folder / NETWORK, f"it lacks what it is: {error}") from None
    files.check_format(folder / NETWORK, kept.written.pop("format", FORMAT), FORMAT)
    if later := sorted(set(kept.written) - set(FACTS)):
        how = "Read it with the version of cascadice that wrote it"
        raise ValueError(f"{folder / NETWORK} has unknown entries: {', '.join(later)}. {how}.")
    if lacking := {"q", "initial.theta"} - set(tensors):
        raise files.damaged(folder / NETWORK, f"it lacks {', '.join(sorted(lacking))}")
    if kept.digest != config.saved:
        raise ValueError(f"{folder / NETWORK} belongs to another run. Restore the one that was saved with it.")
    return kept


def data_of(folder: Path, config: Config, root: str | None = None) -> DataSet:
    """The data of the run in a folder: saved with it, or loaded by name."""
    if config.saved is not None and not references.is_reference(config.data):
        kept = read(folder, config)
        if "train.y" in kept.tensors:
            return _data_in(kept)
    return sources.load_data(config.data, root or config.data_root)


def is_uneven(folder: Path, config: Config) -> bool:
    """Whether the network of the run in a folder is uneven; a network that settings describe never is."""
    return config.saved is not None and bool(read(folder, config).facts["uneven"])


def _data_in(kept: SavedNetwork) -> DataSet:
    def samples(name: str) -> Samples:
        inputs = store.starting(f"{name}.x.", kept.tensors)
        x: Any = tuple(inputs.values()) if kept.facts["inputs"] == "tuple" else inputs
        y, mean, std = (kept.tensors.get(f"{name}.{part}") for part in PARTS)
        return Samples(kept.tensors.get(f"{name}.x", x), y, mean, std)  # type: ignore[arg-type]

    return DataSet(str(kept.facts["name"]), samples("train"), samples("test"), tuple(kept.facts["classes"]))


def network_of(folder: Path, config: Config, settings: Mapping[str, Any] | None = None) -> Network:
    """The network saved in a folder: the original object if this process saved it, otherwise a rebuilt one."""
    living = _living.get(config.saved or "")
    if living is not None and not settings:
        return as_drawn(living, folder)
    changed = override(config, settings or {})
    for what in unknown(changed):
        how = f"Add --{what} package.module:name, a function that can be imported; or name one in"
        which = f"the {what} {getattr(changed, what)!r} was built in Python"
        raise ValueError(f"{which}, and this process does not know how to build it. {how} cascadice.save({what}=…).")
    kept, numbers = read(folder, config), store.saved_rounds(folder)
    if config.optimizer == UNNAMED and kept.facts["optimizers"] is None:
        how = "Use the process that saved the network (cd.score, cd.report), or train with one of"
        which = "the optimizer was written in Python, and this process does not know how to build it"
        raise ValueError(f"{which}. {how} {', '.join(OPTIMIZERS)} or of torch.optim.")
    if not numbers:
        raise ValueError(f"{folder} has no recorded rounds. Save it again, with its rounds.")
    built = as_drawn(_assembled(folder, changed, kept, store.load_draw(folder, numbers[0])), folder)
    layout = store.layout(built.learner.training)
    check_recording(built, [store.load_round(folder, numbers[0], layout=layout, device=built.device)])
    return built


def _assembled(folder: Path, config: Config, kept: SavedNetwork, first: Draw) -> Network:
    """The network, with schedules that return what was drawn in this round."""
    data, tensors, facts = data_of(folder, config), kept.tensors, kept.facts
    shape, outputs = facts["shape"] or data.train.shape, facts["outputs"] or len(data.classes)
    held = [tensors[f"holds.{k}"] for k in range(len(first.batch)) if f"holds.{k}" in tensors]
    batch = first.batch.clamp(min=0) if facts["uneven"] else first.batch  # in which nobody is missing
    lr = first.lr[:, 0] if isinstance(first.lr, torch.Tensor) and first.lr.dim() > 1 else first.lr
    built = assemble(
        lambda: _frozen(sources.make_model(config.model, shape, outputs, read_options(config.model_options)), tensors),
        data, mixing=lambda t: first.W, batches=batch[None], lr=lambda t: lr,
        loss=sources.training_loss(config.loss), q=tensors["q"], seed=config.seed, device=config.device,
        optimizer=_optimizers(config, facts, len(first.batch)), dtype=config.dtype,
        corruptions=[corruption.parse(text) for text in config.corruptions],
        behaviours=[parse_behaviour(text) for text in config.behaviours],
        compression=facts["compression"], strategy=config.strategy,
    )  # fmt: skip
    initial = tree_map(lambda tensor: tensor.to(built.device), store.from_tensors("initial.", tensors))
    weights = tensors.get("sample_weights")
    weights = None if weights is None else weights.to(built.device)
    built = replace(built, initial=initial, sample_weights=weights, partition=held or None)
    if facts["autocast"]:
        precision = lookup({**DTYPES, "float16": torch.float16}, facts["autocast"], "dtype")
        built = replace(built, learner=replace(built.learner, autocast=precision))
    return replace(built, uneven=True) if facts["uneven"] else built


def _optimizers(config: Config, facts: Mapping[str, Any], nodes: int) -> list[Optimizer]:
    """The optimizer of each participant; those with the same settings share one object."""
    if (unnamed := facts["optimizers"]) is not None:
        ways = [rebuilt(dict(way)) for way in unnamed["ways"]]
        return [ways[number] for number in unnamed["of"]]
    each = [optimizer_of(one) for one in per_participant(config, nodes)]
    shared = {optimizer.settings: optimizer for optimizer in each}
    return [shared[optimizer.settings] for optimizer in each]


def _frozen(model: nn.Module, tensors: Tensors) -> nn.Module:
    """The model with its frozen parameters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (value := tensors.get(f"frozen.{name}")) is not None and value.shape == parameter.shape:
                parameter.copy_(value)
    return model


def unknown(config: Config) -> list[str]:
    """Which of "model" and "loss" other processes cannot build unless told how by the flag of that name."""
    named: list[tuple[str, str, Mapping[str, Any]]]
    named = [("model", config.model, models.MODELS), ("loss", config.loss, LOSSES)]
    return [what for what, name, table in named if name not in table and not references.is_reference(name)]


def as_drawn(network: Network, folder: Path) -> Network:
    """The network with the recorded draws in place of its schedules."""
    # earlier rounds draw what the first recorded one drew: forecasts look at round 0, which `playable` refuses to train
    first = next(iter(store.saved_rounds(folder)), 0)
    known: Callable[[int], Draw] = lru_cache(maxsize=4)(lambda t: store.load_draw(folder, max(t, first)))
    drawn: dict[str, Any] = {"batches": lambda t: known(t).batch}
    if not network.members:  # a process recorded its own rows of W alone
        drawn["mixing"] = lambda t: known(t).W
    if known(first).generators:
        drawn["generators"] = lambda t: known(t).generators
    return replace(network, **drawn, lr=lambda t: known(t).lr)
