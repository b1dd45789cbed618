"""Train a configuration into a folder. A run can be stopped at any moment and resumed with the same bits."""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cascadice import files, loggers
from cascadice.console import Console, say, track
from cascadice.engine import DivergedError, Operator, Round, simulate
from cascadice.engine.distributed_training import carry_on
from cascadice.files import locks
from cascadice.influence.estimators import RoundInfluence
from cascadice.influence.trust import RULES
from cascadice.influence.trust import build as build_rule
from cascadice.names import lookup
from cascadice.runs import forecast, memory, store
from cascadice.runs.ask import answers, conclude, save_answer
from cascadice.runs.config import Config, build, length_of, to_json
from cascadice.runs.distributed import together
from cascadice.runs.distributed.processes import ONE_PROCESS, World
from cascadice.runs.folder import CONFIG, FIGURE, INFLUENCE, check_folder, check_writable, clear
from cascadice.runs.journal import Journal, begin, ending, enter
from cascadice.runs.progress import latest, print_closing, print_opening
from cascadice.runs.question import Question, check_fits, question_note
from cascadice.runs.resume import open_journal
from cascadice.runs.round_metrics import RoundMetrics, logged

LiveView = Callable[[Path, int], AbstractContextManager[Any]]
"""(folder, rounds) -> a context in which the run in this folder is shown while it trains"""


class Summary(NamedTuple):
    """How a run ended."""

    folder: Path
    rounds: int
    seconds: float
    strategy: str
    last: RoundMetrics


def run(
    config: Config,
    out: files.Folder,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    download: bool = False,
    question: Question | None = None,
    live: LiveView | None = None,
    world: World = ONE_PROCESS,
    callbacks: Sequence[loggers.Callback] = (),
) -> Summary:
    """Train the network that `config` describes and write everything to a folder.

    Args:
        config: The settings of the run.
        out: The folder of the run.
        resume: Continue from the folder's checkpoint, or from the beginning if there is none. The final parameters are
            those of a run that was never stopped.
        overwrite: Replace the run in the folder.
        quiet: Print nothing.
        download: Fetch the data set if it is not on this machine.
        question: Influence to compute during training; it goes into the subfolder `influence`.
        live: A view of the run during training, e.g. `partial(cascadice.report.live.serving, port=0)`.
        world: The processes that train together; each writes its own participants to its own folder in `out`.
        callbacks: Called with every round's metrics and influence, e.g. `loggers.TensorBoard("logs")`.

    Returns:
        How the run ended.

    Raises:
        DivergedError: If a participant became NaN or infinite; the rounds before it are kept.

    Example:
        >>> run(Config(rounds=10, epochs=None), "runs/mine", quiet=True).rounds  # doctest: +SKIP
        10
    """
    folder = world.folder(out)
    store.rounds_to_keep(config.record)
    _check_rule(config, resume, question)
    if question is not None and resume:
        how = "Train with --record all, then use cascadice influence"
        raise ValueError(f"influence cannot be computed for the rounds before a resume. {how}.")
    if not world.alone:
        together.check(world, config, Path(out), question, live, resume=resume, overwrite=overwrite)
        if world.begun:  # it was started again, and goes on with what it wrote
            resume, overwrite = True, False
    check_writable(folder, "a run")
    with locks.locked(folder):
        check_folder(folder, config, resume, overwrite)
        network = build(config, download=download, quiet=quiet, processes=world.size, rank=world.rank)
        rounds = length_of(config, network)
        if question is not None:
            if question.hops > rounds:
                found = f"the run has {rounds}. Use fewer hops"
                raise ValueError(f"{question.hops} hops need at least as many rounds; {found}.")
            check_fits(question, network)
        needs = forecast.of_training(network, rounds, question.hops if question else 0, config.record != "none")
        needs += forecast.of_influence(network, question) if question else []
        memory.check("this run", needs, network.device)
        journal = open_journal(folder, config, network, rounds, resume, world)
        together.check_network(world, network, journal.data, config.init == "shared")
        with nullcontext() if live is None else live(folder, rounds), world.exchange(network) as exchange:
            journal.next_update, journal.exchange = math.inf if live is None else 0.0, exchange
            if overwrite:
                clear(folder)
            console = Console(quiet=quiet or world.rank > 0)
            return _run(journal, rounds, console, question, callbacks)


def _run(
    journal: Journal, rounds: int, console: Console, question: Question | None, callbacks: Sequence[loggers.Callback]
) -> Summary:
    """Train into a folder that is ready for it, and print the results."""
    folder, network = journal.folder, journal.network
    begin(journal)
    together.join_training(journal.world, journal, rounds)
    if not console.quiet:
        print_opening(console, network, rounds, journal.config.mixing or journal.config.topology)
    about, warn = to_json(journal.config), Console(stderr=True)
    if journal.warning:
        say(warn, f"warning: {journal.warning}")
    with ending(journal), loggers.telling(callbacks, about, lambda text: say(warn, f"warning: {text}")) as tell:
        _train(journal, rounds, console, question, tell)
    print_closing(console, together.everybody(journal.world, journal.metrics[-1]), network.members)
    recorded = f" and {len(saved)} recorded rounds" if (saved := store.saved_rounds(folder)) else ""
    names = ", ".join((FIGURE, store.METRICS, CONFIG, store.CHECKPOINT))
    say(console, f"trained in {journal.seconds:.1f} s; wrote {names}{recorded} to {folder}")
    if question is not None:
        conclude(console, network, folder, folder / INFLUENCE, journal.world)
    return Summary(folder, rounds, journal.seconds, network.strategy, journal.metrics[-1])


def _train(journal: Journal, rounds: int, console: Console, question: Question | None, tell: loggers.Report) -> None:
    network, members = journal.network, journal.network.members
    done = _rounds(journal, rounds, tell, *((question.hops, question.samples) if question else ()))
    trained = track(
        done, rounds, console, "training", lambda round: f"trained round {round.t}", start=journal.t,
        state=lambda: latest(journal.metrics, members),
    )  # fmt: skip
    if question is None:
        deque(trained, maxlen=0)
        return
    note = question_note(question, journal.fingerprint)
    with closing(done), closing(trained):
        for answer in answers(network, trained, question, journal.exchange):
            save_answer(journal.folder / INFLUENCE, answer, note, members)
            tell(answer.round.t, partial(_influence_metrics, answer, members))


def _influence_metrics(answer: RoundInfluence, members: Sequence[int]) -> dict[str, float]:
    """The influence of each source's update on everyone, by kind."""
    totals = {cascade.kind: (cascade.sources, cascade.total) for cascade in answer.cascades}
    totals |= {kind: (range(len(scores)), scores) for kind, scores in answer.participants.items()}
    metrics: dict[str, float] = {}
    for kind, (sources, scores) in totals.items():
        each = {members[j] if members else j: float(score) for j, score in zip(sources, scores, strict=True)}
        each = {j: score for j, score in each.items() if not math.isnan(score)}  # sources that were not asked for
        name = kind.partition(",")[0].replace(" ", "-")
        metrics |= loggers.of_participants(f"influence/{name}", list(each.values()), list(each))
    return metrics


def _rounds(
    journal: Journal, rounds: int, tell: loggers.Report, window: int = 0, taped: bool = False
) -> Generator[Round, None, None]:
    """Yield the rounds, each entered into the journal and passed to the loggers first."""
    network, exchange = journal.network, journal.exchange
    rule = build_rule(journal.config.rule, network) if journal.config.rule else None
    options: dict[str, Any] = {"start": journal.t, "participants": journal.participants, "rule": rule}
    options |= {"window": window, "taped": taped}
    if journal.world.carries_on and exchange is not None:
        coming = carry_on(network, rounds, exchange, **options)
    else:
        coming = simulate(network, rounds, operator=Operator(network, exchange), **options)
    try:
        for round in coming:
            enter(journal, round, last=round.t + 1 == rounds)
            tell(round.t, partial(logged, journal.metrics[-1], network.members))
            yield round
    except DivergedError as error:
        raise together.named(network, error) from None


def _check_rule(config: Config, resume: bool, question: Question | None) -> None:
    if config.rule is None:
        return
    rule = lookup(RULES, config.rule, "rule")
    if resume and rule.remembers:
        why = "what the rule has learnt is not in the checkpoint. Start it again with --overwrite"
        raise ValueError(f"a run with the rule {config.rule!r} cannot be resumed: {why}.")
    if not rule.averages and (config.record != "none" or question is not None):
        found = f"the rule {config.rule!r} does not. Leave out --record and --kind, or use another rule"
        raise ValueError(f"rounds can be recorded or scored only if they average; {found}.")
