"""The compiled strategy is really compiled, and gives what the loop gives."""

import pytest
import torch
from engine.cases import CLOSE, MODELS, last, make

from cascadice.optimizers import OPTIMIZERS


def agree(name, optimizer, counters):
    options = {"optimizer": optimizer, "lr": 0.02, "mixing": "ring", "nodes": 3}
    looped, compiled = (last(make(name, strategy=s, **options), 3) for s in ("loop", "compile"))
    # a graph break would leave the work to eager Python, correct but uncompiled
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch.testing.assert_close(compiled.after.theta, looped.after.theta, **CLOSE)
    torch.testing.assert_close(compiled.after.state, looped.after.state, **CLOSE)
    torch.testing.assert_close(compiled.loss, looped.loss, **CLOSE)


# each optimizer once; convolutions compile for half a minute, so they are left to the whole grid, which is slow
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("mlp", "nesterov"), ("mlp", "momentum"), ("transformer", "adamw"), ("mlp", "adam"), ("mlp", "sgd")],
)
def test_compiled_is_loop(name, optimizer, compiler):
    agree(name, optimizer, compiler)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_compiled_is_loop_on_the_whole_grid(name, optimizer, compiler):
    agree(name, optimizer, compiler)


def test_later_networks_are_compiled_too():
    """Dynamo stops compiling a code object after some times, and all networks share one."""
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        compiled = [last(make("mlp", strategy="compile", nodes=nodes), 2) for nodes in (3, 4)]
    looped = [last(make("mlp", strategy="loop", nodes=nodes), 2) for nodes in (3, 4)]
    torch.testing.assert_close([each.after.theta for each in compiled], [each.after.theta for each in looped])
