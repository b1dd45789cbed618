"""The training samples that clearly helped and harmed, with thumbnails where they are images."""

import io
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascadice.applications.plain import Json, data_uri, evenly, short
from cascadice.data import DataSet
from cascadice.data.batches import sizes
from cascadice.data.corruption import corrupt, parse
from cascadice.runs import store
from cascadice.runs.config import Config
from cascadice.runs.saved import data_of, is_uneven
from cascadice.runs.summary import InfluenceSummary, SampleScore, clear_samples
from cascadice.runs.words import caution, counted_samples

MOST = 12  # on each side
LETTERS = 48  # shown of a text
ROUNDS = 200  # most rounds whose labels are read
LABELS = 3  # most wrong labels of a sample


def samples(
    config: Config, summaries: list[InfluenceSummary], notes: list[str], home: Path, whole: bool
) -> Json | None:
    """The samples that clearly helped and harmed, by the most trusted estimator that scored samples.

    If there are none, or the order means little for another reason, those with the lowest and the highest scores. If
    `home` has the rounds of the `whole` run, these tell which labels injected faults put in place of the true ones.
    """
    summary = next((one for one in summaries if one.samples), None)
    if summary is None:
        return None
    kind, scores = next(iter(summary.samples.items()))
    data = None
    try:
        data = _load(home, config)
    except (ValueError, OSError) as error:
        notes.append(f"Samples are shown without pictures: {error}")
    doubt, became = caution(summary), None
    sides = [[one for one in scores if one.value < 0], [one for one in scores[::-1] if one.value > 0]]
    low, high = (side[:MOST] for side in (sides if doubt else clear_samples(scores)))
    try:
        became = _became(config, data, [*low, *high], home, summary.rounds) if data and whole else None
    except (ValueError, OSError) as error:
        notes.append(f"Samples are shown without the labels they were trained with: {error}")
    return {
        "kind": kind,
        "caution": doubt,
        "clear": "" if doubt else counted_samples(summary.verdicts[kind]),
        "rounds": list(summary.rounds),
        "count": len(scores),
        "helped": [_sample(score, data, became) for score in low],
        "harmed": [_sample(score, data, became) for score in high],
    }


_load = lru_cache(maxsize=1)(data_of)  # a live page asks every few seconds
_uneven = lru_cache(maxsize=1)(is_uneven)
Became = dict[tuple[int, int], list[tuple[str, int]]]  # (participant, sample) -> other labels and their uses


def _became(
    config: Config, data: DataSet, scores: Sequence[SampleScore], folder: Path, rounds: Sequence[int]
) -> Became:
    """The wrong labels that these samples had in recorded rounds, the commonest first."""
    faults = [parse(text) for text in config.corruptions]
    falsified = {node for fault in faults if "labels" in fault.kind for node in fault.nodes}
    used = {(one.node, one.sample): Counter[str]() for one in scores if one.node in falsified}
    recorded = set(store.saved_rounds(folder)) if used else set()
    nodes, uneven = {node for node, _ in used}, bool(used) and _uneven(folder, config)
    chosen = [t for t in rounds if t in recorded]
    for t in (chosen[place] for place in evenly(len(chosen), ROUNDS)):
        batch = store.load_draw(folder, t).batch
        for node, own, step in ((k, *part) for k in nodes for part in _drawn_together(batch[k], uneven)):
            x, true = data.train.take(own)
            _, trained = corrupt(faults, x, true, t, [node], config.seed, len(data.classes), first_step=step)
            changed = trained != true
            for sample, label in zip(own[changed].tolist(), trained[changed].tolist(), strict=True):
                if (node, sample) in used:
                    used[node, sample][data.classes[label]] += 1
    return {pair: count.most_common(LABELS) for pair, count in used.items() if count}


def _drawn_together(batch: Tensor, uneven: bool) -> list[tuple[Tensor, int | None]]:
    """A participant's batches [1, steps, size] whose labels were drawn together, and their step if it drew alone."""
    alone: list[tuple[Tensor, int | None]] = [(batch[i : i + 1], i) for i in range(len(batch))]
    unpadded = ((part[None], *sizes(part[None])[0], step) for part, step in (alone if uneven else [(batch, None)]))
    return [(part[:, :steps, :size], step) for part, steps, size, step in unpadded if steps]


def _sample(score: SampleScore, data: DataSet | None, became: Became | None = None) -> Json:
    numbers = dict(zip(("value", "half"), short([score.value, score.high - score.value]), strict=True))
    sample: Json = {"node": score.node, "sample": score.sample, "uses": score.uses, **numbers}
    inputs: Any = None if data is None else data.train.x
    mask = None
    if isinstance(inputs, dict):
        inputs, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if data is None or score.sample >= len(data.train) or not isinstance(inputs, Tensor):
        return sample
    x, y = inputs[score.sample], data.train.y[score.sample]
    x = x if mask is None else x[mask[score.sample].bool()]  # without padding
    label = data.classes[int(y)] if data.classes and y.dim() == 0 else None
    pair = score.node, score.sample
    others = {"became": became[pair]} if became and pair in became else {}
    return {**sample, "label": label, "picture": _picture(x), "text": _text(x, data), **others}


def _picture(x: Tensor) -> str | None:
    """A CHW image as a data URI; floats are scaled from their lowest to their highest value."""
    from PIL import Image

    if x.dim() != 3 or x.shape[0] not in (1, 3):
        return None
    if x.dtype != torch.uint8:
        x = x.float() - x.min()
        x = (255 * x / x.max().clamp(min=1e-12)).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(x.permute(1, 2, 0).squeeze(-1).contiguous().numpy()).save(file, "PNG", optimize=True)
    return data_uri(file.getvalue())


def _text(x: Tensor, data: DataSet) -> str | None:
    """The start of a text whose characters, or tokens, are the classes."""
    if x.dim() != 1 or x.is_floating_point() or not len(x) or not data.classes or int(x.max()) >= len(data.classes):
        return None
    between = "" if max(map(len, data.classes)) == 1 else " "
    return between.join(data.classes[int(token)] for token in x[:LETTERS])
