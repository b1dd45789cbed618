"""Who helped the final models, as a page shows it: whole-run influence of every participant."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cascadice.applications.plain import Json, plain
from cascadice.report.page.influences import Influences
from cascadice.report.page.sections import build_section
from cascadice.report.page.sentences import final_models
from cascadice.runs.ask import FIGURE
from cascadice.runs.words import headline

LEAD = (
    "What the test loss of the final models owes to each participant's data, over all rounds together. Shares divide "
    "what training changed among the participants. Whole-run influence at a weight is a slope: how the loss moves with "
    "the weight of a participant's updates, which is not the change that leaving it out makes. Negative = more of it "
    "lowers the loss = it helped."
)


def section(folder: Path, read: Sequence[Influences]) -> Json | None:
    """The section of the first table of whole-run influence, with its figure; None if there is none."""
    whole = next((one for one in read if one.summary.whole_run), None)
    if whole is None:
        return None
    kinds, injected = whole.summary.participants, whole.summary.injected
    order = np.argsort(next(iter(kinds.values())), kind="stable").tolist()
    rows = [[k, injected.get(k, ""), *(plain(float(values[k])) for values in kinds.values())] for k in order]
    results = {
        "title": headline(whole.summary),
        "findings": final_models(whole.summary),
        "table": {"columns": ["participant", "injected", *kinds], "rows": rows},
        "figure": FIGURE,
    }
    return {**build_section(results, folder / whole.name), "name": "contributions", "lead": LEAD}
