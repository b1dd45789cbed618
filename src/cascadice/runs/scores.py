"""`cd.score`: who helped, from a network and its rounds, as tables to print, plot and export."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from cascadice.console import Console, counting, track
from cascadice.engine import Evaluation, Network, Round, evaluate_on, simulate
from cascadice.engine.evaluation import check_asked
from cascadice.influence import whole_run, whole_run_shares
from cascadice.influence.estimators import ESTIMATORS, WHOLE_RUN_KINDS, score_rounds, table
from cascadice.influence.quadrature import check_points, more_points
from cascadice.influence.tables import Table, concatenate
from cascadice.influence.uncertainty import bounds_of_totals, signs
from cascadice.influence.whole_run import WholeRun
from cascadice.influence.whole_run_shares import POINTS
from cascadice.names import lookup
from cascadice.runs.score_table import ScoreTable, paragraph
from cascadice.runs.summary import InfluenceSummary, has_linear_steps, injected_faults, summarise
from cascadice.runs.sweeps import rows_by_round
from cascadice.runs.words import caution, sum_in_words

if TYPE_CHECKING:
    import pandas

VERDICTS = {-1: "helped", 1: "harmed", 0: "within noise"}
QUESTIONS = {
    "whole-run": "the final models: how their test loss changes as a participant's data counts for more",
    "whole-run-shares": "the final models: each participant's share of what training did to their test loss",
}
FINAL, ROUND = "whole-run", "shares"  # unless a kind is given


def _span(rounds: Sequence[int]) -> str:
    """The number of rounds in words, and which ones unless they are the first."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if rounds[0] == 0 and rounds[-1] == len(rounds) - 1:
        return f"{len(rounds)} rounds"
    return f"rounds {rounds[0]} to {rounds[-1]} ({len(rounds)} rounds)"


@dataclass(frozen=True, eq=False)
class Scores:
    """Who helped: a table of participants and a separate table of samples. Negative helped, positive harmed.

    Attributes:
        kind: The estimator, a name of `cascadice list kinds`.
        question: What the numbers are about: the final models, or each round and the hops after it.
        participants: `participant`, `influence`, the `low` and `high` end of its 95 % interval (by how much it varies
            between rounds), and a `verdict`: helped, harmed or within noise. The most helpful first.
        updates: `[rounds, n]`: the influence of each participant's update in each round.
        rounds: The numbers of these rounds.
        sums: For whole-run shares, what they sum to and what training changed, in words.
        at: For whole-run, the weight of all updates in the run that is differentiated.
    """

    kind: str
    question: str
    participants: ScoreTable
    updates: NDArray[np.float64]
    rounds: tuple[int, ...]
    of_samples: ScoreTable | None = None
    sums: str = ""
    at: float = 1.0

    @property
    def _name(self) -> str:
        return self.kind if self.at == 1 else f"{self.kind} at {self.at:g}"

    @property
    def samples(self) -> ScoreTable:
        """`participant`, `sample` (its number in the training data), `uses`, `influence`; the lowest first.

        Then the `low` and `high` end of its 95 % interval (by how much scores vary between uses and rounds) and a
        `verdict`: helped, harmed, within noise, or used once, which has no interval.

        Raises:
            ValueError: If samples were not scored.
        """
        if self.of_samples is None:
            raise ValueError("samples were not scored. Ask for them: score(…, samples=True).")
        return self.of_samples

    def to_pandas(self) -> "pandas.DataFrame":
        """The participants as a data frame; samples are separate, in `scores.samples.to_pandas()`."""
        return self.participants.to_pandas()

    def plot(self, ax: Any = None) -> Any:
        """Each participant's influence with its interval; returns the Matplotlib axes, `ax` if given."""
        from cascadice.pictures.figures import contributions

        table = self.participants.columns
        injected = dict(zip(table["participant"].tolist(), table.get("injected", ()), strict=False))
        faulty = {node: kind for node, kind in injected.items() if kind}
        later = f", {_span(self.rounds)}" if self.rounds[0] else ""
        return contributions(self.updates, kind=self._name + later, injected=faulty, ax=ax)

    def __repr__(self) -> str:
        nodes = self.updates.shape[1]
        verdicts, samples = self.participants["verdict"].tolist(), len(self.of_samples or ())
        told = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
        more = f"; {samples:,} samples in .samples" if samples else ""
        about = f"Scores ({self._name}) of {nodes} participants over {_span(self.rounds)}: {told}{more}"
        notes = (self.sums, self.of_samples.caution if self.of_samples else "")
        below = "".join(f"\n{note}" for note in notes if note)
        return f"{about}\nabout {self.question}; negative helped\n{self.participants!r}{below}"

    def _repr_html_(self) -> str:
        about = f"{escape(self._name)} over {_span(self.rounds)}; negative helped"
        below = paragraph(self.sums) + (paragraph(self.of_samples.caution) if self.of_samples else "")
        return f"<b>Scores</b> ({about}){self.participants._repr_html_()}{below}"


def score(
    network: Network,
    rounds: int | Iterable[Round],
    hops: int | None = None,
    samples: bool = False,
    *,
    kind: str | None = None,
    evaluation: Evaluation | None = None,
    at: float = 1.0,
    points: int | None = None,
    progress: bool = False,
) -> Scores:
    """Score who helped the final models or, with `hops`, who helped in each round.

    These are two questions with different answers. The first, answered by whole-run influence, predicts retraining
    without a participant. The second is about what updates did in the following rounds, summed over rounds. It predicts
    retraining if data are IID, but no better than chance if participants hold different data.

    Args:
        network: The network, from `cd.network` or a `Recorder`.
        rounds: Its rounds, or how many to train. After `simulate(rule=...)`, pass the rounds.
        hops: For how many rounds to follow each update; None to measure the final models.
        samples: Score training samples too.
        kind: The estimator. For the final models: "whole-run" (default) or "whole-run-shares"; for rounds: "shares"
            (default), "truth", "first-order" or "path-integrated".
        evaluation: What to measure; by default the loss on the test data.
        at: The weight of all updates at which "whole-run" is computed. To predict runs that keep a fraction of the
            participants or samples, use that fraction.
        points: Quadrature points.
        progress: Show a progress bar; without a terminal, a few lines.

    Returns:
        The scores: `.participants`, `.samples`, `.to_pandas()`, `.plot()`.

    Raises:
        ValueError: If the kind does not match `hops`, or there are fewer rounds than hops.

    Example:
        >>> scores = score(network, cd.simulate(network, 100))
        >>> scores.participants["verdict"]
    """
    if not isinstance(hops, int | None):
        raise TypeError(f"hops must be a whole number, or None for the final models; found {hops!r}.")
    kinds = WHOLE_RUN_KINDS if hops is None else ESTIMATORS
    kind = (FINAL if hops is None else ROUND) if kind is None else kind
    if kind not in kinds and kind in (*WHOLE_RUN_KINDS, *ESTIMATORS):
        told = "is about rounds: give hops" if hops is None else "is about the final models: leave out hops"
        raise ValueError(f"kind {kind!r} {told}.")
    lookup(kinds, kind, "kind")
    kept = rounds if isinstance(rounds, int) else _listed(rounds)
    if not kept:
        raise ValueError("there must be at least one round to score; found none. Train first.")
    measured = evaluate_on(network) if evaluation is None else evaluation
    check_asked(network, measured)
    if points is not None:
        check_points(points)
    sums = ""
    if hops is None:
        found = _of_run(network, kept, measured, kind, samples, at, points or POINTS, progress)
        at = at if kind == "whole-run" else 1.0
        question = _question(kind, at, kept)
        rows = concatenate(rows_by_round(kind, found))
        if kind == "whole-run-shares":
            total, more = float(found.participants.sum()), more_points(points or POINTS)
            sums = sum_in_words(total, total - found.gap, f"Use more points: points={more}")
    else:
        far = f"{hops} hop{'' if hops == 1 else 's'}"
        question = f"each round: {ESTIMATORS[kind].question.format(hops=far)}"
        rows = _of_rounds(network, kept, measured, kind, hops, samples, points, progress)
    faults, linear = injected_faults(network), has_linear_steps(network)
    summary = summarise(rows, network.nodes, injected=faults, sees_scale=linear)
    return replace(_scores(summary, kind, question, network), sums=sums, at=at if hops is None else 1.0)


def _question(kind: str, at: float, rounds: int | list[Round]) -> str:
    """What whole-run numbers are about: the run at which α, and which of its rounds."""
    first = 0 if isinstance(rounds, int) else rounds[0].t
    weighted = "" if at == 1 else f", in the run with all updates × {at:g}"
    return QUESTIONS[kind] + weighted + (f"; what was trained before round {first} is not counted" if first else "")


def _listed(rounds: Iterable[Round]) -> list[Round]:
    """The rounds as a list; a single Round is a tuple itself, and would be taken apart."""
    listed = list(rounds) if isinstance(rounds, Iterable) and not isinstance(rounds, Round) else [None]
    if not all(isinstance(one, Round) for one in listed):
        raise TypeError(f"rounds must be a list of rounds, such as those of simulate; found {type(rounds).__name__}.")
    return listed  # type: ignore[return-value]


def _of_run(
    network: Network, rounds: int | list[Round], evaluation: Evaluation, kind: str, samples: bool, at: float,
    points: int, progress: bool,
) -> WholeRun:  # fmt: skip
    """The influence of every round on the final models."""
    length = rounds if isinstance(rounds, int) else len(rounds)
    alphas = 1 if kind == "whole-run" else points
    passes = 1 if alphas == 1 and at == 1 and not isinstance(rounds, int) else 2
    doing = "whole-run influence"
    with counting(passes * alphas * length, Console(quiet=not progress), doing) as count:
        more: dict[str, Any] = {"samples": samples, "played": lambda: count(lambda: doing)}
        if kind == "whole-run":
            return whole_run(network, rounds, evaluation, at=at, **more)
        return whole_run_shares(network, rounds, evaluation, points=points, **more)


def _of_rounds(
    network: Network, rounds: int | list[Round], evaluation: Evaluation, kind: str, hops: int, samples: bool,
    points: int | None, progress: bool,
) -> Table:  # fmt: skip
    """The rows of every round that is followed by enough rounds: the influence of its updates over `hops`."""
    length = rounds if isinstance(rounds, int) else len(rounds)
    coming = simulate(network, rounds, window=hops, taped=samples) if isinstance(rounds, int) else rounds
    results = score_rounds(network, coming, evaluation, hops=hops, kinds=(kind,), samples=samples, points=points or 2)
    total, doing = max(1, length - max(1, hops) + 1), "scoring rounds"
    return concatenate(map(table, track(results, total, Console(quiet=not progress), doing, lambda _: doing)))


def _scores(summary: InfluenceSummary, kind: str, question: str, network: Network) -> Scores:
    (updates,) = summary.updates.values()
    totals, bounds = updates.sum(0), bounds_of_totals(updates)
    order = np.argsort(totals, kind="stable")
    verdict = np.array([VERDICTS[int(sign)] for sign in signs(totals, bounds)], dtype=object)
    verdict[totals == 0] = "no influence"
    columns = {"participant": np.arange(len(totals)), "influence": totals, **bounds._asdict(), "verdict": verdict}
    if summary.injected:
        columns["injected"] = np.array([summary.injected.get(k, "") for k in range(len(totals))], dtype=object)
    participants = ScoreTable(question, {name: column[order] for name, column in columns.items()})
    return Scores(kind, question, participants, updates, summary.rounds, _samples(summary, question, network))


def _samples(summary: InfluenceSummary, question: str, network: Network) -> ScoreTable | None:
    if not summary.samples:
        return None
    (scores,) = summary.samples.values()
    whole = {"participant": "node", "sample": "sample", "uses": "uses"}
    names = whole | {"influence": "value", "low": "low", "high": "high"}
    found: dict[str, NDArray[Any]] = {
        name: np.array([getattr(one, field) for one in scores], dtype=int if name in whole else float)
        for name, field in names.items()
    }
    found["verdict"] = np.array([one.verdict for one in scores], dtype=object)
    data = network.data
    if data.classes and data.train.y.dim() == 1:
        labels = data.train.y[data.train.rows(torch.from_numpy(found["sample"]))]
        found["label"] = np.array([data.classes[label] for label in labels.tolist()], dtype=object)
    return ScoreTable(question, found, caution(summary))
