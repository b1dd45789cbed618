"""The training samples that helped and harmed most, with thumbnails where they are images."""

import io
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from cascadice.applications.plain import Json, data_uri
from cascadice.data import DataSet, load
from cascadice.runs.config import Config
from cascadice.runs.summary import InfluenceSummary, SampleScore
from cascadice.runs.words import caution

MOST = 12  # on each side
LETTERS = 48  # shown of a text


def samples(config: Config, summaries: Sequence[InfluenceSummary], notes: list[str]) -> Json | None:
    """The most helpful and the most harmful samples, by the most trusted estimator that scored samples."""
    summary = next((one for one in summaries if one.samples), None)
    if summary is None:
        return None
    kind, scores = next(iter(summary.samples.items()))
    data = None
    try:
        data = _load(config.data, config.data_root)
    except (ValueError, OSError) as error:
        notes.append(f"Samples are shown without pictures: {error}")
    return {
        "kind": kind,
        "caution": caution(summary),
        "rounds": list(summary.rounds),
        "count": len(scores),
        "helped": [_sample(score, data) for score in scores[:MOST] if score.value < 0],
        "harmed": [_sample(score, data) for score in scores[: -MOST - 1 : -1] if score.value > 0],
    }


@lru_cache(maxsize=1)  # a live page asks every few seconds
def _load(name: str, root: str | None) -> DataSet:
    return load(name, root, quiet=True)


def _sample(score: SampleScore, data: DataSet | None) -> Json:
    sample: Json = {**score._asdict(), "value": float(f"{score.value:.5g}")}
    if data is None or score.sample >= len(data.train):
        return sample
    x, y = data.train.x[score.sample], data.train.y[score.sample]
    label = data.classes[int(y)] if data.classes and y.dim() == 0 else None
    return {**sample, "label": label, "picture": _picture(x), "text": _text(x, data)}


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
    """The start of a text whose characters are the classes."""
    if x.dim() != 1 or x.is_floating_point() or not data.classes or int(x.max()) >= len(data.classes):
        return None
    return "".join(data.classes[int(token)] for token in x[:LETTERS])
