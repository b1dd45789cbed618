"""What `cascadice check` verifies: every file of a run, whether the files fit together, and the data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from cascadice import files
from cascadice.applications.reward.audit import ledger_of
from cascadice.applications.reward.ledger import Ledger, read_ledger
from cascadice.applications.reward.seals import check_sealed, check_terms_sealed
from cascadice.files import checksums, digests, locks
from cascadice.files.tensors import read_tensors
from cascadice.influence.tables import NOTE, parts, read_note, read_table
from cascadice.report.page.sections import SHOWN, audited, together
from cascadice.runs import store
from cascadice.runs.config import Config
from cascadice.runs.distributed.gathering import mixed_up
from cascadice.runs.folder import (
    CHAIN,
    CONFIG,
    WRITERS,
    check_data,
    check_length,
    read_manifest,
    read_run_config,
    run_fingerprint,
)
from cascadice.runs.question import length_in
from cascadice.runs.saved import data_of
from cascadice.runs.summary import check_range

SEAL = "seal"
REPEATS, PAUSE = 3, 0.2  # checks while another process writes, and seconds between them
READ = (".safetensors", ".parquet")  # commands read these, so an unlisted one is suspicious


@dataclass
class Area:
    """A part of a run: its number of files, how they were checked, and what is wrong with them."""

    name: str
    files: int = 0
    how: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def attempt(self, how: str, check: Callable[..., Any], *given: Any, about: Path | None = None, **more: Any) -> Any:
        """Run a check and return its result, or None if it raised; the problem is kept, prefixed by `about`."""
        self.how.append(how)
        try:
            return check(*given, **more)
        except (ValueError, TypeError, KeyError, OSError) as error:
            said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            text = " ".join(str(said).split() if about is None else f"{about}: {said}".split())
            if not any(known in text or text in known for known in self.problems):
                self.problems.append(text)
        return None


def check_run(run: files.Folder, key: bytes | None = None, data_root: str | None = None) -> list[Area]:
    """Verify everything in the folder of a run, and with the secret `key` the seals of its ledgers; change nothing.

    If something seems wrong while another process writes to the folder, everything is checked again, and only problems
    seen each time count. Cost: every file is read twice. Raises ValueError if the folder holds no run.
    """
    folder = Path(run)
    busy, areas = locks.in_use(folder), _check_once(folder, key, data_root)
    for _ in range(REPEATS):
        if not any(area.problems for area in areas) or not (busy or locks.in_use(folder)):
            break
        sleep(PAUSE)
        before = {problem for area in areas for problem in area.problems}
        busy, areas = locks.in_use(folder), _check_once(folder, key, data_root)
        for area in areas:
            area.problems = [problem for problem in area.problems if problem in before]
    return areas


def _check_once(folder: Path, key: bytes | None, data_root: str | None) -> list[Area]:
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} holds no run: {CONFIG} does not exist. Name a folder that {WRITERS} wrote.")
    areas = _listed(folder)
    settings = _area(areas, "settings")
    config = settings.attempt("read", read_run_config, folder)
    manifest = settings.attempt("format", read_manifest, folder)
    identity = settings.attempt("fingerprint", run_fingerprint, folder, config) if config else None
    if config is not None:
        _check_data(_area(areas, "data"), folder, config, data_root)
    _check_training(areas, folder, identity)
    for table in sorted({path.parent for path in folder.glob(f"*/{NOTE}")}):
        _check_table(_area(areas, table.name), table, identity, (manifest or {}).get("nodes"))
    for ledger in sorted({path.parent for path in folder.glob(f"*/{CHAIN}")}):
        _check_ledger(_area(areas, ledger.name), ledger, identity, key)
    for table in sorted({path.parent for path in folder.glob("*/part-*.parquet")}):
        if not (table / NOTE).exists() and not (table / CHAIN).exists():
            _area(areas, table.name).problems.append(f"{table} has parts of a table, but neither {NOTE} nor {CHAIN}")
    for path in sorted(folder.glob("*/*.json")):
        if path.stem == path.parent.name and path.name != NOTE:
            _check_record(_area(areas, path.parent.name), path, identity, key)
    if key is not None and not any(SEAL in area.how for area in areas.values()):
        _area(areas, "ledger").problems.append(f"{folder} has no ledger whose seal the key could verify")
    return list(areas.values())


def check_processes(folders: Sequence[Path]) -> Area:
    """Verify that the folders of several processes are of one run, and that what they computed together agrees."""
    area = Area("processes")
    if wrong := area.attempt("one run", mixed_up, folders):
        area.problems.append(wrong)
    for name in SHOWN:
        paths = [path for folder in folders if (path := folder / name / f"{name}.json").exists()]
        if len(paths) > 1:
            area.attempt("results", _check_together, name, paths, about=folders[0].parent / "*" / name)
    return area


def _check_together(name: str, paths: Sequence[Path]) -> None:
    together(name, [files.read_json(path) for path in paths])


def _area(areas: dict[str, Area], name: str) -> Area:
    return areas.setdefault(name, Area(name))


def _listed(folder: Path) -> dict[str, Area]:
    """Compare every file with the list of checksums."""
    areas = {name: Area(name) for name in ("settings", "data", "training", "rounds")}
    listing = checksums.list_for(folder / CONFIG)
    if listing is None or listing.folder != folder.absolute():
        return areas
    for name in [*listing.files]:  # a run that trains adds to them
        _check_listed(_area(areas, _area_of(name)), listing, name)
    for path in checksums.unlisted(listing):
        if path.suffix in READ and path.exists():
            wrong = f"{path} is not listed in {checksums.LIST}"
            _area(areas, _area_of(path.relative_to(listing.folder).as_posix())).problems.append(wrong)
    return areas


def _check_listed(area: Area, listing: checksums.ChecksumList, name: str) -> None:
    path, before = listing.folder / name, len(area.problems)
    if wrong := area.attempt("checksums", checksums.problem, listing, path):
        area.problems.append(f"{path} {wrong}")
    elif name.endswith(digests.TENSORS):
        area.attempt("content", read_tensors, path, None)
    current = checksums.list_for(listing.path) if area.problems[before:] else None
    if current and name not in current.files:  # a run that trains has removed it meanwhile
        del area.problems[before:]
    else:
        area.files += 1


def _area_of(name: str) -> str:
    if "/" in name:
        return name.split("/")[0]
    return "settings" if name in (CONFIG, checksums.MANIFEST) else "training"


def _check_data(area: Area, folder: Path, config: Config, data_root: str | None) -> None:
    data = area.attempt("read", data_of, folder, config, data_root)
    if data is not None:
        area.attempt("digest", check_data, folder, data)
    with suppress(ValueError):
        if "data" not in read_manifest(folder):
            area.how = ["no digest was recorded"]


def _check_training(areas: dict[str, Area], folder: Path, identity: str | None) -> None:
    training, rounds = _area(areas, "training"), _area(areas, "rounds")
    if (folder / store.CHECKPOINT).exists():
        training.attempt("content", store.load_checkpoint, folder, run=identity)
    if (folder / store.METRICS).exists():
        training.attempt("content", store.read_metrics, folder)
    rounds.files = max(rounds.files, len(store.saved_rounds(folder)))
    for t in store.saved_rounds(folder):
        rounds.attempt("content", _check_round, folder, t, identity)


def _check_round(folder: Path, t: int, identity: str | None) -> None:
    try:
        store.load_round(folder, t, run=identity)
    except FileNotFoundError:
        if t in store.missing_rounds(folder):  # else a run that trains has removed it meanwhile
            raise


def _check_table(area: Area, folder: Path, identity: str | None, nodes: int | None) -> None:
    note = area.attempt("run", read_note, folder) or {}
    _check_identity(area, folder / NOTE, note.get("run"), identity)
    area.attempt("run", lambda: check_length(folder.parent, length_in(note)), about=folder)
    area.files = max(area.files, len(parts(folder)))
    if parts(folder) and (table := area.attempt("content", read_table, folder)) is not None and nodes:
        area.attempt("content", check_range, table, source=nodes, receiver=nodes)


def _check_ledger(area: Area, folder: Path, identity: str | None, key: bytes | None) -> None:
    ledger = area.attempt("chain", read_ledger, folder)
    if ledger is None:
        return
    area.files = max(area.files, len(ledger.rounds))
    area.problems += [f"{folder}: {wrong}" for wrong in ledger.problems.values()]
    _check_identity(area, folder / CHAIN, ledger.note.get("run"), identity)
    if key is not None:
        _check_seal(area, ledger, key)
    elif any(line.hmac for line in ledger.chain):
        area.how.append("sealed: give --seal to verify")


def _check_seal(area: Area, ledger: Ledger, key: bytes) -> None:
    if ledger.chain:  # else there is nothing that could be sealed
        area.attempt(SEAL, check_sealed, ledger, key)


def _check_record(area: Area, path: Path, identity: str | None, key: bytes | None) -> None:
    area.files = max(area.files, 1)
    results = area.attempt("run", files.read_json, path)
    if results is None:
        return
    _check_identity(area, path, results.get("run"), identity)
    before = len(area.problems)
    checked = area.attempt("", audited, results, path.parent) or []
    area.how[-1:] = ["computed again"] * any(not text.startswith("Not ") for text in checked)
    if key is not None and path.parent.name == "reward" and checked:  # its ledger may lie outside the run
        _check_seal(area, ledger_of(results, path.parent), key)
        area.attempt(SEAL, check_terms_sealed, results, key)
    area.problems[before:] = [f"{path}: {wrong}" for wrong in area.problems[before:]]


def _check_identity(area: Area, path: Path, found: Any, identity: str | None) -> None:
    if identity is not None and found != identity:
        area.problems.append(f"{path} belongs to another run: its fingerprint is {found}, that of the run {identity}")


def summary(areas: list[Area]) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table that is printed: part, files, what was checked, and how many things are wrong."""
    for area in areas:
        how = ", ".join(dict.fromkeys(area.how)) or "nothing there"
        yield area.name, str(area.files or ""), how, str(len(area.problems)) if area.problems else "ok"
