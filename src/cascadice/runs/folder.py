"""The folder of a run: its files, their fingerprint, who may write to it, and how it is cleared."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascadice import files
from cascadice.data.samples import DataSet, content_digest
from cascadice.engine import Network
from cascadice.files import checksums, jsonl, locks
from cascadice.files.digests import check_ordinary
from cascadice.runs import store
from cascadice.runs.config import Config, from_json, to_json
from cascadice.runs.distributed.departures import DEPARTURES

if TYPE_CHECKING:  # it reads manifests itself
    from cascadice.runs.distributed.processes import World

CONFIG, MANIFEST, FIGURE, HOLDINGS = "config.json", checksums.MANIFEST, "training.png", "partition.png"
WRITERS = "`cascadice run` or `cd.save`"  # of a run
CHAIN = "chain.jsonl"  # in the folder of a ledger
INFLUENCE, WHOLE_RUN, PAIRS = "influence", "whole-run", "pairs"
NETWORK = "network.safetensors"  # of a network that was built in Python
RUN_FILES = (
    CONFIG, MANIFEST, FIGURE, HOLDINGS, store.METRICS, store.CHECKPOINT, store.EARLIER, DEPARTURES, "rounds", INFLUENCE,
    WHOLE_RUN, NETWORK, checksums.LIST,
)  # fmt: skip
# of commands over the run
RESULTS = ("detect", "choose", "reward", "forget", "contribution", "validate", "ledger", PAIRS, "report.html")
ALL_FILES = (*RUN_FILES, *RESULTS)
BELOW = ("rounds", INFLUENCE, WHOLE_RUN, "unfinished", "models", *RESULTS)  # all the folders that commands write to
RUN_ID = "run_id"  # in the manifests of all processes of one run; those of earlier versions have none
DATA = "data"  # in the manifest: the digest of the data set; runs of version 0.1.0 have none
TARGETS, TOKENS = "targets", "tokens"  # in the manifest, where targets are several whole numbers for each sample
FORMAT = checksums.LISTED_RUN  # 1 was that of version 0.1.0, whose manifests do not say so

# What commands read in a manifest; anything may be missing.
NUMBERS: Mapping[str, Any] = {"rounds": int, "nodes": int, "seconds": (int, float)}
TEXTS = ("started", "fingerprint", DATA, RUN_ID)

SETTINGS_REMEDY = "Restore the settings that the run was trained with; to train with others, choose another --out"

# What may change when a run is resumed: where its files are, how long it runs, what it keeps.
INCIDENTAL = ("data_root", "mixing", "rounds", "epochs", "checkpoint_every", "record")

# The settings that version 0.1.0 put into its fingerprints, whatever their value.
SETTINGS_OF_0_1_0 = (
    "data", "nodes", "topology", "topology_options", "weights", "normalize", "connected", "link_loss", "partition",
    "per_node", "alpha", "classes_per_node", "model", "model_options", "loss", "init", "batch_size", "local_steps",
    "optimizer", "optimizer_options", "weight_decay", "clip", "lr", "lr_schedule", "rounds", "epochs", "corruptions",
    "behaviours", "seed", "device", "dtype", "strategy", "eval_every",
)  # fmt: skip


def check_folder(folder: Path, config: Config, resume: bool, overwrite: bool) -> None:
    """Check everything about the folder that can be checked before the network is built, without changing anything."""
    if resume and overwrite:
        raise ValueError("a run is either resumed or overwritten; found both. Leave one out.")
    check_writable(folder, "a run")
    present = {path.name for path in folder.iterdir()} - {locks.LOCK} if folder.exists() else set()
    if not present:
        if around := _first_run(Path(os.path.realpath(folder)).parents):  # only the other's writer may write there
            raise ValueError(f"{folder} is inside the run in {around}. Choose an --out that is outside every run.")
        return
    if not _holds_run(folder, present):
        raise ValueError(f"{folder} holds files that do not belong to a run. Choose another folder.")
    if resume:
        for name in BELOW:
            _check_not_linked(folder / name)
    if not (resume or overwrite):
        how = "Continue it with --resume, replace it with --overwrite, or choose another --out."
        if config.saved:  # from Python, where a run cannot be continued
            how = "Replace it with overwrite=True, or choose another folder."
        raise ValueError(f"{folder} already holds a run. {how}")
    recorded = determining(read_config(folder)) if resume and CONFIG in present else {}
    for name, value in determining(config).items():
        if value != recorded.get(name, value):
            found = f"{name} is {recorded[name]!r} in {folder}, {value!r} here"
            raise ValueError(f"a resumed run must keep its settings; {found}. Leave it out, or use another folder.")


def _check_not_linked(folder: Path) -> None:
    """Refuse a part of a run that is a link into another run, whose lock and checksums are others."""
    real = Path(os.path.realpath(folder))
    here, there = _first_run(folder.parents), _first_run([real, *real.parents])
    if here and there and not here.samefile(there):
        raise ValueError(f"{folder} is a link into the run in {there}. Put a folder of its own there.")


def _first_run(places: Iterable[Path]) -> Path | None:
    """The first of these folders that holds a run."""
    return next((place for place in places if (place / CONFIG).exists() and (place / MANIFEST).exists()), None)


def _holds_run(folder: Path, present: set[str]) -> bool:
    """Whether a folder holds a run, including one that died while it was being started or cleared."""
    if {CONFIG, MANIFEST} <= present or all(name in ALL_FILES or files.DRAFT.fullmatch(name) for name in present):
        return True
    try:
        check_ordinary(folder / MANIFEST)
        # not compared with the list, which may be lost, so that the run can be replaced
        return "cascadice" in jsonl.parse((folder / MANIFEST).read_bytes())["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def locked_for_writing(*folders: Path) -> Iterator[None]:
    """Lock these folders, or the runs that they are in; remove files that killed writers left unfinished."""
    with ExitStack() as stack:
        for folder in folders:
            _check_not_linked(folder)
        homes = (_first_run([*one.parents, *Path(os.path.realpath(one)).parents]) or one for one in folders)
        for home in dict.fromkeys(homes):
            check_writable(home)
            stack.enter_context(locks.locked(home))
            files.remove_drafts(home, *BELOW)
        for folder in folders:
            files.remove_drafts(folder)
        yield


def status_of(folder: files.Folder, manifest: Mapping[str, Any]) -> str | None:
    """The status of a run, or how it ended: "stopped" if it died while its manifest said that it was running."""
    status = manifest.get("status")
    return "stopped" if status == "running" and not locks.in_use(folder) else status


def check_writable(folder: Path, content: str = "the output") -> None:
    """Check that a folder can be written to, or made.

    Args:
        folder: The folder.
        content: What is to be written; part of the error.

    Raises:
        ValueError: If it is a file, or a link that leads nowhere.
        PermissionError: If it may not be written to.

    Example:
        >>> check_writable(Path("runs/mine"), "a run")
    """
    for place in (folder, *folder.parents):
        if place.is_symlink() and not place.exists():
            raise ValueError(f"{place} is a link that leads nowhere. Remove it, or choose another folder.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; {content} needs a folder. Choose another.")
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{nearest} is not a writable folder. Choose another.")


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read the configuration of a run, from its folder or its config.json."""
    path = Path(path) / CONFIG if Path(path).is_dir() else Path(path)
    content = files.read_json(path, SETTINGS_REMEDY)
    try:
        return from_json(content)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def launcher(processes: int) -> str:
    """The command that starts cascadice in this many processes."""
    return "cascadice" if processes == 1 else f"torchrun --nproc-per-node {processes} -m cascadice"


def resuming(folder: Path, manifest: Mapping[str, Any]) -> str:
    """The command that resumes the run in a folder; if it has several processes, in all of them."""
    process = manifest.get("process")
    if not isinstance(process, dict):
        return f"{launcher(1)} run --resume --out {folder}"
    home = folder.parent if (folder / CONFIG).exists() else folder
    return f"{launcher(process.get('of', 1))} run --resume --out {home}"


def read_run_config(folder: Path) -> Config:
    """Read the configuration in a folder that must hold a run."""
    if (folder / CONFIG).exists():
        return read_config(folder)
    if parts := len(list(folder.glob(f"rank-*/{CONFIG}"))):
        use = f"{launcher(parts)} COMMAND {folder}"
        raise ValueError(f"{folder} holds the run of {parts} processes, which compute together. Use: {use}")
    raise ValueError(f"{folder} holds no run: {CONFIG} does not exist. Name a folder that {WRITERS} wrote.")


def read_manifest(folder: files.Folder) -> dict[str, Any]:
    """Read a run's manifest; empty if there is none. Later formats are refused."""
    path = Path(folder) / MANIFEST
    if not path.exists():
        return {}
    manifest = files.read_json(path)
    files.check_format(path, manifest.get("format", FORMAT), FORMAT)
    for name, kinds in NUMBERS.items():
        found: Any = manifest.get(name, 0)
        if not isinstance(found, kinds) or found < 0:
            raise ValueError(f"{name} in {path} must be a number, at least 0; found {found!r}. Restore it from a copy.")
    for name in TEXTS:
        if not isinstance(manifest.get(name, ""), str):
            raise ValueError(f"{name} in {path} must be a string; found {manifest[name]!r}. Restore it from a copy.")
    return manifest


def check_length(folder: files.Folder, rounds: int | None, again: str = "--overwrite") -> None:
    """Raise ValueError if the run was continued after results about its final models, when it had `rounds` rounds."""
    now = read_manifest(folder).get("rounds", 0)
    if rounds is not None and rounds < now:
        about = f"the models after {rounds} rounds, but the run now has {now}"
        raise ValueError(f"it is about {about}. Repeat the command with {again}.")


def check_process(folder: Path, network: Network | None, world: "World") -> None:
    """Raise ValueError if the run in a folder belongs to another process; `network` is this one's part, if known."""
    if not (manifest := read_manifest(folder)):
        return
    then = manifest.get("process")
    if then is not None and not (isinstance(then, dict) and {"rank", "of", "members"} <= then.keys()):
        raise ValueError(f"process in {folder / MANIFEST} must have rank, of and members; found {then!r}. Restore it.")
    if then is None and world.alone:
        return
    wanted = f"{folder} must belong to process {world.rank} of {world.size}"
    if then is None:
        raise ValueError(f"{wanted}; it is the run of a single process. Leave out torchrun.")
    rank, of, members = then["rank"], then["of"], then["members"]
    if world.alone:
        how = f"{launcher(of)} COMMAND {folder.parent}"
        raise ValueError(f"{folder} is the part of one of {of} processes, which compute together. Use: {how}")
    if (rank, of) != (world.rank, world.size):
        how = f"Start {of} processes, in the order of their folders"
        raise ValueError(f"{wanted}; it is that of process {rank} of {of}. {how}.")
    if network is not None and members != list(network.members):
        raise ValueError(f"{folder} holds participants {members}; this process has {list(network.members)}.")


def check_data(folder: Path, data: DataSet) -> None:
    """Raise ValueError if the run in a folder was trained on other data."""
    then = read_manifest(folder).get(DATA)
    if then is not None and then != (now := content_digest(data)):
        found = f"the data set {data.name} is not the one that the run in {folder} was trained on"
        digests = f"its digest is {now[:12]}…, in {MANIFEST} {str(then)[:12]}…"
        raise ValueError(f"{found}: {digests}. Restore it, or name another folder with --data-root.")


def determining(config: Config) -> dict[str, Any]:
    """The settings that determine the rounds of a run; its length is one of them under a cosine schedule."""
    free = INCIDENTAL if "cosine" not in config.lr_schedule else set(INCIDENTAL) - {"rounds", "epochs"}
    return {name: value for name, value in to_json(config).items() if name not in free}


def fingerprint(config: Config, always: Sequence[str] = ()) -> str:
    """A digest of the settings that determine the rounds, and of the content of the mixing file.

    A setting at its default does not enter the digest, so a later version may add settings and still recognise the run;
    those in `always` do enter: with `SETTINGS_OF_0_1_0` this is the fingerprint of version 0.1.0.
    """
    changed = {f.name for f in fields(config) if getattr(config, f.name) != f.default}
    entering = {name: value for name, value in determining(config).items() if name in always or name in changed}
    if config.mixing:
        check_ordinary(Path(config.mixing))
    content = Path(config.mixing).read_bytes() if config.mixing else b""
    return blake2b(json.dumps(entering, sort_keys=True).encode() + content, digest_size=8).hexdigest()


def run_fingerprint(folder: files.Folder, config: Config | None = None) -> str:
    """The fingerprint that the files of a run carry: checkpoint, influence, ledger and results.

    It is computed from the settings (`config`, or the folder's) and must be the manifest's, so changed settings and a
    changed mixing file are noticed. Runs of version 0.1.0, whose manifests hold no fingerprint, keep the kind that
    version computed, also when they are resumed.
    """
    config = read_config(folder) if config is None else config
    manifest, old, new = read_manifest(folder), fingerprint(config, SETTINGS_OF_0_1_0), fingerprint(config)
    found = manifest.get("fingerprint", old if manifest else new)
    if found not in (old, new) and (Path(folder) / CONFIG).exists():  # else the run was cleared
        mixing = f" or the file {config.mixing}" if config.mixing else ""
        told = f"the fingerprint of its settings is {new}, that of the run {found}. {SETTINGS_REMEDY}"
        raise ValueError(f"{Path(folder) / CONFIG}{mixing} disagrees with {MANIFEST}: {told}.")
    return old if found == old else new


def clear(folder: Path) -> None:
    """Remove the files of a run and the results about it, and nothing else.

    The checkpoint is removed first, so that a half-cleared run starts again when it is resumed; the settings last, so
    that the rest is not mistaken for another run. The manifest stays until it is replaced: it marks the folder as that
    of a run even if this process dies on the way.
    """
    files.remove_drafts(folder, *BELOW)
    checksums.drop_unreadable(folder)
    first = (store.CHECKPOINT, store.EARLIER)
    others = [name for name in ALL_FILES if name not in (*first, CONFIG, MANIFEST, checksums.LIST)]
    for names in (first, others, [CONFIG]):
        for name in names:
            files.remove(folder / name)
        files.sync(folder)
