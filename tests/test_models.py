import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, jvp, vjp, vmap

from cascadice import models
from cascadice.losses import cross_entropy
from cascadice.models import ACTIVATIONS, MODELS, build, cnn, mlp, resnet18, transformer

# torch scripts its own forward-mode formulas on their first use, and warns about it
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

NODES, BATCH, CLASSES = 3, 5, 7
DIGITS, TOKENS = (1, 8, 8), (6,)

# name -> model, data shape, options
CASES = {activation: ("mlp", DIGITS, {"hidden": (6, 6), "activation": activation}) for activation in ACTIVATIONS}
CASES |= {
    "cnn": ("cnn", DIGITS, {"channels": (2, 3, 4)}),
    "smooth cnn": ("cnn", (2, 9, 5), {"channels": (2, 3, 4), "activation": "silu", "pool": "average"}),
    "resnet18": ("resnet18", DIGITS, {"width": 4}),
    "smooth resnet18": ("resnet18", (2, 9, 5), {"width": 4, "activation": "gelu"}),
    "transformer": ("transformer", TOKENS, {"width": 8, "heads": 2}),
    "tied transformer": ("transformer", TOKENS, {"width": 8, "heads": 2, "tied": True}),
}
REPRESENTATIVES = ["relu", "cnn", "resnet18", "transformer", "tied transformer"]


def make(case, seed=0):
    name, shape, options = CASES[case]
    return build(name, shape, CLASSES, seed=seed, **options).double()


def batch(case, *leading):
    name, shape, _ = CASES[case]
    generator = torch.Generator().manual_seed(1)
    if name == "transformer":
        draw = torch.randint(CLASSES, (2, *leading, *shape), generator=generator)
        return draw[0], draw[1]
    x = torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, leading, generator=generator)


def parameters(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def noise(tree):
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in tree.items()}


@pytest.fixture(autouse=True)
def _no_vmap_fallback():
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.mark.parametrize("case", CASES)
def test_every_derivative_under_vmap_equals_the_loop(case):
    model = make(case)
    each = [parameters(make(case, seed)) for seed in range(NODES)]
    stacked = {name: torch.stack([p[name] for p in each]) for name in each[0]}
    x, y = batch(case, NODES, BATCH)

    def loss(p, x, y):
        return cross_entropy(functional_call(model, p, (x,)), y)

    def derivatives(p, v, x, y):
        """Loss, gradient, directional derivative, and the Hessian-vector product in two ways."""
        gradient, forward_over_reverse = jvp(lambda q: grad(loss)(q, x, y), (p,), (v,))
        _, pull = vjp(lambda q: grad(loss)(q, x, y), p)
        value, directional = jvp(lambda q: loss(q, x, y), (p,), (v,))
        return value, gradient, directional, forward_over_reverse, pull(v)[0]

    tangents = noise(stacked)
    mapped = vmap(derivatives)(stacked, tangents, x, y)
    for k in range(NODES):
        one = derivatives(each[k], {name: v[k] for name, v in tangents.items()}, x[k], y[k])
        torch.testing.assert_close(
            torch.utils._pytree.tree_map(lambda t, k=k: t[k], mapped), one, rtol=1e-9, atol=1e-11
        )
    _, gradient, directional, forward_over_reverse, double_backward = mapped
    torch.testing.assert_close(forward_over_reverse, double_backward, rtol=1e-8, atol=1e-9)
    dots = sum((g * tangents[name]).flatten(1).sum(1) for name, g in gradient.items())
    torch.testing.assert_close(directional, dots, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", REPRESENTATIVES)
def test_compiles_in_one_graph(case, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # dynamo cannot trace the shape checks
    torch.compiler.reset()
    model = make(case)
    x, y = batch(case, BATCH)

    def gradient(p, x, y):
        return grad(lambda q: cross_entropy(functional_call(model, q, (x,)), y))(p)

    compiled = torch.compile(gradient, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(parameters(model), x, y), gradient(parameters(model), x, y))


@pytest.mark.parametrize("case", REPRESENTATIVES)
def test_bfloat16_is_a_rounded_float64(case):
    model, (x, y) = make(case), batch(case, BATCH)
    exact = cross_entropy(model(x), y)
    model, x = model.bfloat16(), x.bfloat16() if x.is_floating_point() else x
    loss = cross_entropy(model(x), y)
    loss.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)
    assert all(p.grad.dtype == torch.bfloat16 and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("case", CASES)
def test_samples_do_not_mix(case):
    model, (x, _) = make(case), batch(case, BATCH)
    torch.testing.assert_close(torch.cat([model(sample[None]) for sample in x]), model(x))


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 1, 1), (2, 3, 17)])
def test_any_image_size(name, shape):
    small = {"mlp": {"hidden": (4, 4)}, "cnn": {"channels": (2, 2, 2)}, "resnet18": {"width": 2}}
    assert build(name, shape, CLASSES, **small[name])(torch.zeros(2, *shape)).shape == (2, CLASSES)


def test_sizes_are_the_published_ones():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(mlp((3, 32, 32), 10)) == 3072 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    assert count(cnn((3, 32, 32), 10)) == (27 * 32 + 32) + (288 * 64 + 64) + (576 * 128 + 128) + (128 * 16 * 10 + 10)
    assert count(resnet18((3, 32, 32), 10)) == 11_173_962
    block = 4 * 128**2 + 4 * 128 + 8 * 128**2 + 5 * 128 + 4 * 128
    assert count(transformer(50, 32)) == 50 * 128 + 32 * 128 + 2 * block + 2 * 128 + 50 * 128
    assert count(transformer(50, 32, tied=True)) == count(transformer(50, 32)) - 50 * 128
    assert all(m.num_groups == 32 for m in resnet18((3, 32, 32), 10).modules() if isinstance(m, nn.GroupNorm))


def test_cnn_pools_what_28_pixels_allow():
    assert cnn((1, 28, 28), 10)[-1].in_features == 128 * 3 * 3


def slow_resnet18(p, x, groups):
    """He et al. 2016 written out over the parameters in their order."""
    p = iter(p)

    def conv(x, stride, padding=1):
        return F.group_norm(F.conv2d(x, next(p), None, stride, padding), groups, next(p), next(p))

    x = conv(x, 1).relu()
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            body = conv(conv(x, stride).relu(), 1)
            x = (body + (conv(x, stride, 0) if stride == 2 else x)).relu()
    return x.mean((2, 3)) @ next(p).T + next(p)


@pytest.mark.parametrize(("width", "groups"), [(8, 4), (6, 1), (5, 1), (12, 2)])
def test_resnet18_equals_its_definition(width, groups):
    model = build("resnet18", (3, 16, 16), CLASSES, width=width).double()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(model(x), slow_resnet18(model.parameters(), x, groups))


def torch_transformer(model, x, heads):
    """The same weights in torch's own encoder layers, under a causal mask."""
    embedding, *halves, norm, head = model
    hidden = embedding.tokens(x) + embedding.positions[: x.shape[1]]
    width, mask = hidden.shape[-1], nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=hidden.dtype)
    for attention, perceptron in zip(halves[::2], halves[1::2], strict=True):
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        (norm1, attend), (norm2, up, _, down) = attention.body, perceptron.body
        twins = [norm1, norm2, up, down, attend.write]
        for ours, theirs in zip(
            twins, [layer.norm1, layer.norm2, layer.linear1, layer.linear2, layer.self_attn.out_proj], strict=True
        ):
            theirs.load_state_dict(ours.state_dict())
        layer = layer.double()
        layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias = attend.read.weight, attend.read.bias
        hidden = layer(hidden, src_mask=mask)
    return head(norm(hidden))


@pytest.mark.parametrize("length", [6, 4, 1])
def test_transformer_equals_torch(length):
    model = build("transformer", TOKENS, CLASSES, width=12, heads=3, depth=3).double()
    x = torch.randint(CLASSES, (BATCH, length), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x), torch_transformer(model, x, 3))


@given(st.integers(0, 5), st.integers(1, CLASSES - 1), st.booleans())
@settings(max_examples=20, deadline=None)
def test_transformer_is_causal(position, shift, tied):
    model = build("transformer", TOKENS, CLASSES, width=8, heads=2, tied=tied).double()
    x = torch.randint(CLASSES, (1, *TOKENS), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, position] = (x[:, position] + shift) % CLASSES
    same = (model(x) - model(changed)).abs().amax((0, 2)) < 1e-12
    assert same.tolist() == [t < position for t in range(6)]


def test_tied_logits_start_small():
    x = torch.arange(50)[None]
    assert build("transformer", (50,), 50, tied=True)(x).std() < 1
    assert build("transformer", (50,), 50)(x).std() < 1


@pytest.mark.parametrize("case", REPRESENTATIVES)
def test_weights_come_from_the_seed_alone(case):
    with torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        first = parameters(make(case, seed=3))
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(7)
        torch.testing.assert_close(parameters(make(case, seed=3)), first, rtol=0, atol=0)
        other = parameters(make(case, seed=4))
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_registry_describes_in_one_line():
    assert set(MODELS) == {"mlp", "cnn", "resnet18", "transformer"}
    assert all("\n" not in description for _, description in MODELS.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("resnet", DIGITS, 10), "unknown model 'resnet'. Did you mean 'resnet18'"),
        (
            lambda: build("mlp", DIGITS, 10, hiden=(3,)),
            "unknown option of mlp 'hiden'. Did you mean 'hidden'.*activation, h",
        ),
        (
            lambda: build("transformer", TOKENS, 10, dept=3),
            "unknown option of transformer 'dept'. Did you mean 'depth'",
        ),
        (lambda: mlp(DIGITS, 10, activation="geluu"), "unknown activation 'geluu'. Did you mean 'gelu'"),
        (lambda: mlp(DIGITS, 0), "classes must be at least 1; found 0"),
        (lambda: mlp((1, 0, 8), 3), r"shape must be at least 1; found \(1, 0, 8\)"),
        (lambda: mlp(DIGITS, 3, hidden=(4, -1)), r"hidden must be at least 1; found \(4, -1\)"),
        (lambda: cnn((64,), 10), r"needs data of shape \(channels, height, width\); found \(64,\). Use the mlp"),
        (lambda: cnn(DIGITS, 10, pool="mean"), "unknown pool 'mean'"),
        (lambda: cnn(DIGITS, 10, channels=(4, 0)), r"channels must be at least 1; found \(4, 0\)"),
        (lambda: resnet18((8, 8), 10), r"needs data of shape \(channels, height, width\); found \(8, 8\)"),
        (lambda: resnet18(DIGITS, 10, width=0), "width must be at least 1; found 0"),
        (
            lambda: transformer(10, 6, width=10, heads=4),
            "width must be a multiple of heads; found width 10 and 4 heads",
        ),
        (lambda: transformer(10, 0), "context must be at least 1; found 0"),
        (lambda: build("transformer", DIGITS, 10), r"transformer needs data of shape \(context,\); found \(1, 8, 8\)"),
        (
            lambda: transformer(10, 6)(torch.zeros(1, 7, dtype=torch.int64)),
            "sequence must have at most 6 tokens, the model's context; found 7",
        ),
    ],
)
def test_bad_options_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("unchecked")
def test_what_makes_no_model_is_named():
    for wrong, found in (("mlp", "'mlp'"), (torch.zeros(2), "Tensor")):
        with pytest.raises(TypeError, match=f"or a function that makes one; found {found}"):
            models.make(wrong)


def test_activations_are_all_used_by_name():
    assert isinstance(models.mlp(DIGITS, 10, activation="elu")[2], nn.ELU)
