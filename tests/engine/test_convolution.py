"""Convolutions that are differentiated twice, against torch's own."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cascadice.engine.fast.double_backward import FastConvDoubleBackward, _Convolution

FORMS = {
    "padded": {"padding": 1},
    "strided": {"stride": 2, "padding": 1},
    "strided past the end": {"stride": 3},
    "dilated": {"dilation": 2, "padding": (2, 0)},
    "grouped": {"groups": 2, "bias": False},
    "same": {"padding": "same"},  # torch's own is used
}


def bent(layer, x, mode):
    """The Hessian of a loss by the parameters times a vector, through slopes by outputs, as tapes have it."""
    first = nn.Conv2d(3, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        for i, p in enumerate((*first.parameters(), *layer.parameters())):
            p.copy_(torch.arange(p.numel(), dtype=p.dtype).view(p.shape).mul(0.7 + i).sin())
    own = [*first.parameters(), *layer.parameters()]
    with mode:
        hidden = first(x)
        out = layer(hidden.tanh())
    slopes = torch.autograd.grad(out.sin().sum(), [hidden, out], create_graph=True)
    total = sum((slope * slope.detach().cos()).sum() for slope in slopes)
    return [*(slope.detach() for slope in slopes), *torch.autograd.grad(total, own)]


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives_are_torchs(form):
    layer = nn.Conv2d(4, 6, (3, 1), dtype=torch.float64, **FORMS[form])
    x = torch.arange(2 * 3 * 11 * 10, dtype=torch.float64).view(2, 3, 11, 10).mul(0.3).cos()
    for found, expected in zip(
        bent(layer, x, FastConvDoubleBackward()), bent(layer, x, torch.enable_grad()), strict=True
    ):
        assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_it_is_used_where_slopes_are_differentiated_and_only_there():
    layer, x = nn.Conv2d(1, 1, 3), torch.ones(1, 1, 4, 4)
    with FastConvDoubleBackward():
        assert type(layer(x).grad_fn).__name__ == f"{_Convolution.__name__}Backward"
        with torch.no_grad():
            assert layer(x).grad_fn is None
    assert type(layer(x).grad_fn).__name__ == "ConvolutionBackward0"
