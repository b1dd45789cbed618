"""The training samples that helped and harmed most, with pictures of them where they are pictures."""

import base64
import io
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from cascadice.data import DataSet, load
from cascadice.report.page.numbers import Json
from cascadice.runs.config import Config
from cascadice.runs.summary import InfluenceSummary, Sampled

MOST = 12  # on each side
LETTERS = 48  # of a text


def samples(config: Config, asked: Sequence[InfluenceSummary], notes: list[str]) -> Json | None:
    """The most helpful and the most harmful samples, of the kind most to be trusted."""
    found = next((one for one in asked if one.samples), None)
    if found is None:
        return None
    kind, scored = next(iter(found.samples.items()))
    helped = [one for one in scored[:MOST] if one.value < 0]
    harmed = [one for one in scored[: -MOST - 1 : -1] if one.value > 0]
    data = _data(config, notes)
    return {
        "kind": kind,
        "rounds": list(found.rounds),
        "count": len(scored),
        "helped": [_sample(one, data) for one in helped],
        "harmed": [_sample(one, data) for one in harmed],
    }


def _data(config: Config, notes: list[str]) -> DataSet | None:
    try:
        return _loaded(config.data, config.data_root)
    except (ValueError, OSError) as error:
        notes.append(f"Samples are shown without pictures: {error}")
        return None


@lru_cache(maxsize=1)  # a live page asks every few seconds
def _loaded(name: str, root: str | None) -> DataSet:
    return load(name, root, quiet=True)


def _sample(one: Sampled, data: DataSet | None) -> Json:
    shown: Json = {"node": one.node, "sample": one.sample, "uses": one.uses, "value": float(f"{one.value:.5g}")}
    if data is None or one.sample >= len(data.train):
        return shown
    x, y = data.train.x[one.sample], data.train.y[one.sample]
    label = data.classes[int(y)] if data.classes and y.dim() == 0 else None
    return {**shown, "label": label, "picture": _picture(x), "text": _text(x, data)}


def _picture(x: Tensor) -> str | None:
    """A CHW image as a data URI; floats from their least to their greatest value."""
    from PIL import Image

    if x.dim() != 3 or x.shape[0] not in (1, 3):
        return None
    if x.dtype != torch.uint8:
        x = x.float() - x.min()
        x = (255 * x / x.max().clamp(min=1e-12)).round().to(torch.uint8)
    pixels = x.permute(1, 2, 0).squeeze(-1).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return data_uri(file.getvalue())


def data_uri(picture: bytes, kind: str = "png") -> str:
    """A picture as the address of itself."""
    return f"data:image/{kind};base64," + base64.b64encode(picture).decode("ascii")


def _text(x: Tensor, data: DataSet) -> str | None:
    """The beginning of a text whose characters are the classes."""
    if x.dim() != 1 or x.is_floating_point() or not data.classes or int(x.max()) >= len(data.classes):
        return None
    return "".join(data.classes[int(token)] for token in x[:LETTERS])
