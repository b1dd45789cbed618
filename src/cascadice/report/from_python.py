"""`cd.report`: save a network and its rounds as a run, compute influence, and write the page."""

import argparse
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cascadice.console import Console, say
from cascadice.engine import Network, Round
from cascadice.engine.evaluation import NO_TEST_DATA
from cascadice.files import Folder
from cascadice.names import lookup
from cascadice.report.page import write
from cascadice.runs import store
from cascadice.runs.ask import ask
from cascadice.runs.folder import locked_for_writing
from cascadice.runs.question import Question
from cascadice.runs.recording import mixed_by_rule
from cascadice.runs.saving import Source, save

APPLICATIONS = ("detect", "choose")  # those that need nothing but the run


def report(
    network: Network,
    rounds: Iterable[Round],
    folder: Folder = "runs/network",
    *,
    hops: int = 1,
    samples: bool = False,
    applications: str | Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = False,
    model: Source = None,
    data: Source = None,
    loss: Source = None,
    eval_every: int = 10,
) -> Path:
    """Write the page of a network and its rounds, with who helped the final models and whom each update helped.

    The run in the folder is one like any other: every command works on it, and adds to the page.

    Args:
        network: Of `cd.network`, or of a `Recorder`.
        rounds: Its rounds in order; from round 0 on, or the page says nothing about the final models.
        folder: Where the run and its page go.
        hops: How many rounds to follow each update.
        samples: Score training samples too.
        applications: What else to compute: "detect", "choose".
        overwrite: Replace the run in the folder.
        progress: Show bars.
        model: The function that makes the model, for other processes: see `cd.save`, as for `data` and `loss`.
        eval_every: Rounds between evaluations on the test data.

    Returns:
        The page, one HTML file that needs no network. Without test data, or if a rule that does not average mixed the
        rounds, it has no influence; a line says so.

    Example:
        >>> cd.report(network, cd.simulate(network, 100), "runs/mine")  # doctest: +SKIP
    """
    chosen = [applications] if isinstance(applications, str) else list(applications)
    for name in chosen:
        lookup(dict.fromkeys(APPLICATIONS), name, "application")
    sources: dict[str, Any] = {"model": model, "data": data, "loss": loss, "eval_every": eval_every}
    run = save(network, rounds, folder, overwrite=overwrite, progress=progress, **sources)
    quiet, ruled = not progress, mixed_by_rule(run)
    if why := ruled or ("" if len(network.data.test) else NO_TEST_DATA):
        say(Console(), f"the page has no influence: {why}.")
    else:
        ask(run, Question(hops=hops), quiet=quiet)  # without samples: only then it says whom each update reached
        if store.saved_rounds(run)[0] == 0:
            ask(run, Question(("whole-run",), samples=samples), quiet=quiet)
        elif samples:
            ask(run, Question(("shares",), hops=hops, samples=True), run / "samples", quiet=quiet)
    for name in () if ruled else chosen:  # as the command of this name does
        parser = argparse.ArgumentParser()
        import_module(f"cascadice.applications.{name}.command").add(parser)
        arguments = parser.parse_args([str(run), *(["--quiet"] if quiet else [])])
        with locked_for_writing(run / name):
            import_module(f"cascadice.applications.{name}.findings").run(arguments)
    return write(run)[0]
