import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascadice.learning_rates import SCHEDULES, constant, cosine, parse, per_participant, resolve, step_decay, warmup

STEPS = 40


def torch_rates(make_scheduler):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


TORCH = {
    "constant": (constant(0.3), lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
    "step": (step_decay(0.3, 7, 0.5), lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.5)),
    "cosine": (cosine(0.3, STEPS), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS)),
    "cosine to a floor": (cosine(0.3, STEPS, 0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS, 0.1)),
    "warm-up": (
        warmup(constant(0.3), 10),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=9),
    ),
    "warm-up and decay": (
        warmup(step_decay(0.3, 7, 0.5), 10),
        lambda o: torch.optim.lr_scheduler.ChainedScheduler(
            [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=9), torch.optim.lr_scheduler.StepLR(o, 7, 0.5)]
        ),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_schedules_equal_torch(name):
    schedule, scheduler = TORCH[name]
    assert [schedule(step) for step in range(STEPS)] == pytest.approx(torch_rates(scheduler), rel=1e-12)


def test_cosine_stays_at_its_floor():
    schedule = cosine(0.3, 10, 0.1)
    assert [schedule(step) for step in (10, 11, 25)] == pytest.approx([0.1] * 3, rel=1e-12)


@given(st.floats(0, 10), st.integers(1, 50), st.floats(0.01, 1), st.integers(1, 30), st.integers(0, 200))
def test_text_and_functions_are_the_same_schedule(lr, every, factor, steps, step):
    written = parse(f"warmup:{steps}+step:{every}:{factor!r}", lr, 100)
    assert written(step) == warmup(step_decay(lr, every, factor), steps)(step)
    assert parse("cosine", lr, 100)(step) == cosine(lr, 100)(step)
    assert parse("constant", lr, 100)(step) == lr


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_registered_form_is_read(name):
    text = SCHEDULES[name].text.replace("EVERY", "5").replace("FACTOR", "0.5")
    schedule = parse(text.replace("STEPS", "5").replace("SCHEDULE", "cosine"), 0.1, 10)
    assert 0 <= schedule(3) <= 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "unknown learning-rate schedule 'cosin'. Did you mean 'cosine'"),
        ("", "unknown learning-rate schedule ''"),
        ("step", "schedule step must be written step:EVERY:FACTOR; found 'step'"),
        ("step:2.5:0.1", "must be written step:EVERY:FACTOR; found 'step:2.5:0.1'"),
        ("step:2:0.1:7", "must be written step:EVERY:FACTOR"),
        ("constant:1", "must be written constant; found 'constant:1'"),
        ("cosine+constant", "must be written cosine; found 'cosine.constant'"),
        ("warmup:5", "must be written warmup:STEPS.SCHEDULE; found 'warmup:5'"),
        ("warmup:5+", "unknown learning-rate schedule ''"),
        ("warmup:0+cosine", "number of warm-up steps must be at least 1; found 0"),
        ("step:0:0.5", "number of steps between decays must be at least 1; found 0"),
        ("step:5:-1", r"decay factor must lie in \(0, 1\]; found -1.0"),
    ],
)
def test_malformed_text_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, 0.1, 100)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [constant, lambda lr: step_decay(lr, 5), lambda lr: cosine(lr, 5)])
def test_rates_must_be_finite_and_not_negative(lr, make):
    with pytest.raises(ValueError, match=r"learning rate must be finite and at least 0; found (-0.1|nan|inf)"):
        make(lr)


def test_cosine_needs_steps_and_a_floor_below_its_start():
    with pytest.raises(ValueError, match=r"floor must lie between 0 and lr = 0.1; found 0.2"):
        cosine(0.1, 10, floor=0.2)
    with pytest.raises(ValueError, match="number of total steps must be at least 1; found 0"):
        cosine(0.1, 0)


@pytest.mark.parametrize("lr", [0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), np.float64(0.5)])
def test_scalars_of_every_kind_are_constant_rates(lr):
    rate = resolve(lr)(7)
    assert isinstance(rate, float)
    assert rate == 0.5


def test_a_function_is_its_own_schedule():
    schedule = cosine(0.3, 10)
    assert resolve(schedule) is schedule


@pytest.mark.parametrize("make", [list, tuple, lambda rates: rates], ids=["list", "tuple", "tensor"])
def test_a_sequence_has_a_rate_for_each_participant(make):
    given = torch.tensor([0.1, 0.0, 0.3], dtype=torch.float64)
    rates = resolve(make(given), 3)(4)
    assert rates.dtype == torch.float64
    assert torch.equal(rates, given)


def test_participants_follow_their_own_schedules():
    schedules = [0.1, step_decay(0.4, 2, 0.5), cosine(0.3, 10)]
    for step in range(12):
        expected = [0.1, schedules[1](step), schedules[2](step)]
        assert per_participant(schedules)(step).tolist() == expected
        assert warmup(per_participant(schedules), 5)(step).tolist() == pytest.approx(
            [rate * min(1, (step + 1) / 5) for rate in expected], rel=1e-15
        )


@pytest.mark.parametrize(
    ("lr", "error", "message"),
    [
        ("0.1", TypeError, "lr must be a number or a function of the round; found '0.1'"),
        (True, TypeError, "lr must be a number or a function of the round; found True"),
        (None, TypeError, "lr must be a number or a function of the round; found None"),
        (torch.ones(3, 2), TypeError, "lr must be a number or a function of the round; found tensor"),
        ([0.1, "a", 0.2], TypeError, "lr must be a number or a function of the round; found 'a'"),
        (torch.tensor(-0.1), ValueError, "learning rate must be finite and at least 0; found -0.1"),
        ([0.1, float("nan"), 0.2], ValueError, "learning rate must be finite and at least 0; found nan"),
        ([0.1, 0.2], ValueError, "lr must have one entry for each of the 3 participants; found 2"),
    ],
)
def test_what_is_no_rate_is_refused(lr, error, message):
    with pytest.raises(error, match=message):
        resolve(lr, 3)
