"""Models that every estimator can differentiate: MLP, CNN, ResNet-18 and a small decoder-only transformer.

Each is a plain `nn.Module` on inputs `[batch, ...]`, made only of out-of-place operations with double-backward,
forward-mode and vmap rules: no batch statistics, no dropout, no fused attention. Any other `nn.Module` made of such
operations works just as well.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from itertools import pairwise
from math import gcd, prod
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cascadice import seeds
from cascadice.names import lookup
from cascadice.references import reference_to

Sizes = Sequence[int]
Activation = Callable[[], nn.Module]
ACTIVATIONS: dict[str, Activation] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}
POOLS: Mapping[str, Callable[[tuple[int, int]], nn.Module]] = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}

MADE = "cascadice_made"  # the attribute of a module that holds its `Made`
Options = ParamSpec("Options")
Module = TypeVar("Module", bound=nn.Module)


class Made(NamedTuple):
    """How to make a model again: its name in MODELS, or a reference `module:function` to the user's, and arguments."""

    name: str
    shape: tuple[int, ...] = ()
    classes: int = 0
    options: tuple[tuple[str, Any], ...] = ()


def made_by(model: nn.Module) -> Made | None:
    """How to make this model again, if that is known."""
    return getattr(model, MADE, None)


def make(function: Callable[[], nn.Module]) -> nn.Module:
    """Call the user's function that makes a model, and store a reference to it in the model if there is one."""
    if not callable(function):
        kind = repr(function) if isinstance(function, str) else type(function).__name__
        raise TypeError(
            f"a model must be an nn.Module, or a function that makes one; found {kind}. Use models.build(name, shape, "
            "classes) for one by name."
        )
    model = function()
    if not isinstance(model, nn.Module):
        raise TypeError(f"a function that makes a model must return an nn.Module; found {type(model).__name__}.")
    if made_by(model) is None and (reference := reference_to(function)) is not None:
        setattr(model, MADE, Made(reference))
    return model


def _named(function: Callable[Options, Module]) -> Callable[Options, Module]:
    """Store in the models that a function returns how to make them again."""

    @wraps(function)
    def named(*given: Options.args, **options: Options.kwargs) -> Module:
        used = dict(signature(function).bind(*given, **options).arguments)
        model = function(*given, **options)
        shape = used.pop("shape") if "shape" in used else (used.pop("context"),)
        classes = used.pop("classes") if "classes" in used else used.pop("vocabulary")
        setattr(model, MADE, Made(function.__name__, tuple(shape), classes, tuple(used.items())))
        return model

    return named


@_named
def mlp(shape: Sizes, classes: int, hidden: Sizes = (256, 256), activation: str = "relu") -> nn.Sequential:
    """A multilayer perceptron on the flattened input, by default with three linear layers.

    Args:
        shape: The shape of one input.
        classes: The number of outputs.
        hidden: The widths of the hidden layers.
        activation: One of ACTIVATIONS.

    Returns:
        The model, with logits `[batch, classes]`.

    Raises:
        ValueError: If a size is less than 1, or a name is unknown.

    Example:
        >>> mlp((1, 8, 8), 10, hidden=(32,))(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    _require_positive(shape=shape, classes=classes, hidden=hidden)
    act = lookup(ACTIVATIONS, activation, "activation")
    *inner, last = (nn.Linear(i, o) for i, o in pairwise((prod(shape), *hidden, classes)))
    return nn.Sequential(nn.Flatten(), *(layer for linear in inner for layer in (linear, act())), last)


@_named
def cnn(
    shape: Sizes, classes: int, channels: Sizes = (32, 64, 128), activation: str = "relu", pool: str = "max"
) -> nn.Sequential:
    """3×3 convolutions, each followed by the activation and a 2×2 pool, then one linear layer.

    With a smooth activation and `pool="average"` the model is smooth; a max pool has kinks, like ReLU. Sides of one
    pixel are not pooled any further, so that any image size works.

    Args:
        shape: The shape of one input: (channels, height, width).
        classes: The number of outputs.
        channels: The output channels of each convolution.
        activation: One of ACTIVATIONS.
        pool: "max" or "average".

    Returns:
        The model, with logits `[batch, classes]`.

    Raises:
        ValueError: If a size is less than 1, or a name is unknown.

    Example:
        >>> cnn((1, 28, 28), 10, channels=(4, 8))(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    _require_image(shape, classes=classes, channels=channels)
    act, pooling = lookup(ACTIVATIONS, activation, "activation"), lookup(POOLS, pool, "pool")
    colours, height, width = shape
    layers: list[nn.Module] = []
    for i, o in pairwise((colours, *channels)):
        window = (min(2, height), min(2, width))
        layers += [nn.Conv2d(i, o, 3, padding=1), act(), pooling(window)]
        height, width = height // window[0], width // window[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear((colours, *channels)[-1] * height * width, classes))


class Residual(nn.Module):
    """body(x) + shortcut(x)."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return total


@_named
def resnet18(shape: Sizes, classes: int, width: int = 64, activation: str = "relu") -> nn.Sequential:
    """ResNet-18 for small images: 3×3 stem, no max pool, GroupNorm in place of BatchNorm.

    He et al. 2016 (two basic blocks in each of four stages, channels doubling from `width`) with the normalisation of
    Wu & He 2018, because batch statistics would couple samples and cannot be averaged over participants.

    Args:
        shape: The shape of one input: (channels, height, width).
        classes: The number of outputs.
        width: The channels of the first stage.
        activation: One of ACTIVATIONS.

    Returns:
        The model, with logits `[batch, classes]`.

    Raises:
        ValueError: If a size is less than 1, or a name is unknown.

    Example:
        >>> resnet18((3, 8, 8), 10, width=4)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """
    _require_image(shape, classes=classes, width=[width])
    act = lookup(ACTIVATIONS, activation, "activation")
    # 32 groups at the usual width of 64; if narrow, at least two channels per group, or maps of one pixel become zero
    groups = gcd(32, width // 2, width)
    stem = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False), nn.GroupNorm(groups, width), act()]
    blocks: list[nn.Module] = []
    for stage, (i, o) in enumerate(pairwise((width, width, 2 * width, 4 * width, 8 * width))):
        blocks += [_basic_block(i, o, 1 if stage == 0 else 2, groups, act), _basic_block(o, o, 1, groups, act)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))


def _basic_block(i: int, o: int, stride: int, groups: int, act: Activation) -> nn.Sequential:
    first = (nn.Conv2d(i, o, 3, stride, padding=1, bias=False), nn.GroupNorm(groups, o), act())
    second = (nn.Conv2d(o, o, 3, padding=1, bias=False), nn.GroupNorm(groups, o))
    projection = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.GroupNorm(groups, o))
    return nn.Sequential(Residual(nn.Sequential(*first, *second), None if i == o else projection), act())


class Embedding(nn.Module):
    """Token vectors plus learned position vectors."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(context, width))

    def forward(self, x: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        if x.shape[-1] > len(self.positions):
            raise ValueError(
                f"a sequence must have at most {len(self.positions)} tokens, the model's context; found {x.shape[-1]}. "
                "Cut it, or build the transformer with a longer context."
            )
        embedded: Tensor = self.tokens(x) + self.positions[: x.shape[-1]]
        return embedded


class CausalAttention(nn.Module):
    """Multi-head self-attention in which no position sees a later one.

    Written out in matrix products: the fused kernels lack forward-mode or double-backward rules on some devices.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        q, k, v = self.read(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        attention = scores.masked_fill(future, -torch.inf).softmax(-1)
        written: Tensor = self.write((attention @ v).transpose(1, 2).flatten(2))
        return written


@_named
def transformer(
    vocabulary: int, context: int, width: int = 128, depth: int = 2, heads: int = 4, activation: str = "gelu",
    tied: bool = False,
) -> nn.Sequential:  # fmt: skip
    """Decoder-only transformer: tokens `[batch, time ≤ context]` to next-token logits `[batch, time, vocabulary]`.

    Pre-norm blocks, learned positions, no dropout.

    Args:
        vocabulary: The number of tokens.
        context: The longest sequence.
        width: The width of the residual stream, a multiple of `heads`.
        depth: The number of blocks.
        heads: The number of attention heads.
        activation: One of ACTIVATIONS.
        tied: Whether the output layer shares the token embedding.

    Returns:
        The model.

    Raises:
        ValueError: If a size is less than 1, or a name is unknown.

    Example:
        >>> transformer(50, context=8, width=16, depth=1)(torch.zeros(2, 8, dtype=torch.long)).shape
        torch.Size([2, 8, 50])
    """
    _require_positive(vocabulary=[vocabulary], context=[context], width=[width], depth=[depth], heads=[heads])
    if width % heads:
        raise ValueError(f"width must be a multiple of heads; found width {width} and {heads} heads.")
    act = lookup(ACTIVATIONS, activation, "activation")
    embedding, head = Embedding(vocabulary, context, width), nn.Linear(width, vocabulary, bias=False)
    if tied:
        # torch draws embeddings with unit variance; used as an output layer, they would give logits of variance `width`
        embedding.tokens.weight = head.weight
    blocks: list[nn.Module] = []
    for _ in range(depth):
        blocks.append(Residual(nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads))))
        perceptron = (nn.Linear(width, 4 * width), act(), nn.Linear(4 * width, width))
        blocks.append(Residual(nn.Sequential(nn.LayerNorm(width), *perceptron)))
    return nn.Sequential(embedding, *blocks, nn.LayerNorm(width), head)


@wraps(transformer)
def _transformer_of_shape(shape: Sizes, classes: int, **options: Any) -> nn.Sequential:
    if len(shape) != 1:
        raise ValueError(f"a transformer needs data of shape (context,); found {tuple(shape)}. Use token sequences.")
    return transformer(classes, shape[0], **options)


MODELS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "mlp": (mlp, "three linear layers on the flattened input"),
    "cnn": (cnn, "three 3×3 convolutions with pooling, one linear layer"),
    "resnet18": (resnet18, "ResNet-18 with a 3×3 stem and GroupNorm"),
    "transformer": (_transformer_of_shape, "small decoder-only transformer for next-token prediction"),
}


def build(name: str, data_shape: Sizes, classes: int, *, seed: int = 0, **options: Any) -> nn.Module:
    """Make a model by name, with torch's default initialisation, drawn from `seed` alone.

    The weights are float32 on the CPU, so they depend neither on the device nor on torch's default dtype. The global
    generators are left unchanged.

    Args:
        name: One of MODELS.
        data_shape: The shape of one input; `(context,)` for the transformer.
        classes: The number of outputs; the vocabulary for the transformer.
        seed: Seed of the initialisation.
        **options: Keyword arguments of the model, e.g. `hidden`.

    Returns:
        The model.

    Raises:
        ValueError: If the name or an option is unknown, or does not suit the data.

    Example:
        >>> model = build("mlp", (1, 8, 8), 10, hidden=(64,), activation="gelu")
    """
    builder = _builder(name, options)
    with seeds.initialisation(seed, "parameters"):
        return builder(data_shape, classes, **options)


def count_parameters(name: str, data_shape: Sizes, classes: int, **options: Any) -> int:
    """The number of parameters that `build` would make, without making them.

    Args:
        name: One of MODELS.
        data_shape: The shape of one input.
        classes: The number of outputs.
        **options: Keyword arguments of the model.

    Returns:
        The number of parameters.

    Raises:
        ValueError: If the name or an option is unknown, or the model would not fit in any memory.

    Example:
        >>> count_parameters("mlp", (1, 8, 8), 10, hidden=(10_000, 10_000))
        100760010
    """
    builder = _builder(name, options)
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in builder(data_shape, classes, **options).parameters())
    except (RuntimeError, OverflowError) as error:  # torch counts bytes in 64 bits
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{name} would be larger than any memory: {reason}. Choose smaller options.") from None


def _builder(name: str, options: Mapping[str, Any]) -> Callable[..., nn.Module]:
    builder, _ = lookup(MODELS, name, "model")
    known = dict(list(signature(builder).parameters.items())[2:])
    for option in options:
        lookup(known, option, f"option of {name}")
    return builder


def _require_image(shape: Sizes, **sizes: Any) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"a convolutional model needs data of shape (channels, height, width); found {tuple(shape)}. Use the mlp."
        )
    _require_positive(shape=shape, **sizes)


def _require_positive(classes: int = 1, **sizes: Sequence[int]) -> None:
    for what, values in {"classes": [classes], **sizes}.items():
        if any(value < 1 for value in values):
            found = values[0] if len(values) == 1 else tuple(values)
            raise ValueError(f"{what} must be at least 1; found {found}.")
