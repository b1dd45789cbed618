"""What `choose.json` holds: influence, of which negative helped, and cosines. Older files held their opposites."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascadice.applications.plain import Json

HALF_WIDTHS = {"gave": "influence_given", "took": "influence_taken", "gave minus took": "influence_given_minus_taken"}
OPPOSITES = {"gave": "influence_given", "took": "influence_taken", "influence": "cosines"}


def with_todays_signs(results: Mapping[str, Any]) -> Json:
    """The results as they are written today, whichever version wrote them."""
    if "gave" not in results:
        return dict(results)
    signed = {held: (0 - np.array(results[name], dtype=float)).tolist() for name, held in OPPOSITES.items()}
    intervals = results.get("intervals", {})
    halves = {held: intervals[name] for name, held in HALF_WIDTHS.items() if name in intervals}
    return {**results, **signed, "half_widths": halves}
