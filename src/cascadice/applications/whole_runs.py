"""A run as a whole, from what its folder holds: recorded rounds, or settings by which it can be played again."""

import torch

from cascadice.engine import Evaluation, Round, draw, evaluate_on
from cascadice.influence.whole_run_shares import measured_at
from cascadice.runs.recording import Recording


def whole_run_of(recording: Recording) -> int | list[Round]:
    """All rounds of a run, as whole-run shares take them: as recorded, or how many there are to be played again.

    Recorded rounds hold what was drawn; of the participants, only those before the first and after the last are kept.

    Raises:
        ValueError: If rounds are missing and the run cannot be played again.

    Example:
        >>> whole_run_shares(recording.network, whole_run_of(recording), evaluation)  # doctest: +SKIP
    """
    numbers, rounds = recording.round_numbers, list[Round]()
    missing = min(set(range(numbers[-1])) - set(numbers), default=None)
    if missing is None:
        for round_ in recording.load_rounds():
            first = rounds[0] if rounds else round_
            kept = round_ if round_.t == numbers[-1] else round_._replace(half=first.half, after=first.after)
            rounds.append(kept._replace(before=first.before))
        if all(round_.rule is None for round_ in rounds):
            return rounds
    if recording.config.rule is not None:
        wrong = "do not average" if missing is None else f"are not all there: round {missing} is missing"
        raise ValueError(
            f"the recorded rounds of {recording.folder} {wrong}, and a run with the mixing rule "
            f"{recording.config.rule!r} cannot be played again. Train it with --record all."
        )
    _check_it_plays_again(recording)
    return numbers[-1] + 1


def _check_it_plays_again(recording: Recording) -> None:
    """The settings must draw what was drawn: a run that was continued may have had other learning rates."""
    t = recording.round_numbers[-1]
    then, now = next(iter(recording.load_rounds([t]))).draw, draw(recording.network, t)
    rate, planned = (torch.as_tensor(each.lr, dtype=torch.float64).cpu() for each in (then, now))
    if not torch.equal(then.batch, now.batch) or not torch.allclose(rate, planned):
        raise ValueError(
            f"{recording.folder} cannot be played again: its settings give other batches or learning rates for round "
            f"{t} than were recorded. Train it with --record all."
        )


def evaluation_of(recording: Recording, samples: int | None = None) -> Evaluation:
    """The loss on the first `samples` test samples, or on all of them."""
    test = recording.network.data.test
    return evaluate_on(recording.network, test.subset(torch.arange(samples or len(test))))


def before_and_after(
    recording: Recording, rounds: int | list[Round], evaluation: Evaluation, on: str | int = "all"
) -> tuple[float, float]:
    """f(0) and f(1): the loss of models that only gossip, and of the final models as recorded."""
    last = list(recording.load_rounds(recording.round_numbers[-1:]))
    untrained = measured_at(recording.network, rounds, evaluation, 0.0, on=on)
    return untrained, measured_at(recording.network, last, evaluation, 1.0, on=on)
