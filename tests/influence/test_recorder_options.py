"""A recorder watches amsgrad and maximize: their steps are torch's, and influence is the slope of the run."""

import pytest
import torch
from influence.cases import NODES, small
from influence.own_loops import Loop, assert_differentiated
from torch import nn

from cascadice.engine.torch_optim import pure_version, rebuilt, settings
from cascadice.influence import evaluate_on, whole_run
from cascadice.influence.whole_run_shares import measured_at

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {
    "sgd uphill": (torch.optim.SGD, {"maximize": True, "weight_decay": 0.1}),
    "momentum uphill": (torch.optim.SGD, {"maximize": True, "momentum": 0.9}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "amsgrad uphill": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "adamw with amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "adamw uphill": (torch.optim.AdamW, {"maximize": True}),
}


@pytest.mark.parametrize(("kind", "options"), OPTIONS.values(), ids=OPTIONS)
def test_amsgrad_and_maximize_step_as_they_do_in_torch(kind, options):
    drawn = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta, rate = nn.Parameter(drawn[0].clone()), torch.tensor(0.1, dtype=torch.float64)
    watched = kind([theta], lr=0.1, **options)
    pure = pure_version(settings(watched), [torch.arange(5)])
    ours, state = theta.detach().clone(), pure.init(theta.detach())
    for size, gradient in zip((3, 1, 0.1, 2, 0.01, 5, 1), drawn[1:], strict=True):  # v falls, and rises again
        theta.grad = size * gradient
        watched.step()
        delta, state = pure.update(size * gradient, state, ours, rate)
        ours = ours + delta
        torch.testing.assert_close(ours, theta.detach(), rtol=1e-12, atol=1e-14)
    again = rebuilt(dict(pure.settings)).update(gradient, state, ours, rate)[0]
    assert torch.equal(again, pure.update(gradient, state, ours, rate)[0])


@pytest.mark.parametrize(("kind", "options"), OPTIONS.values(), ids=OPTIONS)
def test_amsgrad_and_maximize_have_the_slope_of_the_whole_run(kind, options):
    recorder = Loop(small(), kind, lr=0.02, **options).run(4, verify=4)
    assert_differentiated(recorder)
    network, rounds, judged = recorder.network, recorder.rounds, evaluate_on(recorder.network)
    found = whole_run(network, rounds, judged, at=1.0, samples=False).participants
    step = torch.eye(NODES, dtype=torch.float64)[1] * 1e-5
    up, down = (measured_at(network, rounds, judged, 1 + sign * step) for sign in (1, -1))
    assert float(found[1]) == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-9)
