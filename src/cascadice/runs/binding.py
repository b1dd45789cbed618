"""Check that a run's folder, settings, data and library version still belong together."""

import platform
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cascadice
from cascadice.data.samples import DataSet, content_digest
from cascadice.engine.networks import Network
from cascadice.runs.config import Config, build, override
from cascadice.runs.distributed.departures import read_departures, really
from cascadice.runs.distributed.processes import ONE_PROCESS, World, folder_name
from cascadice.runs.distributed.shared_facts import facts_of_run, not_one_run
from cascadice.runs.folder import DATA, MANIFEST, launcher, read_manifest, run_fingerprint
from cascadice.runs.saved import network_of


def build_recorded(
    folder: Path, config: Config, settings: Mapping[str, Any] | None = None, *, quiet: bool = False,
    world: World = ONE_PROCESS,
) -> Network:  # fmt: skip
    """Build the network of the run in a folder, after checking that it was trained with these settings and data.

    `settings` may change `device` and `data_root`. With several processes, each builds its part, and W has the rows
    that all processes really used.
    """
    run_fingerprint(folder, config)
    check_process(folder, None, world)
    if not world.alone:
        told = world.tell(facts_of_run(folder, config))
        if wrong := not_one_run([folder_name(rank) for rank in range(world.size)], told):
            raise ValueError(wrong)
    if config.saved is not None:
        network = network_of(folder, config, settings)
    else:
        network = build(override(config, settings or {}), quiet=quiet, processes=world.size, rank=world.rank)
    check_process(folder, network, world)
    check_data(folder, network.data)
    if world.alone:
        return network
    return replace(network, mixing=really(network.mixing, world.tell(read_departures(folder).rows)))


def check_process(folder: Path, network: Network | None, world: World) -> None:
    """Raise ValueError if the run in a folder belongs to another process; `network` is this one's part, if known."""
    if not (manifest := read_manifest(folder)):
        return
    then = manifest.get("process")
    if then is not None and not (isinstance(then, dict) and {"rank", "of", "members"} <= then.keys()):
        raise ValueError(f"process in {folder / MANIFEST} must have rank, of and members; found {then!r}. Restore it.")
    if then is None:
        if not world.alone:
            raise ValueError(
                f"{folder} must belong to process {world.rank} of {world.size}; it is the run of a single process. "
                "Leave out torchrun."
            )
        return
    rank, of, members = then["rank"], then["of"], then["members"]
    if world.alone:
        raise ValueError(
            f"{folder} is the part of one of {of} processes, which compute together. Use: {launcher(of)} COMMAND "
            f"{folder.parent}"
        )
    if (rank, of) != (world.rank, world.size):
        raise ValueError(
            f"{folder} must belong to process {world.rank} of {world.size}; it is that of process {rank} of {of}. "
            f"Start {of} processes, in the order of their folders."
        )
    if network is not None and members != list(network.members):
        raise ValueError(f"{folder} holds participants {members}; this process has {list(network.members)}.")


def check_data(folder: Path, data: DataSet) -> None:
    """Raise ValueError if the run in a folder was trained on other data."""
    then = read_manifest(folder).get(DATA)
    if then is not None and then != (now := content_digest(data)):
        raise ValueError(
            f"the data set {data.name} is not the one that the run in {folder} was trained on: its digest is "
            f"{now[:12]}…, in {MANIFEST} {str(then)[:12]}…. Restore it, or name another folder with --data-root."
        )


def check_version(folder: Path) -> None:
    """Raise ValueError if a later version trained the run in a folder: this version may compute different bits."""
    versions = read_manifest(folder).get("versions")
    trained = str(versions.get("cascadice", "0")) if isinstance(versions, dict) else "0"
    later, now = ([int(part) for part in re.findall(r"\d+", each)[:3]] for each in (trained, cascadice.__version__))
    if later > now:
        raise ValueError(
            f"{folder} was trained with cascadice {trained}, which is later than {cascadice.__version__}. Resume it "
            "with that version."
        )


def versions() -> dict[str, str]:
    """The versions of the software that computes here."""
    libraries = {"cascadice": cascadice.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {**libraries, "python": platform.python_version()}


def earlier_versions(manifest: Mapping[str, Any]) -> list[dict[str, str]]:
    """The other versions that have trained a run, oldest first, according to its manifest."""
    then = [*(manifest.get("earlier_versions") or ()), manifest.get("versions")]
    return [each for each in then if isinstance(each, dict) and each != versions()]


def version_warning(manifest: Mapping[str, Any]) -> str:
    """A warning that the bits may differ from an uninterrupted run's, if other versions trained the run last."""
    found = manifest.get("versions")
    now, then = versions(), found if isinstance(found, dict) else {}
    other = [name for name in ("torch", "numpy") if then.get(name, now[name]) != now[name]]
    each = " and ".join(f"{name} {then[name]} (now {now[name]})" for name in other)
    bits = "its bits may differ from those of a run that was never stopped"
    return f"a part of the run was trained with {each}: {bits}" if other else ""
