"""Questions about a run: what updates did in the following rounds, or who helped the final models."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from cascadice import files
from cascadice.engine import Evaluation, Network, evaluate_on
from cascadice.influence.estimators import ESTIMATORS, PAIRS, WHOLE_RUN_KINDS
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.tables import NOTE, difference, parts, read_note
from cascadice.influence.weighted_run import focus
from cascadice.influence.whole_run_shares import POINTS
from cascadice.names import lookup
from cascadice.runs.folder import CHAIN, CONFIG, check_writable
from cascadice.runs.words import PLANNED

FORMAT = "cascadice-influence-2"  # 1 was that of version 0.1.0, whose notes do not say so
KINDS_OF: dict[str, Collection[str]] = {
    **dict.fromkeys(("hops", "sources", "every"), ESTIMATORS),
    "points": (*ESTIMATORS, "whole-run-shares"),
    "samples": (*ESTIMATORS, *WHOLE_RUN_KINDS),
    "at": ("whole-run", *PAIRS),
    "during": WHOLE_RUN_KINDS,
    "on": (*WHOLE_RUN_KINDS, *PAIRS),
}
"""Settings that only some kinds have, with these kinds."""


@dataclass(frozen=True)
class Question:
    """Which influence to compute: of rounds, or of the whole run on its final models.

    Attributes:
        kinds: Estimators, names of `cascadice list kinds`; all about rounds, or all about the final models.
        hops: For how many rounds to follow an update.
        samples: Whether to score single training samples too.
        points: Quadrature points; by default 2, and 3 for whole-run shares.
        sources: The participants whose updates are scored (None: all).
        every: Score the updates of every N-th round.
        eval_samples: How many of the first test samples the loss is evaluated on (None: all).
        at: The weight of all updates in the run at which "whole-run" and "pairs" take the derivative.
        during: The first round whose updates are weighted, and the one after the last (None: all rounds).
        on: The final models to measure: "all", "average" or the number of a participant.
    """

    kinds: tuple[str, ...] = ("first-order",)
    hops: int = 1
    samples: bool = False
    points: int = None  # type: ignore[assignment]  # unless given, it depends on the kinds
    sources: tuple[int, ...] | None = None
    every: int = 1
    eval_samples: int | None = None
    at: float = 1.0
    during: tuple[int, int] | None = None
    on: str | int = "all"

    @property
    def final(self) -> bool:
        """Whether the question is about the final models."""
        return self.kinds[0] not in ESTIMATORS

    @property
    def rounds_counted(self) -> range | None:
        """The rounds whose updates are weighted; None means all."""
        return None if self.during is None else range(*self.during)

    @property
    def rounds_needed(self) -> int:
        """How many rounds are needed to score one: itself, and those through which its updates travel."""
        return max(1, self.hops)

    @property
    def alphas(self) -> list[float]:
        """The distinct weights α at which a whole run is swept."""
        of_shares = [at for at, _ in weighted_points(self.points)] if "whole-run-shares" in self.kinds else []
        at = [] if self.kinds == ("whole-run-shares",) else [self.at]
        return list(dict.fromkeys([*at, *of_shares]))

    def __post_init__(self) -> None:
        for name, given in (("kinds", self.kinds), ("sources", self.sources)):
            if given is not None and (not given or len(set(given)) < len(given)):
                raise ValueError(f"{name} must hold at least one entry, each once; found {list(given)}.")
        changed = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        check_kinds(self.kinds, (name for name in changed if name != "points"))  # `replace` would give its default
        if self.points is None:
            object.__setattr__(self, "points", POINTS if self.final else 2)
        for name, least in {"hops": 0, "points": 1, "every": 1, "eval_samples": 1}.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name.replace('_', '-')} must be at least {least}; found {value}.")
        if not 0 < self.at <= 1:
            raise ValueError(f"at must be above 0 and at most 1; found {self.at:g}.")
        if not self.hops and (self.samples or "shares" in self.kinds):
            raise ValueError("samples and shares need at least 1 hop; found 0. Ask for 1 or more.")


def check_kinds(kinds: Sequence[str], given: Iterable[str] = ()) -> None:
    """Raise ValueError unless these kinds are known, can be combined, and accept these flags."""
    for kind in kinds:
        lookup({**ESTIMATORS, **WHOLE_RUN_KINDS, **PAIRS}, kind, "kind")
    for known, about in ((ESTIMATORS, "rounds"), (PAIRS, "pairs of participants")):
        some = [kind for kind in kinds if kind in known]
        if 0 < len(some) < len(kinds):
            others = "whole-run kinds about the final models"
            raise ValueError(f"--kind {some[0]} is about {about}, {others}. Ask for one at a time.")
    for name in given:
        if not any(kind in KINDS_OF.get(name, kinds) for kind in kinds):
            allowed, found = ", ".join(KINDS_OF[name]), ", ".join(kinds)
            raise ValueError(f"--{name} is for --kind {allowed}; found {found}. Leave it out.")


def check_fits(question: Question, network: Network, rounds: int | None = None) -> None:
    """Check that a network has the participants, test samples and, for a whole run, the rounds of the question."""
    for source in question.sources or ():
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    check_eval_samples(question.eval_samples, network)
    focus(network, question.on)
    start, stop = question.during or (0, 1)
    if rounds is not None and not 0 <= start < stop <= rounds:
        raise ValueError(f"during must be within rounds 0:{rounds}, the first below the second; found {start}:{stop}.")


def check_eval_samples(count: int | None, network: Network) -> None:
    """Check that there are at least as many test samples as requested."""
    if (count or 0) > (available := len(network.data.test)):
        raise ValueError(f"--eval-samples must be at most {available}, the number of test samples; found {count}.")


def evaluate_on_first(count: int | None, network: Network) -> Evaluation:
    """The loss on the first `count` test samples, or on all of them."""
    check_eval_samples(count, network)
    return evaluate_on(network, network.data.test.subset(torch.arange(count or len(network.data.test))))


def question_note(question: Question, run: str, rounds: int | None = None) -> dict[str, str]:
    """The note that all parts of an influence table share; for a whole run, with its number of `rounds`."""
    about = {"hops": str(question.hops)} if rounds is None else {"rounds": str(rounds)}
    note = {"format": FORMAT, "run": run, "kinds": ", ".join(question.kinds)} | about
    usual, asked = (_in_words(each) for each in (Question(question.kinds), question))
    # without defaults, so that a later version may add settings
    return note | {name: value for name, value in asked.items() if value != usual[name]}


def _in_words(question: Question) -> dict[str, str]:
    """The settings of a question as a note stores them; not `every`, as rounds may be added later."""
    told = {f.name: getattr(question, f.name) for f in fields(question) if f.name not in ("kinds", "hops", "every")}
    lists = {name: ", ".join(map(str, value)) for name, value in told.items() if isinstance(value, tuple)}
    others = {name: "all" if value is None else str(value).lower() for name, value in told.items()}
    return {name.replace("_", "-"): text for name, text in (others | lists).items()}


def length_in(note: Mapping[str, object]) -> int | None:
    """The length of the run when its final models were scored; None if the note belongs to another question."""
    return int(str(note["rounds"])) if "rounds" in note else None


def check_note(out: Path, note: dict[str, str], overwrite: bool) -> dict[str, str]:
    """Check that the folder holds influence with the same settings, or none; return the note to use there."""
    check_writable(out, "influence")
    if (out / CONFIG).exists():
        raise ValueError(f"{out} is the folder of a run; influence needs its own. Choose another with --out.")
    if (out / CHAIN).exists() or (parts(out) and not (out / NOTE).exists()):
        raise ValueError(f"{out} holds other tables, such as a ledger; influence needs its own. Choose another --out.")
    if overwrite or not (out / NOTE).exists():
        return note
    existing = {name: value for name, value in read_note(out).items() if name != PLANNED}
    files.check_format(out / NOTE, existing.get("format", FORMAT), FORMAT)
    usual = _in_words(Question(tuple(note["kinds"].split(", ")))) | {"format": FORMAT}
    if differs := difference(usual | existing, {**note, **usual, **note}):  # in the order of the note
        remedy = "Choose another folder with --out, or replace it with --overwrite."
        raise ValueError(f"{out} holds influence with other settings: {differs}. {remedy}")
    return existing
