"""What `choose.json` holds: influence, of which negative helped, and cosines. Older files held their opposites."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascadice.applications.plain import Json

HALF_WIDTHS = {"gave": "influence_given", "took": "influence_taken", "gave minus took": "influence_given_minus_taken"}


def as_drawn(results: Mapping[str, Any]) -> Json:
    """The results with how much losses *fell*, as `gave` and `took`, which picture and charts draw.

    Older files have these already.
    """
    if "influence_given" not in results:
        return dict(results)
    opposites = {"gave": "influence_given", "took": "influence_taken", "influence": "cosines"}
    fell = {name: (0 - np.array(results[held], dtype=float)).tolist() for name, held in opposites.items()}
    halves = {name: results["half_widths"][held] for name, held in HALF_WIDTHS.items()}
    return {**results, **fell, "intervals": halves}
