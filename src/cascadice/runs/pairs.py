"""Who substitutes for whom in a run. Results are saved one by one, so that a stopped command can continue."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import files
from cascadice.console import Console, say, track
from cascadice.influence.interplay import influence_without
from cascadice.influence.tables import NOTE, load_array, save_array
from cascadice.influence.uncertainty import decimals
from cascadice.influence.whole_run import whole_run
from cascadice.runs import forecast, memory
from cascadice.runs.distributed import together
from cascadice.runs.distributed.processes import ONE_PROCESS, World
from cascadice.runs.folder import PAIRS, locked_for_writing
from cascadice.runs.question import Question, check_fits, check_note, evaluate_on_first, question_note
from cascadice.runs.recording import Playable, open_recording, playable
from cascadice.runs.summary import injected_faults, measured_models
from cascadice.runs.sweeps import UNFINISHED

FILE = "pairs.csv"
COLUMNS = "left_out,participant,influence,influence_without,change"
MOST = 5  # pairs to name of either sign
MEANING = (
    "How a participant's whole-run influence on {} changes when another is left out. Negative: it helps more without "
    "the other, so they substitute for each other. Positive: it helps less, so they complement each other."
)
CAUTION = (
    "Trust the order of pairs more than their sign: both say how a participant's slope changes, not what retraining "
    "without the two would show."
)


def ask_pairs(
    run: files.Folder, question: Question, out: files.Folder | None = None, *,
    settings: Mapping[str, Any] | None = None, overwrite: bool = False, quiet: bool = False, world: World = ONE_PROCESS,
) -> Float[Tensor, "n n"]:  # fmt: skip
    """Compute who substitutes for whom in a run; see `influence.interplay`. Call again to continue an interrupted call.

    The run is trained again, so its rounds need not have been recorded. Returns `[j, i]`: how much i's whole-run
    influence changes when j is left out. Negative: they substitute for each other.
    """
    if not world.alone:
        raise ValueError("pairs can be computed only in one process, for a run of one process. Leave out torchrun.")
    place = together.places(world, run, out, PAIRS)[1]
    console, recording = Console(quiet=quiet), open_recording(run, settings, quiet=quiet, recorded=False)
    played = playable(recording)
    check_fits(question, played.network, played.rounds)
    needs = forecast.of_whole_run(played.network, played.rounds, question)
    memory.check("whole-run influence", needs, played.network.device)
    with locked_for_writing(place):
        note = check_note(place, question_note(question, recording.fingerprint, played.rounds), overwrite)
        if overwrite or not (place / NOTE).exists():
            for path in (place / FILE, place / f"{PAIRS}.safetensors", place / UNFINISHED):
                files.remove(path)
        files.write_json(place / NOTE, note)
        rows = _kept(place, PAIRS, note, lambda: _influences(played, question, place, note, console))
        everybody, without = rows[0], rows[1:]
        _write(place / FILE, everybody, without)
        files.remove(place / UNFINISHED)
    _print(console, measured_models(question.on), everybody, without, injected_faults(played.network))
    say(console, f"wrote {FILE} to {place}")
    return without - everybody


def _kept(folder: Path, name: str, note: Mapping[str, str], compute: Callable[[], Tensor]) -> Tensor:
    """Load an array saved in a folder under this name, or compute and save it."""
    if not (folder / f"{name}.safetensors").exists():
        save_array(folder, name, compute().cpu(), note)
    return load_array(folder, name)[0]


def _influences(
    played: Playable, question: Question, place: Path, note: Mapping[str, str], console: Console
) -> Float[Tensor, "cases n"]:
    """Everyone's influence in the run, then in the runs without 0, without 1 and so on."""
    network, evaluation = played.network, evaluate_on_first(question.eval_samples, played.network)
    how: dict[str, Any] = {"at": question.at, "on": question.on}

    def influence(left_out: int | None) -> Tensor:
        if left_out is None:
            return whole_run(network, played.rounds_at(question.at), evaluation, samples=False, **how).participants
        return influence_without(left_out, network, played.rounds, evaluation, **how)

    cases = [None, *range(network.nodes)]
    cost = f"about {4 * len(cases)} trainings"
    say(console, f"whole-run influence with everybody, then without each of {network.nodes} participants: {cost}")
    rows = (_kept(place / UNFINISHED, f"without-{j}", note, partial(influence, j)) for j in cases)
    shown = track(rows, len(cases), console, "leaving out participants", lambda _: "left out participants", unit="runs")
    return torch.stack(list(shown))


def _write(path: Path, everybody: Tensor, without: Tensor) -> None:
    rows = (
        f"{j},{i},{float(everybody[i])!r},{float(row[i])!r},{float(row[i] - everybody[i])!r}"
        for j, row in enumerate(without)
        for i in range(len(row))
        if i != j
    )
    with files.replacing(path) as draft:
        Path(draft).write_text("\n".join([COLUMNS, *rows]) + "\n")


def _print(console: Console, models: str, everybody: Tensor, without: Tensor, faults: Mapping[int, str]) -> None:
    """Print the strongest pairs of each sign; participants with injected faults are marked."""
    change = without - everybody
    pairs = sorted((float(change[j, i]), j, i) for j, i in (~change.isnan()).nonzero().tolist())
    sides = {"substitutes": [p for p in pairs if p[0] < 0], "complements": [p for p in pairs[::-1] if p[0] > 0]}
    form = f"+.{decimals([value for value, *_ in pairs])}f"
    marked = [f"{k} ({faults[k]})" if k in faults else str(k) for k in range(len(without))]
    say(console, f"{MEANING.format(models)} {CAUTION}")
    rows = [
        [kind, marked[j], marked[i], f"{everybody[i]:{form}}", f"{without[j][i]:{form}}", f"{value:{form}}"]
        for kind, side in sides.items()
        for value, j, i in side[:MOST]
    ]
    console.print_table(["", "left out", "participant", "influence", "without", "change"], rows, right=6)
