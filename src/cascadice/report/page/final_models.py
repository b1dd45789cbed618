"""The section about who helped the final models: whole-run influence of every participant."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cascadice.applications.charts import contributions, interval_text
from cascadice.applications.plain import Json, plain
from cascadice.influence.uncertainty import bounds_of_totals, signs
from cascadice.report.page.influences import Influences
from cascadice.report.page.sections import build_section
from cascadice.runs.question import Question
from cascadice.runs.scores import VERDICTS
from cascadice.runs.summary import rounds_weighted
from cascadice.runs.sweeps import SHARES
from cascadice.runs.words import as_sentence, headline

LEAD = "What the test loss of {} owes to each participant's data, over {} together."
SHARED = "Shares divide what {} changed among the participants."
SLOPE = (
    "Whole-run influence at a weight is a derivative: how the loss changes with the weight of a participant's updates, "
    "not the effect of leaving it out."
)
SIGN = "Negative = more of it lowers the loss = it helped."
POINTS = "Shares are integrals along the updates' weights, approximated with {} point{} (--points)."


def section(folder: Path, read: Sequence[Influences]) -> Json | None:
    """The section of the first table of whole-run influence, with its figure; None if there is none."""
    whole = next((one for one in read if one.summary.whole_run), None)
    if whole is None:
        return None
    kinds, injected = whole.summary.participants, whole.summary.injected
    first, updates = next(iter(whole.summary.updates.items()))
    known = np.flatnonzero(np.isfinite(kinds[first])).tolist()  # the folder of a process has its own participants
    order, bounds = sorted(known, key=lambda k: kinds[first][k]), whole.summary.bounds[first]
    sign = signs(kinds[first], bounds)
    rows = [
        [k, *(plain(float(values[k])) for values in kinds.values()), interval_text(bounds, k),
         VERDICTS[int(sign[k])] if kinds[first][k] else "no influence", *([injected.get(k, "")] if injected else [])]
        for k in order
    ]  # fmt: skip
    columns = ["participant", *kinds, "95 % interval", "verdict", *(["injected"] if injected else [])]
    points = whole.note.get("points", Question(("whole-run-shares",)).points) if SHARES in kinds else None
    # the others are on top of the page
    findings = [as_sentence(whole.summary.doubt)] if whole.summary.doubt else []
    findings += [POINTS.format(points, "" if str(points) == "1" else "s")] if points else []
    results = {
        "title": headline(whole.summary),
        "findings": findings,
        "points": points,
        "table": {"columns": columns, "rows": rows},
    }
    shown, title = updates[:, known], "Influence of each participant's data"
    drawn = contributions(shown.sum(0), bounds_of_totals(shown), injected, title, first, known)
    section = build_section(results, folder / whole.name)
    during = rounds_weighted(whole.summary.asked)
    span = "all rounds" if during is None else f"rounds {during[0]} to {during[-1]}"
    shared = [SHARED.format(whole.summary.cause)] if SHARES in kinds else []
    lead = " ".join([LEAD.format(whole.summary.models, span), *shared, *([SLOPE] if {*kinds} - {SHARES} else []), SIGN])
    return {**section, "name": "contributions", "models": whole.summary.models, "lead": lead, "charts": [drawn],
            "picture": None}  # fmt: skip
