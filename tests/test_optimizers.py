import math

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jvp, vjp, vmap

from cascadice import optimizers
from cascadice.engine.optimizer_checks import check_differentiable
from cascadice.optimizers import (
    OPTIMIZERS,
    Optimizer,
    adam,
    adamw,
    build,
    clip,
    momentum,
    nesterov,
    resolve,
    sgd,
)

# torch scripts its own forward-mode formulas on their first use, and warns about it
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

STEPS, NODES, D = 20, 3, 11
LRS = [0.1 / (1 + step) for step in range(STEPS)]

# name -> ours, and torch's twin on a list of parameters
TORCH = {
    "sgd": (sgd(), lambda p: torch.optim.SGD(p)),
    "sgd, decay": (sgd(0.1), lambda p: torch.optim.SGD(p, weight_decay=0.1)),
    "momentum": (momentum(0.8), lambda p: torch.optim.SGD(p, momentum=0.8)),
    "momentum, decay": (momentum(0.8, 0.1), lambda p: torch.optim.SGD(p, momentum=0.8, weight_decay=0.1)),
    "nesterov": (nesterov(0.8), lambda p: torch.optim.SGD(p, momentum=0.8, nesterov=True)),
    "nesterov, decay": (
        nesterov(0.8, 0.1),
        lambda p: torch.optim.SGD(p, momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (adam(), lambda p: torch.optim.Adam(p)),
    "adam, betas, eps": (adam((0.5, 0.9), 1e-3), lambda p: torch.optim.Adam(p, betas=(0.5, 0.9), eps=1e-3)),
    "adam, betas 0": (adam((0.0, 0.0)), lambda p: torch.optim.Adam(p, betas=(0.0, 0.0))),
    "adam, decay": (adam(weight_decay=0.1), lambda p: torch.optim.Adam(p, weight_decay=0.1)),
    "adamw": (adamw(), lambda p: torch.optim.AdamW(p)),
    "adamw, decay": (adamw(weight_decay=0.3), lambda p: torch.optim.AdamW(p, weight_decay=0.3)),
}
ALL = {name: ours for name, (ours, _) in TORCH.items()}
ALL |= {"momentum, clipped": clip(momentum(0.8, 0.1), 0.5), "adam, clipped": clip(adam(), 0.5)}


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradient_at(theta):
    """The gradient of a bumpy function, so that errors feed back; coordinate 0 never has any."""
    g = torch.sin(3 * theta) + theta
    return g * (torch.arange(theta.shape[-1]) > 0)


def run(optimizer, theta, steps=STEPS):
    state = optimizer.init(theta)
    for lr in LRS[:steps]:
        delta, state = optimizer.update(gradient_at(theta), state, theta, torch.full_like(theta[..., 0], lr))
        theta = theta + delta
    return theta, state


def run_torch(make, theta, max_norm=None):
    """torch.optim on the same row, cut into two parameters."""
    parameters = [part.clone().requires_grad_() for part in theta.split([4, len(theta) - 4])]
    optimizer = make(parameters)
    for lr in LRS:
        gradients = gradient_at(torch.cat([p.detach() for p in parameters])).split([4, len(theta) - 4])
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return torch.cat([p.detach() for p in parameters])


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
@pytest.mark.parametrize("name", TORCH)
def test_equal_to_torch(name, max_norm):
    ours, make = TORCH[name]
    optimizer = ours if max_norm is None else clip(ours, max_norm)
    theta = draw(NODES, D)
    expected = torch.stack([run_torch(make, row, max_norm) for row in theta])
    torch.testing.assert_close(run(optimizer, theta)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ALL)
def test_stacked_equals_row_by_row_equals_vmap(name):
    optimizer, theta, lr, scales = (
        ALL[name],
        draw(NODES, D),
        torch.rand(NODES).double(),
        torch.tensor([0.01, 1.0, 100.0]),
    )
    gradients = draw(STEPS, NODES, D, seed=1) * scales[:, None]

    def steps(theta, lr, gradients, update=optimizer.update):
        state = optimizer.init(theta)
        for g in gradients:
            delta, state = update(g, state, theta, lr)
            theta = theta + delta
        return theta, state

    stacked, state = steps(theta, lr, gradients)
    rows = [steps(theta[k], lr[k], gradients[:, k]) for k in range(NODES)]
    mapped, _ = steps(theta, lr, gradients, update=vmap(optimizer.update))
    torch.testing.assert_close(stacked, torch.stack([row for row, _ in rows]), rtol=1e-13, atol=0)
    torch.testing.assert_close(mapped, stacked, rtol=1e-13, atol=0)
    for key, value in state.items():
        torch.testing.assert_close(value, torch.stack([s[key] for _, s in rows]), rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name].descend])
def test_descending_piece_by_piece_equals_the_update(name):
    theta, gradient = draw(2, D)
    lr = torch.tensor(0.3, dtype=torch.float64)
    out = torch.empty_like(theta)
    for piece in (slice(0, 4), slice(4, D)):
        ALL[name].descend(gradient[piece], theta[piece], lr, out[piece])
    delta, _ = ALL[name].update(gradient, {}, theta, lr)
    torch.testing.assert_close(out, theta + delta, rtol=1e-14, atol=1e-16)


def test_only_optimizers_without_state_descend():
    assert {name for name in ALL if ALL[name].descend} == {"sgd", "sgd, decay"}


@pytest.mark.parametrize("name", ALL)
def test_inputs_are_left_alone(name):
    optimizer, theta, lr = ALL[name], draw(NODES, D), torch.full((NODES,), 0.1, dtype=torch.float64)
    _, state = run(optimizer, theta, steps=3)
    inputs = (draw(NODES, D, seed=2), state, theta, lr)
    before = (inputs[0].clone(), {k: v.clone() for k, v in state.items()}, theta.clone(), lr.clone())
    optimizer.update(*inputs)
    torch.testing.assert_close(inputs, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_derivatives_equal_central_differences(name):
    optimizer, theta = ALL[name], draw(NODES, D)
    _, state = run(optimizer, theta, steps=3)
    primals = (draw(NODES, D, seed=3), state, theta, torch.full((NODES,), 0.1, dtype=torch.float64))
    # the coordinate without gradients sits on the kink of √(g²): test_..._finite has it
    primals[0][:, 0] = 0.0
    tangents = (
        draw(NODES, D, seed=4),
        {k: draw(*v.shape, seed=5) * 1e-3 for k, v in state.items()},
        draw(NODES, D, seed=6),
        draw(NODES, seed=7),
    )
    tangents[0][:, 0] = 0.0
    if "v" in state:
        tangents[1]["v"][:, 0] = 0.0

    def moved(eps):
        return optimizer.update(*torch.utils._pytree.tree_map(lambda p, t: p + eps * t, primals, tangents))

    _, actual = jvp(optimizer.update, primals, tangents)
    expected = torch.utils._pytree.tree_map(lambda a, b: (a - b) / 2e-6, moved(1e-6), moved(-1e-6))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)

    _, pull = vjp(optimizer.update, *primals)
    cotangents = torch.utils._pytree.tree_map(lambda t: draw(*t.shape, seed=8), actual)
    assert inner(cotangents, actual) == pytest.approx(inner(pull(cotangents), tangents), rel=1e-9)


def inner(a, b):
    leaves = torch.utils._pytree.tree_leaves
    return sum(float((x * y).sum()) for x, y in zip(leaves(a), leaves(b), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_derivatives_are_finite_where_gradients_are_zero(name, dtype):
    optimizer, theta = ALL[name], draw(NODES, D, dtype=dtype)
    state, zero = optimizer.init(theta), torch.zeros(NODES, D, dtype=dtype)
    tangent = draw(NODES, D, seed=1, dtype=dtype)
    lr = torch.full((NODES,), 0.1, dtype=dtype)
    for _ in range(2):
        update = lambda g, state=state: optimizer.update(g, state, theta, lr)  # noqa: E731
        (_, state), (delta, _) = jvp(update, (zero,), (tangent,))
        cotangent = vjp(lambda g, update=update: update(g)[0], zero)[1](tangent)[0]
        assert delta.isfinite().all()
        assert cotangent.isfinite().all()


def test_first_adam_derivative_at_zero_gradient_is_that_of_the_numerator():
    optimizer, theta, lr = adam(eps=1e-3), torch.zeros(D, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    _, tangent = jvp(lambda g: optimizer.update(g, optimizer.init(theta), theta, lr)[0], (theta,), (theta + 1,))
    torch.testing.assert_close(tangent, torch.full_like(theta, -0.1 / 1e-3), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_compiles_in_one_graph(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # dynamo cannot trace the shape checks
    torch.compiler.reset()
    optimizer, theta = ALL[name], draw(NODES, D)
    arguments = (gradient_at(theta), optimizer.init(theta), theta, torch.full((NODES,), 0.1, dtype=torch.float64))
    compiled = torch.compile(optimizer.update, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), optimizer.update(*arguments), rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_parameters_stay_bfloat16_beside_float32_rates(name):
    optimizer, theta = ALL[name], draw(NODES, D).bfloat16()
    state = optimizer.init(theta)
    delta, after = optimizer.update(gradient_at(theta), state, theta, torch.full((NODES,), 0.1))
    assert delta.dtype == torch.bfloat16
    assert {k: v.dtype for k, v in after.items()} == {k: v.dtype for k, v in state.items()}


def test_bfloat16_counts_past_256():
    optimizer, theta = adam(), torch.zeros(D, dtype=torch.bfloat16)
    _, state = optimizer.update(theta, optimizer.init(theta) | {"count": torch.tensor(300.0)}, theta, torch.tensor(0.1))
    assert optimizer.init(theta)["count"].dtype == torch.float32
    assert state["count"] == 301


def test_bias_correction_keeps_float32_digits():
    for count in (1, 2, 10, 1000):
        exact = 1 - 0.999**count
        assert float(optimizers._bias(0.999, torch.tensor(float(count)))) == pytest.approx(exact, rel=3e-7)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_clipped_norm_is_at_most_max_norm_and_direction_is_kept(max_norm, scale, seed):
    g, theta = scale * draw(NODES, D, seed=seed), torch.zeros(NODES, D).double()
    delta, _ = clip(sgd(), max_norm).update(g, {}, theta, torch.ones(NODES).double())
    assert (delta.norm(dim=-1) <= max_norm * (1 + 1e-12)).all()
    torch.testing.assert_close(-delta / delta.norm(dim=-1, keepdim=True), g / g.norm(dim=-1, keepdim=True))
    untouched = g.norm(dim=-1) + 1e-6 <= max_norm
    torch.testing.assert_close(-delta[untouched], g[untouched], rtol=0, atol=0)


@given(st.sampled_from(sorted(ALL)), st.permutations(range(NODES)))
@settings(max_examples=30, deadline=None)
def test_participants_do_not_mix(name, order):
    theta = draw(NODES, D)
    torch.testing.assert_close(run(ALL[name], theta[order], 5)[0], run(ALL[name], theta, 5)[0][order], rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_built_by_name_with_and_without_options(name):
    theta = draw(NODES, D)
    torch.testing.assert_close(run(build(name), theta), run(OPTIMIZERS[name][0](), theta), rtol=0, atol=0)
    assert not torch.equal(run(build(name, weight_decay=0.5), theta)[0], run(build(name), theta)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("sdg"), "unknown optimizer 'sdg'. Did you mean 'sgd'"),
        (lambda: build("adam", beta=0.9), "unknown option of adam 'beta'. Did you mean 'betas'"),
        (lambda: sgd(-1.0), "weight_decay must be at least 0; found -1"),
        (lambda: momentum(weight_decay=math.nan), "weight_decay must be at least 0; found nan"),
        (lambda: nesterov(1.0), r"beta must lie in \[0, 1\); found 1.0"),
        (lambda: adam((0.9, 1.5)), r"must lie in \[0, 1\); found 0.9, 1.5"),
        (lambda: sgd(weight_decay=1e39), "weight_decay must be at most .* the largest float32; found 1e"),
        (lambda: adamw(eps=-1e-8), "eps must be at least 0; found -1e-08"),
        (lambda: adamw(weight_decay=-1.0), "weight_decay must be at least 0; found -1"),
        (lambda: clip(sgd(), 0.0), "max_norm must be positive; found 0"),
        (lambda: clip(sgd(), math.nan), "max_norm must be positive; found nan"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def column(lr):
    return lr[..., None]


def lion(beta1=0.9, beta2=0.99):
    """Chen et al. 2023."""

    def update(gradient, state, theta, lr):
        direction = torch.lerp(state["m"], gradient, 1 - beta1).sign()
        return -column(lr) * (direction + 0.1 * theta), {"m": torch.lerp(state["m"], gradient, 1 - beta2)}

    return Optimizer(lambda theta: {"m": torch.zeros_like(theta)}, update)


def stateless(direction):
    return Optimizer(lambda theta: {}, lambda g, state, theta, lr: (-column(lr) * direction(g), state))


def delayed_sign():
    """Each step uses the sign of the gradient before."""
    return Optimizer(lambda theta: {"g": theta * 0}, lambda g, s, theta, lr: (-column(lr) * s["g"].sign(), {"g": g}))


FLAT = {
    "lion": lion(),
    "lion, clipped": clip(lion(), 0.5),
    "sign": stateless(torch.sign),
    "comparison": stateless(lambda g: (g > 0).to(g)),
    "rounded": stateless(lambda g: (8 * g).round() / 8),
    "detached": stateless(lambda g: g.detach()),
    "sign of the gradient before": delayed_sign(),
}


@pytest.mark.parametrize("name", FLAT)
def test_updates_with_derivative_zero_are_refused(name):
    with pytest.raises(
        ValueError, match=r"derivative by the gradient; it is zero .* Use the truth, which needs no deri"
    ):
        check_differentiable(FLAT[name])


SMOOTH = ALL | {
    "clipped by value": stateless(lambda g: g.clamp(-1e-4, 1e-4)),
    "no response": stateless(torch.zeros_like),
    "half the coordinates": stateless(lambda g: torch.where(torch.arange(g.shape[-1]) % 2 == 0, g, g.sign())),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_differentiable_updates_pass(name):
    check_differentiable(SMOOTH[name])


def test_a_name_and_an_optimizer_are_resolved():
    optimizer = momentum(0.5)
    assert resolve(optimizer) is optimizer
    theta = draw(NODES, D)
    torch.testing.assert_close(run(resolve("adam"), theta), run(adam(), theta), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.optim.SGD, r"found torch.optim.SGD. Use 'sgd', or optimizers.build\('sgd', …\)"),
        (torch.optim.AdamW([torch.zeros(1)]), r"found torch.optim.AdamW. Use 'adamw'"),
        (torch.optim.RMSprop, r"found torch.optim.RMSprop. Write its step as a pure function: optimizers.Optimizer"),
        (sgd, "found sgd. Use one of sgd, momentum, .*, or optimizers.build"),
        (0.1, "found float. Use one of sgd"),
    ],
)
def test_what_is_no_optimizer_is_refused(given, message):
    with pytest.raises(TypeError, match="optimizer must be a name or an optimizers.Optimizer; " + message):
        resolve(given)


def test_options_given_as_lists_are_known_again():
    check_differentiable(build("adam", betas=[0.9, 0.99]))
    assert build("adam", betas=[0.9, 0.99]).settings == adam(betas=(0.9, 0.99)).settings
