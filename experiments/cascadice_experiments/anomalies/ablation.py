"""Which signals does the detector need? A row for each signal left out, and for each score alone."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cascadice.applications.detect.evidence import threshold
from cascadice.applications.detect.signals import SIGNALS
from cascadice_experiments.anomalies.rivals import RIVALS
from cascadice_experiments.anomalies.settings import NINE, SETTINGS, name_of
from cascadice_experiments.roc import auroc

SUBSETS: Mapping[str, tuple[str, ...]] = {
    "all four": tuple(SIGNALS),
    **{f"without {name}": tuple(other for other in SIGNALS if other != name) for name in SIGNALS},
    **{f"{name} alone": (name,) for name in (*SIGNALS, *RIVALS)},
}
TITLES = {"size": "size (update norm)", "distance": "distance (Krum)"}
GROUPS = ("the paper's nine", "other attacks", "one batch", "nobody attacks")


def ablate(per_seed: Sequence[Mapping[str, Tensor]], rate: float) -> dict[str, dict[str, Any]]:
    """For each subset of the scores: AUROC of each seed, and the shares of attackers' and honest links flagged."""
    return {name: _flags(per_seed, scores, rate) for name, scores in SUBSETS.items()}


def _flags(per_seed: Sequence[Mapping[str, Tensor]], scores: Sequence[str], rate: float) -> dict[str, Any]:
    areas, shares = [], {"flagged": list[float](), "false_alarms": list[float]()}
    for one in per_seed:
        largest, attacks = torch.stack([one[score] for score in scores]).amax(0), one["attacks"]
        flagged = (largest > threshold(int(one["degree"][0]), rate / len(scores))).double()
        for name, which in (("flagged", attacks), ("false_alarms", ~attacks)):
            shares[name] += [float(flagged[which].mean())] if which.any() else []
        areas += [auroc(largest, attacks)] if attacks.any() else []
    return {"auroc": areas, **{name: statistics.fmean(each) if each else None for name, each in shares.items()}}


def lines(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ablation as a table: mean over settings and seeds, worst seed of the worst setting, and who is flagged."""
    results = list(results)
    shown = [group for group in GROUPS if any(_group(result["name"]) == group for result in results)]
    head = "AUROC: mean (worst seed), flagged, false alarms at allowance 0.5"
    made = ["", head, f"{'':30}" + "".join(f"{group:34}" for group in shown)]
    for name in SUBSETS:
        cells = [_cell([r["ablation"][name] for r in results if _group(r["name"]) == group]) for group in shown]
        score = name.removeprefix("without ").removesuffix(" alone")
        made.append(f"{name.replace(score, TITLES.get(score, score)):30}" + "".join(f"{cell:34}" for cell in cells))
    return made


def _cell(each: Sequence[Mapping[str, Any]]) -> str:
    areas = [area for one in each for area in one["auroc"]]
    flagged = [one["flagged"] for one in each if one["flagged"] is not None]
    alarms = f"{statistics.fmean(one['false_alarms'] for one in each):.4f}"
    if not areas:
        return alarms
    return f"{statistics.fmean(areas):.4f} ({min(areas):.4f}) {statistics.fmean(flagged):.2f} {alarms}"


def _group(name: str) -> str:
    """The group that this setting belongs to."""
    setting = SETTINGS.get(name)
    if setting is None or not setting.kind:
        return GROUPS[3]
    return GROUPS[2] if setting.once else GROUPS[0] if name in {name_of(one) for one in NINE} else GROUPS[1]
