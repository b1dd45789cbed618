"""Open the journal of a run: a new one, or one that continues from the last checkpoint with the same bits."""

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_map

from cascadice import __version__, files
from cascadice.data.samples import content_digest
from cascadice.engine.networks import Network
from cascadice.runs import store
from cascadice.runs.config import Config
from cascadice.runs.distributed.departures import read_departures
from cascadice.runs.distributed.processes import ONE_PROCESS, World, folder_name
from cascadice.runs.distributed.shared_facts import not_one_run
from cascadice.runs.folder import BELOW, RUN_ID, check_data, check_process, fingerprint, read_manifest, run_fingerprint
from cascadice.runs.journal import Journal, delete_later_rounds, versions

CHECKPOINTS = 10  # of a run of several processes, which save theirs in the same rounds


def open_journal(
    folder: Path, config: Config, network: Network, rounds: int, resume: bool, world: World = ONE_PROCESS
) -> Journal:
    """Open a new journal, or resume from the last checkpoint; what was written after it is computed again."""
    identity = run_fingerprint(folder, config) if resume else fingerprint(config)
    every = config.checkpoint_every or (None if world.alone else -(-rounds // CHECKPOINTS))
    journal = Journal(folder, config, network, identity, content_digest(network.data), every, world)
    journal.run_id = _agreed_id(folder, resume, world)
    if not resume:
        return journal
    check_process(folder, network, world)
    if (checkpoint := _last_checkpoint(journal)) is not None:
        check_version(folder)
        check_data(folder, network.data)
        if checkpoint.t > rounds:
            raise ValueError(f"{folder} already has {checkpoint.t} rounds; {rounds} were requested. Request more.")
        journal.t = journal.checkpointed = checkpoint.t
        journal.participants = tree_map(lambda tensor: tensor.to(network.device), checkpoint.participants)
        metrics = store.metrics_so_far(folder)  # if no list says that there were any, going on may make some
        if not metrics and checkpoint.t == rounds:
            raise ValueError(f"{folder} is finished and its metrics are lost. Ask for more rounds, or use --overwrite.")
        journal.metrics = [m for m in metrics if m.t < checkpoint.t]
        journal.departures = read_departures(folder).before(checkpoint.t)
        manifest = read_manifest(folder)
        journal.earlier_seconds = manifest.get("seconds", 0.0)
        journal.earlier_versions, journal.warning = earlier_versions(manifest), version_warning(manifest)
        journal.started = manifest.get("started", journal.started)
    _check_earlier_rounds(journal)
    delete_later_rounds(journal)
    files.remove_drafts(folder, *BELOW)
    return journal


def _agreed_id(folder: Path, resume: bool, world: World) -> str | None:
    """A random id, or the one in the folders: runs with the same settings may depart differently from the schedule."""
    if world.alone:
        return None
    told = world.tell([read_manifest(folder).get(RUN_ID) if resume else None, secrets.token_hex(8)])
    folders = [folder_name(rank) for rank in range(world.size)]
    if wrong := not_one_run(folders, [{RUN_ID: known} for known, _ in told]):
        raise ValueError(wrong)
    return next((str(known) for known, _ in told if known), str(told[0][1]))


def _last_checkpoint(journal: Journal) -> store.Checkpoint | None:
    """The last checkpoint of this process; if processes wait for each other, the last one that all of them have."""
    names = [name for name in (store.CHECKPOINT, store.EARLIER) if (journal.folder / name).exists()]
    there = [store.load_checkpoint(journal.folder, **journal.identity, name=name) for name in names]
    if journal.world.alone or journal.world.carries_on:
        return there[0] if there else None
    common = journal.world.common([checkpoint.t for checkpoint in there])
    return next((checkpoint for checkpoint in there if checkpoint.t == common[-1]), None) if common else None


def _check_earlier_rounds(journal: Journal) -> None:
    """Check that the rounds before the checkpoint are complete, because a resumed run does not record them again."""
    missing = [t for t in store.missing_rounds(journal.folder) if t < journal.t]
    # if only the last ones are kept, earlier ones may be deleted, or back after a loss of power
    if store.rounds_to_keep(journal.config.record).most is not None:
        returned = [t for t in store.unlisted_rounds(journal.folder) if t < journal.t]
        store.delete_rounds(journal.folder, [*missing, *returned])
    elif missing:
        store.check_rounds(journal.folder)
    for t in (t for t in store.saved_rounds(journal.folder) if t < journal.t):
        store.load_round(journal.folder, t, **journal.identity)


def check_version(folder: Path) -> None:
    """Raise ValueError if a later version trained the run in a folder: this version may compute different bits."""
    versions = read_manifest(folder).get("versions")
    trained = str(versions.get("cascadice", "0")) if isinstance(versions, dict) else "0"
    later, now = ([int(part) for part in re.findall(r"\d+", each)[:3]] for each in (trained, __version__))
    if later > now:
        found = f"cascadice {trained}, which is later than {__version__}"
        raise ValueError(f"{folder} was trained with {found}. Resume it with that version.")


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
