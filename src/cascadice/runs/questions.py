"""What to ask of a run: whose data helped whom. Answers go into a folder, part by part, and are told in the end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cascadice import files
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round
from cascadice.influence import evaluate_on, parts, read_note
from cascadice.influence.estimators import ESTIMATORS, RoundInfluence, score_rounds, table
from cascadice.influence.tables import NOTE, write_part
from cascadice.names import lookup
from cascadice.runs.config import Config, fingerprint
from cascadice.runs.folder import CONFIG, check_writable
from cascadice.runs.summary import InfluenceSummary, read

if TYPE_CHECKING:
    from rich.console import Console

FIGURE = "influence.png"


@dataclass(frozen=True)
class Question:
    """Which influence: of what kinds, how many hops on, of whose updates, judged on how many of the test samples."""

    kinds: tuple[str, ...] = ("first-order",)
    hops: int = 1
    samples: bool = False
    points: int = 2
    sources: tuple[int, ...] | None = None
    every: int = 1
    eval_samples: int | None = None

    @property
    def rounds(self) -> int:
        """How many rounds it takes to answer for one: its own, and those in which its updates travel on."""
        return max(1, self.hops)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            lookup(ESTIMATORS, kind, "kind")
        for name in ("kinds", "sources"):
            given = getattr(self, name)
            if given is not None and (not given or len(set(given)) < len(given)):
                raise ValueError(f"{name} must name at least one, each once; found {list(given)}.")
        for name, least in {"hops": 0, "points": 1, "every": 1, "eval_samples": 1}.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name.replace('_', '-')} must be at least {least}; found {value}.")
        if not self.hops and (self.samples or "shares" in self.kinds):
            raise ValueError("over 0 hops there are neither samples nor shares. Ask for at least 1 hop.")


def note_of(question: Question, config: Config) -> dict[str, str]:
    """What a folder of influence must agree on; `every` may differ, as more rounds may be added to it."""
    return {
        "run": fingerprint(config),
        "kinds": ", ".join(question.kinds),
        "hops": str(question.hops),
        "samples": str(question.samples).lower(),
        "points": str(question.points),
        "sources": "all" if question.sources is None else ", ".join(map(str, question.sources)),
        "eval-samples": "all" if question.eval_samples is None else str(question.eval_samples),
    }


def check_fits(question: Question, network: Network) -> None:
    """The sources must be participants, and there must be as many test samples as are asked for."""
    for source in question.sources or ():
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    if (question.eval_samples or 0) > (there := len(network.data.test)):
        raise ValueError(f"eval-samples must be at most {there}, the number there is; found {question.eval_samples}.")


def answers(network: Network, rounds: Iterable[Round], question: Question) -> Iterator[RoundInfluence]:
    """What is found as the rounds come by."""
    index = torch.arange(question.eval_samples or len(network.data.test))
    judged = evaluate_on(network, network.data.test.subset(index))
    return score_rounds(
        network, rounds, judged, hops=question.hops, kinds=question.kinds, samples=question.samples,
        points=question.points, sources=question.sources, every=question.every,
    )  # fmt: skip


def keep(folder: files.Folder, found: RoundInfluence, note: dict[str, str]) -> None:
    """Add what was found about a round to the table in a folder."""
    write_part(folder, table(found), found.round.t, note)


def check_folder(out: Path, note: dict[str, str], overwrite: bool) -> None:
    """What is in the folder must be influence of the same settings, or nothing; nothing is touched."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; influence needs a folder. Choose another with --out.")
    check_writable(out)
    if (out / CONFIG).exists():
        raise ValueError(f"{out} is the folder of a run; influence needs one of its own. Choose another with --out.")
    if overwrite or not (out / NOTE).exists():
        return
    found = read_note(out)
    for name in (*note, *found):
        if note.get(name) != found.get(name):
            raise ValueError(
                f"{out} holds influence of other settings: {name} is {found.get(name)!r} there, {note.get(name)!r} "
                "here. Choose another folder with --out, or replace it with --overwrite."
            )


def clear(out: Path) -> None:
    """Remove the table and its picture, and nothing else."""
    files.sweep(out)
    for path in (*parts(out).values(), out / NOTE, out / FIGURE):
        path.unlink(missing_ok=True)


def conclude(console: "Console", network: Network, run: files.Folder, out: Path) -> InfluenceSummary:
    """Read back all that is in the folder, draw it, and tell what it says."""
    from cascadice.pictures.influence import draw
    from cascadice.runs.words import tell

    found, data = read(out, run, network), network.data
    draw(found, out / FIGURE, title=f"influence among {network.nodes} participants on {data.name}")
    tell(console, found, data.classes, data.train.y if data.train.y.dim() == 1 else None)
    rounds = len(found.rounds)
    files = f"{FIGURE} and a table of {rounds} part{'s' * (rounds > 1)} in {out}"
    console.print(files, highlight=False, soft_wrap=True, markup=False)
    return found
