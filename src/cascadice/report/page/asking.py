"""What else can be asked of a run, as commands to type."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from cascadice.report.page.numbers import Json

OF_ALL = {
    "influence": (
        "Whose data helped whom",
        "cascadice influence {run} --hops 2 --kind truth,path-integrated --every 20",
    ),
    "samples": (
        "Which samples helped and harmed",
        "cascadice influence {run} --kind shares --samples --every 20 --out {samples}",
    ),
    "detect": ("Who behaves unlike the others", "cascadice detect {run}"),
    "choose": ("With whom to collaborate", "cascadice choose {run}"),
    "reward": ("What everybody should be paid", "cascadice reward {run} --budget 1000"),
    "forget": ("Take a participant out of the models", "cascadice forget {run} --participant 0"),
}


def commands(folder: Path, recorded: bool, there: Sequence[str]) -> list[Json]:
    """The commands for what is not there yet; none can be answered of a run whose rounds were not recorded."""
    run, samples = shlex.quote(str(folder)), shlex.quote(str(folder / "samples"))
    if not recorded:
        again = shlex.quote(f"{folder}-recorded")
        text = f"cascadice run {run} --record all --out {again} && " + OF_ALL["influence"][1].format(run=again)
        what = "Its rounds were not recorded: train it again, then ask"
        return [] if "influence" in there else [{"name": "influence", "what": what, "command": text}]
    return [
        {"name": name, "what": what, "command": command.format(run=run, samples=samples)}
        for name, (what, command) in OF_ALL.items()
        if name not in there
    ]
