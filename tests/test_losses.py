import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jvp, vmap

from cascadice.influence.measures import negative_margin, on_class
from cascadice.losses import LOSSES, accuracy, cross_entropy, mse

# torch scripts its own forward-mode formulas on their first use, and warns about it
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def draw(*batch, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*batch, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, batch, generator=generator)


def slow_cross_entropy(logits, targets):
    rows = zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), strict=True)
    return torch.stack([row.exp().sum().log() - row[target] for row, target in rows]).mean()


def slow_mse(logits, targets):
    one_hot = torch.eye(logits.shape[-1], dtype=logits.dtype)[targets]
    return ((logits - one_hot) ** 2).sum() / logits.numel()


ORACLES = {"cross-entropy": slow_cross_entropy, "mse": slow_mse}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=2), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_losses_equal_their_definitions(batch, classes, seed):
    logits, targets = draw(*batch, classes=classes, seed=seed)
    for name, (loss, _) in LOSSES.items():
        torch.testing.assert_close(loss(logits, targets), ORACLES[name](logits, targets))


@pytest.mark.parametrize("batch", [(6,), (6, 4)], ids=["classes", "tokens"])
@pytest.mark.parametrize("name", LOSSES)
def test_vmap_and_derivatives_equal_a_loop_over_the_definition(name, batch):
    loss, slow = LOSSES[name][0], ORACLES[name]
    logits, targets = draw(3, *batch)
    tangents, _ = draw(3, *batch, seed=1)

    def derivatives(f):
        def all_orders(x, y, v):
            gradient, hessian_product = jvp(lambda x: grad(f)(x, y), (x,), (v,))
            return f(x, y), gradient, jvp(lambda x: f(x, y), (x,), (v,))[1], hessian_product

        return all_orders

    mapped = vmap(derivatives(loss))(logits, targets, tangents)
    looped = [derivatives(slow)(*row) for row in zip(logits, targets, tangents, strict=True)]
    torch.testing.assert_close(mapped, tuple(map(torch.stack, zip(*looped, strict=True))))


def test_mse_of_values():
    outputs, targets = draw(6)[0], draw(6, seed=1)[0]
    torch.testing.assert_close(mse(outputs, targets), torch.nn.functional.mse_loss(outputs, targets))


def test_mse_refuses_to_broadcast(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse first
    with pytest.raises(ValueError, match=r"mse needs outputs and targets of one shape; found \(6, 5\) and \(6, 1\)"):
        mse(draw(6)[0], draw(6, classes=1)[0])


@pytest.mark.parametrize("loss", [cross_entropy, mse])
def test_bfloat16_outputs_give_a_float32_loss(loss):
    logits, targets = draw(64)
    rounded = logits.bfloat16()
    assert loss(rounded, targets).dtype == torch.float32
    torch.testing.assert_close(loss(rounded, targets), loss(rounded.double(), targets).float())


def test_accuracy_counts_hits():
    logits = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    assert accuracy(logits, torch.tensor([1, 0, 0, 0])) == 0.75
    assert accuracy(logits.view(2, 2, 2), torch.tensor([[1, 0], [0, 1]])) == 0.5
    torch.testing.assert_close(
        vmap(accuracy)(logits[:, None], torch.tensor([1, 0, 0, 0])[:, None]), torch.tensor([1.0, 1, 0, 1])
    )


@pytest.mark.parametrize("batch", [(6,), (6, 4)], ids=["classes", "tokens"])
def test_a_column_of_classes_is_one_class_a_row(batch):
    logits, targets = draw(*batch)
    for measure in (cross_entropy, mse, accuracy, negative_margin):
        assert measure(logits, targets[..., None]) == measure(logits, targets)
    with pytest.raises(ValueError, match=r"one class for each row of logits; logits are .*, targets .* Reshape"):
        accuracy(logits, targets[None])


def test_the_mean_of_one_class_takes_a_column_of_classes():
    logits, targets = draw(6)
    assert on_class(1)(logits, targets[:, None]) == on_class(1)(logits, targets)
    with pytest.raises(ValueError, match=r"one class for each of 6 samples; found shape \[6, 4\]"):
        on_class(1)(*draw(6, 4))
