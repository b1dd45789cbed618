"""The proximal influence of neighbours, one of them an anomaly: the paper's bars, and how reliably they show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.applications.detect.evidence import accumulate, deviations, no_evidence
from cascadice.applications.detect.signals import signal_scores
from cascadice.data.corruption import Corruption
from cascadice.engine import Network, blocks, by_network, evaluate, fleet, simulate
from cascadice.engine.exchange.geometry import neighbours
from cascadice.influence import evaluate_on, proximity
from cascadice.runs.config import Config, build, length
from cascadice.runs.recipes import paper
from cascadice_experiments.anomalies.settings import NINE
from cascadice_experiments.data_sets import first
from cascadice_experiments.drawing import HARMED, HELPED, hide_box, panels, save
from cascadice_experiments.figures.alignment_plots import NAMES, NARROW, OWN, SHARED, rounds_to_score
from cascadice_experiments.figures.figure import Context, Part, Result, stack
from cascadice_experiments.roc import auroc

READINGS = ("influence", "cosine", "detector")
HONEST, ANOMALY = HELPED, HARMED  # colours


@dataclass(frozen=True)
class Attack:
    """One anomaly, from the first round to the last, at each of these positions in a network of its own.

    Its receivers measure influence in `scored` rounds, on `judged_on` test samples as in the paper.
    """

    name: str
    config: Config
    kind: str
    strength: float
    positions: tuple[int, ...]
    scored: int
    judged_on: int


def attacks(kind: str, quick: bool) -> list[Attack]:
    """The paper's settings of this kind, MLP and CNN, from own and shared initial parameters.

    Quick: one position, a narrow MLP, shared parameters.
    """
    models, inits = (("mlp",), (SHARED,)) if quick else (("mlp", "cnn"), (OWN, SHARED))
    positions = (5,) if quick else tuple(range(1, 32, 4))
    looks = {"mlp": (4, 128) if quick else (20, 256), "cnn": (10, 128)}
    plan = []
    for setting, model, init in product((s for s in NINE if s.kind == kind), models, inits):
        config = paper(model, "cifar10", "exponential", 32)
        options = (NARROW[model],) if quick else ()
        config = replace(config, batch_size=setting.batch_size, lr=setting.lr, init=init, model_options=options)
        name = f"{NAMES[model]}, batch {setting.batch_size}, learning rate {setting.lr}"
        plan.append(Attack(name, config, kind, setting.strength, positions, *looks[model]))
    return plan


def measure(plan: Sequence[Attack], context: Context) -> Result:
    """Train every setting with every anomaly; each setting is a part of the measurement."""
    parts = [context.part(f"{a.name}, {a.config.init} initialisation", partial(_measure, a, context)) for a in plan]
    rows = [row for part in parts for row in part["summary"]]
    return Result(stack([part["points"] for part in parts]), rows, _findings(rows), {})


def _measure(attack: Attack, context: Context) -> Part:
    network = build(context.configure(attack.config))
    assert network.partition is not None
    corruptions = [Corruption(attack.kind, (position,), None, attack.strength) for position in attack.positions]
    many = fleet([replace(network, corruptions=(one,)) for one in corruptions])
    seen = _watch(many, length(attack.config, network.partition), attack)
    heard = neighbours(network.mixing(0)).T
    return {"points": _bars(attack, seen, heard), "summary": _summary(attack, seen, heard)}


class Seen(NamedTuple):
    """What each reading says of every link, in single rounds and over the run; and each network's test accuracy."""

    single: Mapping[str, Float[Tensor, "rounds count n n"]]
    whole: Mapping[str, Float[Tensor, "count n n"]]
    accuracy: list[float]


def _watch(many: Network, rounds: int, attack: Attack) -> Seen:
    count, heard = len(attack.positions), neighbours(many.mixing(0)).T.to(many.device)
    evaluation = evaluate_on(many, first(many.data.test, attack.judged_on))
    scored, evidence = rounds_to_score(rounds, attack.scored, 1), None
    single: dict[str, list[Tensor]] = {name: [] for name in READINGS}
    for round_ in simulate(many, rounds):
        if round_.t not in scored:
            continue
        near, scores = proximity(many, round_, evaluation), signal_scores(many, round_, evaluation)
        evidence = accumulate(evidence or no_evidence(scores), scores, heard)
        alone = deviations(accumulate(no_evidence(scores), scores, heard)).abs().amax(0)
        for name, value in zip(READINGS, (near.influence, near.cosine, alone), strict=True):
            single[name].append(blocks(value, count).cpu())
    assert evidence is not None
    stacked = {name: torch.stack(values) for name, values in single.items()}
    detector = blocks(deviations(evidence).abs().amax(0), count).cpu()
    whole = {**{name: values.sum(0) for name, values in stacked.items()}, "detector": detector}
    accuracy = by_network(evaluate(many, round_.after).accuracy, count)
    return Seen(stacked, whole, accuracy.mean(1).tolist())


def neighbourhoods(heard: Bool[Tensor, "n n"], anomaly: int) -> list[tuple[int, list[int]]]:
    """Each participant that hears the anomaly, with everyone it hears."""
    return [(k, heard[:, k].nonzero()[:, 0].tolist()) for k in heard[anomaly].nonzero()[:, 0].tolist()]


def _bars(attack: Attack, seen: Seen, heard: Bool[Tensor, "n n"]) -> dict[str, list[Any]]:
    """A row per neighbour of each of the anomaly's receivers: over the run, and in the last scored round alone."""
    rows = [
        (
            attack.name, attack.config.init, anomaly, k, j, j == anomaly,
            *(float(seen.whole[name][i, j, k]) for name in READINGS), float(seen.single["influence"][-1, i, j, k]),
        )
        for i, anomaly in enumerate(attack.positions)
        for k, others in neighbourhoods(heard, anomaly)
        for j in others
    ]  # fmt: skip
    names = ("panel", "init", "anomaly", "receiver", "neighbour", "is_anomaly", *READINGS, "influence_last_round")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _summary(attack: Attack, seen: Seen, heard: Bool[Tensor, "n n"]) -> list[dict[str, Any]]:
    """For each reading: AUROC over the run and in single rounds, and how often the anomaly has the highest bar."""
    rows = []
    for name in READINGS:
        separations = [_separation(seen.whole[name][i], heard, anomaly) for i, anomaly in enumerate(attack.positions)]
        single = [
            fmean(_separation(value[i], heard, anomaly)[0] for value in seen.single[name])
            for i, anomaly in enumerate(attack.positions)
        ]
        rows.append(
            {
                "panel": attack.name, "init": attack.config.init, "reading": name, "positions": len(attack.positions),
                "auroc": _span([area for area, _ in separations]), "auroc_single_round": _span(single),
                "highest_bar": _span([top for _, top in separations]), "test_accuracy": _span(seen.accuracy),
            }
        )  # fmt: skip
    return rows


def _separation(values: Float[Tensor, "n n"], heard: Bool[Tensor, "n n"], anomaly: int) -> tuple[float, float]:
    """AUROC of the anomaly against the others over all its receivers' bars; how often its bar is the highest."""
    around = neighbourhoods(heard, anomaly)
    bars = [values[others, k] for k, others in around]
    bad = [torch.tensor(others) == anomaly for _, others in around]
    highest = fmean(float(is_bad[bar.argmax()]) for bar, is_bad in zip(bars, bad, strict=True))
    return auroc(torch.cat(bars), torch.cat(bad)), highest


def _span(values: Sequence[float]) -> list[float]:
    return [fmean(values), min(values), max(values)]


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    sentences = []
    for init, name in product(dict.fromkeys(row["init"] for row in rows), READINGS):
        chosen = [row for row in rows if (row["init"], row["reading"]) == (init, name)]
        whole, once = ([row[key][0] for row in chosen] for key in ("auroc", "auroc_single_round"))
        sentences.append(
            f"{init} initial parameters, {name}: AUROC {min(whole):.3f} to {max(whole):.3f} over the run, "
            f"{min(once):.3f} to {max(once):.3f} in a single round."
        )
    return sentences


SHOWN, PER_ROW = 3, 2  # receivers of an anomaly; settings per row


def draw(result: Result, path: Path) -> None:
    """Draw the bars of the first anomaly's first receivers, as in the paper: three panels per setting."""
    settings = list(dict.fromkeys(zip(result.points["panel"], result.points["init"], strict=True)))
    lines = -(-len(settings) // PER_ROW)
    figure, places = panels(3.4 * SHOWN * PER_ROW, 2.3 * lines, lines, SHOWN * PER_ROW)
    table = [dict(zip(result.points, row, strict=True)) for row in zip(*result.points.values(), strict=True)]
    for axes, (panel, init) in zip(places.reshape(-1, SHOWN), settings, strict=False):
        rows = [row for row in table if (row["panel"], row["init"]) == (panel, init)]
        rows = [row for row in rows if row["anomaly"] == rows[0]["anomaly"]]
        for place, receiver in zip(axes, dict.fromkeys(row["receiver"] for row in rows), strict=False):
            _draw_panel(place, [row for row in rows if row["receiver"] == receiver])
            place.set_title(f"{panel}\n{init} init, at participant {receiver}", fontsize=7)
    for place in places.flat[SHOWN * len(settings) :]:
        place.set_axis_off()
    save(figure, path, dpi=130)


def _draw_panel(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    colours = [ANOMALY if row["is_anomaly"] else HONEST for row in rows]
    axes.bar(range(len(rows)), [row["influence"] for row in rows], color=colours)
    axes.axhline(0, color="0.2", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [str(row["neighbour"]) for row in rows], fontsize=7)
    axes.set_xlabel("neighbour (orange: the anomaly)", fontsize=7)
    axes.set_ylabel("proximal influence", fontsize=7)
    axes.tick_params(labelsize=6.5)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    axes.yaxis.get_offset_text().set_fontsize(6)
    hide_box(axes)
