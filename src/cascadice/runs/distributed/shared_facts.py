"""Facts that all processes of a run must agree on: settings, data and model."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice import seeds
from cascadice.data import DataSet
from cascadice.data.inputs import in_precision
from cascadice.engine.learner import forward, unflatten
from cascadice.engine.networks import Network
from cascadice.runs import store
from cascadice.runs.config import Config, to_json
from cascadice.runs.folder import DATA, RUN_ID, determining, fingerprint, read_manifest
from cascadice.runs.question import Question

MAY_DIFFER = ("data_root", "mixing", "device", "strategy")  # settings in which processes may differ
PROBES = 64  # initial parameters, and outputs, that are compared
PROBED, SPREAD = 8, 0.1  # samples for which outputs are compared, and the size of the parameters

Facts = dict[str, Any]


def difference(told: Sequence[Mapping[str, Any]], places: Sequence[str]) -> str:
    """The first fact in which one of these places, in their order, differs from the first; "" if all agree."""
    first = told[0]
    for place, facts in zip(places, told, strict=True):
        for name in (*first, *facts):
            if facts.get(name) != first.get(name):
                return f"{name} is {facts.get(name)!r} in {place}, {first.get(name)!r} in {places[0]}"
    return ""


def not_one_run(folders: Sequence[str], told: Sequence[Facts]) -> str:
    """A message that these folders hold different runs, given the `facts_of_run` of each; "" if they hold one run."""
    known = next((facts[RUN_ID] for facts in told if facts.get(RUN_ID)), None)  # earlier versions wrote none
    found = difference([facts | {RUN_ID: facts.get(RUN_ID) or known} for facts in told], folders)
    return f"all processes must have folders of one run; {found}. Put back the folder of the same run." if found else ""


def facts_of_settings(config: Config) -> Facts:
    """The settings that all processes must share, and the content of the mixing file."""
    return _shared(to_json(config), config)


def facts_of_question(question: Question) -> Facts:
    """What is asked about influence, field by field."""
    return {f"the question's {name}": value for name, value in asdict(question).items()}


def facts_of_run(folder: Path, config: Config) -> Facts:
    """Facts that the folders of all processes of a run share; not the length, which differs until all have resumed."""
    manifest = read_manifest(folder)
    process = manifest.get("process")
    count = process.get("of") if isinstance(process, dict) else 1
    facts = {"the number of processes": count, "the digest of the data": manifest.get(DATA)}
    return _shared(determining(config), config) | facts | {RUN_ID: manifest.get(RUN_ID)}


def _shared(settings: Facts, config: Config) -> Facts:
    mixing = config.mixing and fingerprint(Config(mixing=config.mixing, nodes=None))
    return {name: settings[name] for name in settings if name not in MAY_DIFFER} | {"the mixing matrix": mixing}


def facts_of_network(network: Network, data: str) -> Facts:
    """The digest of the data, the shapes of parameters and buffers, and the lines of the printed model."""
    model = network.learner.training
    shapes = {f"the shape of {name}": shape for name, shape in json.loads(store.layout(model)).items()}
    lines = re.sub(r"\b0x[0-9a-f]+", "0x…", repr(model)).splitlines()  # addresses differ from process to process
    printed = {f"line {number} of the printed model": line.strip() for number, line in enumerate(lines, start=1)}
    return {"the digest of the data": data} | shapes | printed


def initial_probes(network: Network) -> list[float]:
    """Some initial parameters of the first participant and the norm of all of them, which identify the model."""
    return _some(network.initial.theta[0])


def output_probes(network: Network) -> list[float]:
    """Some outputs of the model, and their norm, for parameters and samples that are the same in every process.

    A printed model does not show what its `forward` does besides calling its modules.
    """
    learner, like = network.learner, network.initial.theta
    theta = SPREAD * torch.randn(learner.size, generator=seeds.generator(0, "output probes"), dtype=torch.float64)
    x = _probed_inputs(network.data)
    buffers = {name: value[0] for name, value in network.initial.buffers.items()}
    tensors = {**dict(unflatten(learner.evaluating, theta.to(like))), **buffers}
    with torch.no_grad():  # not in the lower precision of training, whose rounding differs from machine to machine
        return _some(forward(learner.evaluating, tensors, in_precision(x, like.dtype), None))


def _probed_inputs(data: DataSet) -> Any:
    """The first test samples; noise if there are none, because processes share no training samples."""
    if len(data.test):
        return data.test.take(torch.arange(min(PROBED, len(data.test))))[0]
    draws = seeds.generator(0, "probed inputs")

    def probed(values: Tensor) -> Tensor:
        shape = (PROBED, *values.shape[1:])
        real = values.is_floating_point() or values.dtype == torch.uint8
        return torch.rand(shape, generator=draws).to(values.device) if real else values.new_zeros(shape)

    return tree_map(probed, data.train.x)


def _some(values: Tensor) -> list[float]:
    values = values.detach().flatten().double().cpu()
    return [float(values.norm()), *values[:: max(1, len(values) // PROBES)].tolist()]
