"""Checks and summaries for several processes that train one network together."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cascadice import files
from cascadice.console import Console, say
from cascadice.data import Samples
from cascadice.engine import DivergedError, Metrics, Network
from cascadice.engine.parts import split
from cascadice.files import locks
from cascadice.influence.uncertainty import Bounds
from cascadice.runs.config import Config
from cascadice.runs.distributed import shared_facts
from cascadice.runs.distributed.processes import World, folder_name
from cascadice.runs.folder import CONFIG, MANIFEST, clear, read_manifest
from cascadice.runs.journal import Journal
from cascadice.runs.recording import Playable
from cascadice.runs.round_metrics import RoundMetrics
from cascadice.runs.summary import EvaluationResult, InfluenceSummary, SampleScore, strongest_samples

COMMAND = "the command"
ROUNDED = 1e-3  # by which initial parameters and outputs may differ from machine to machine


def check(world: World, config: Config, out: Path, question: Any, live: Any, *, resume: bool, overwrite: bool) -> None:
    """Check that these processes have the same settings, and can train this configuration together.

    With `overwrite`, folders of additional processes of an earlier run are removed.
    """
    if config.rule is not None:
        raise ValueError(
            f"the rule {config.rule!r} needs all messages in one place, but processes send only to their "
            "neighbours. Leave out --rule, or train in one process."
        )
    if live is not None:
        raise ValueError("--live works only with one process. Leave it out, and use cascadice report.")
    if question is not None and world.policy != "stop":
        raise ValueError(
            f"influence during training needs every round of every process; --policy {world.policy} may lose some. "
            "Train with --record all, then use cascadice influence."
        )
    if (out / CONFIG).exists():
        raise ValueError(f"{out} is the folder of a run in one process. Choose another with --out.")
    flags = {"--resume": resume, "--overwrite": overwrite, "--tell-samples": world.tells_samples}
    asked = shared_facts.facts_of_question(question) if question else {}
    world.agree({COMMAND: "run"} | shared_facts.facts_of_settings(config) | flags | asked)
    if config.nodes is not None:
        split(config.nodes, world.size)  # before anything is written; refuses more processes than participants
    for path in out.glob("rank-*") if world.rank == 0 and overwrite else ():
        if path.name[5:].isdecimal() and int(path.name[5:]) >= world.size:
            with locks.locked(path):
                clear(path)
                files.remove(path / MANIFEST)


def check_network(world: World, network: Network, data: str, shared: bool) -> None:
    """Check that all processes have the same data, whose digest is `data`, and the same model.

    `shared` says whether all participants start with the same parameters.
    """
    if world.alone:
        return
    world.agree(shared_facts.facts_of_network(network, data))
    if shared and (rank := _differs(world.tell(shared_facts.initial_probes(network)))):
        raise ValueError(
            f"all processes must start with the same parameters, because --init is shared; those of process {rank} "
            "differ from those of process 0. Start all of them alike."
        )
    if rank := _differs(world.tell(shared_facts.output_probes(network))):
        raise ValueError(
            "all processes must have the same model; for the same parameters and inputs, its outputs in process "
            f"{rank} differ from those in process 0. Start all of them with the same code."
        )


def _differs(told: Sequence[Sequence[float]]) -> int:
    """The first process whose numbers differ from those of process 0 by more than rounding; 0 if there is none."""
    first = np.array(told[0])
    allowed = ROUNDED * np.abs(first[1:]).max()
    same = (len(one) == len(first) and np.allclose(one, first, ROUNDED, allowed, equal_nan=True) for one in told)
    return next((rank for rank, alike in enumerate(same) if not alike), 0)


def places(world: World, run: files.Folder, out: files.Folder | None, name: str) -> tuple[Path, Path]:
    """The folder of the run, or of this process in it; and the folder for results: `out`, or `name` inside the run's.

    Raises ValueError if several processes ask, and the folder is that of one.
    """
    if not world.alone and (Path(run) / CONFIG).exists():
        process = read_manifest(run).get("process")
        remedy = f"Name the folder above it: {Path(run).parent}" if process else "Leave out torchrun"
        which = "the part of one process" if process else "the run of a single process"
        raise ValueError(f"{run} must be the run of {world.size} processes; it is {which}. {remedy}.")
    folder = world.folder(run)
    return folder, folder / name if out is None else world.folder(out)


def agree(world: World, command: str, settings: Mapping[str, Any], overwrite: bool) -> None:
    """Check that all processes were given the same command with the same settings."""
    settings = {name: value for name, value in settings.items() if name not in shared_facts.MAY_DIFFER}
    asked = {COMMAND: command, "--overwrite": overwrite, "--tell-samples": world.tells_samples}
    world.agree(asked | settings)


def in_step(world: World, played: Playable) -> Playable:
    """The run, to be trained again by all processes alike: from recordings if all have them, with the same segments."""
    if world.alone:
        return played
    told = world.tell([played.rounds, played.recorded is not None, played.length])
    rounds, recorded, lengths = zip(*told, strict=True)
    if len(set(rounds)) > 1:
        raise ValueError(
            f"all processes must have the same number of rounds; found {', '.join(map(str, rounds))}. "
            "Continue the run with --resume."
        )
    return replace(played, recorded=played.recorded if all(recorded) else None, length=min(lengths), world=world)


def point_to_all(world: World, run: files.Folder, out: files.Folder | None, quiet: bool) -> None:
    """Say once that each process wrote about its own participants, and how to see all of them."""
    if not world.alone:
        folders = f"{folder_name(0)} to {folder_name(world.size - 1)}"
        page = f"; all on one page: cascadice report {run}" if out is None else ""
        console = Console(quiet=quiet or world.rank > 0)
        say(console, f"each of the {world.size} processes wrote about its own participants, into {folders}{page}")


def everybody(world: World, metrics: RoundMetrics) -> RoundMetrics:
    """What all processes measured in a round; the consensus distance, which needs all models, is NaN.

    If some processes may be missing, only what this one measured.
    """
    if world.alone or world.carries_on:
        return metrics
    rows = (metrics.train_loss, *(metrics.test or ()))
    told = world.tell([row.tolist() for row in rows])
    loss, *test = (torch.cat([torch.tensor(part).double() for part in row]) for row in zip(*told, strict=True))
    consensus = torch.full_like(metrics.consensus, torch.nan)
    return metrics._replace(train_loss=loss, consensus=consensus, test=Metrics(*test) if test else None)


def influence_of_everybody(world: World, summary: InfluenceSummary, members: Sequence[int]) -> InfluenceSummary:
    """The summary of what all processes computed about their own participants, as far as the console shows it.

    Samples are only those of this process, unless `world.tells_samples`. Cost: three numbers per participant and kind,
    and the strongest samples.
    """
    if world.alone:
        return summary
    totals, bounds, own = summary.participants, summary.bounds, list(members)
    numbers = {kind: np.stack([totals[kind], *bounds[kind]], 1) for kind in totals}
    told = world.tell({
        "members": own,
        "numbers": {kind: rows[own].tolist() for kind, rows in numbers.items()},
        "samples": {kind: strongest_samples(of) for kind, of in summary.samples.items()} if world.tells_samples else {},
        "verdicts": summary.verdicts,
        "tests": summary.test_results,
        "injected": list(summary.injected.items()),
    })  # fmt: skip
    for part, kind in ((part, kind) for part in told for kind in numbers):
        numbers[kind][part["members"]] = part["numbers"][kind]
    kinds = list(summary.samples)
    samples = {kind: [SampleScore(*one) for part in told for one in part["samples"].get(kind, ())] for kind in kinds}
    ordered = {kind: tuple(sorted(scores, key=lambda one: one.value)) for kind, scores in samples.items()}
    verdicts = {kind: sum((Counter(part["verdicts"].get(kind)) for part in told), Counter[str]()) for kind in kinds}
    return summary._replace(
        participants={kind: rows[:, 0] for kind, rows in numbers.items()},
        bounds={kind: Bounds(*rows[:, 1:].T) for kind, rows in numbers.items()},
        verdicts=verdicts,
        samples=ordered if world.tells_samples else summary.samples,
        test_results=_mean_results([(*test, len(part["members"])) for part in told for test in part["tests"]]),
        injected=dict(sorted((node, kind) for part in told for node, kind in part["injected"])),
    )


def labels_of_shown(world: World, summary: InfluenceSummary, train: Samples) -> dict[int, int] | None:
    """The class of each sample that this process's summary shows; with `world.tells_samples`, of all processes."""
    if train.y.dim() != 1:
        return None
    samples = sorted({one.sample for scores in summary.samples.values() for one in strongest_samples(scores)})
    own = list(zip(samples, train.y[train.rows(torch.tensor(samples, dtype=torch.int64))].tolist(), strict=True))
    told = world.tell(own) if world.tells_samples else [own]
    return {sample: label for part in told for sample, label in part}


def _mean_results(told: Sequence[tuple[int, str, float, int]]) -> tuple[EvaluationResult, ...]:
    """The means over all participants, from (round, metric, mean, participants) of each process."""
    sums, counts = defaultdict[tuple[int, str], float](float), Counter[tuple[int, str]]()
    for t, name, mean, count in told:
        sums[t, name] += mean * count
        counts[t, name] += count
    return tuple(EvaluationResult(*which, sums[which] / counts[which]) for which in sorted(sums))


def join_training(world: World, journal: Journal, rounds: int) -> None:
    """Before training, wait for all processes; if the others are already training, start from their parameters.

    Raises ConnectionError if the others are not there, or have finished.
    """
    if not world.carries_on:
        return
    assert journal.exchange is not None
    if not world.again:
        start = max(world.tell(journal.t))  # who has fewer rounds was away in the others
        journal.departures.away += range(journal.t, start)
        journal.t = start
        if not journal.exchange.post.meet(world.timeout):
            raise ConnectionError(f"some processes did not arrive within {world.timeout:g} s. Were all started?")
        return
    here = journal.participants or journal.network.initial
    heard = journal.exchange.listen(here, world.timeout)
    if heard is None or heard.start >= rounds:
        raise ConnectionError(
            "the other processes have stopped training. To continue from checkpoints, start all of them with --resume."
        )
    journal.departures.away += range(journal.t, heard.start)
    journal.t, journal.participants = heard.start, heard.participants


def named(network: Network, error: DivergedError) -> DivergedError:
    """The error with the participant's number in the whole network."""
    return error.within("", network.members[error.node]) if network.members else error
