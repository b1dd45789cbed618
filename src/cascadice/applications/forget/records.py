"""What was forgotten, how, how good models are now and what they still know: a certificate, in numbers and words."""

from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

import cascadice
from cascadice.applications.forget.idea import LEVELS, Corrected, Trace, distance, forget, repair, trace
from cascadice.applications.forget.removals import Removal, samples_of
from cascadice.runs.recordings import Recording

TRAINED, FORGOTTEN, NEVER = "as trained", "forgotten", "never used"
ENOUGH = 10  # forgotten samples, for an AUC that says something
COLUMNS = ("models", "test loss", "test accuracy", "membership AUC", "distance left")


class How(NamedTuple):
    """One of `LEVELS`, the points of a path integral, rounds of repair, and whether a replay checks the estimate."""

    level: str = "replay"
    points: int = 2
    repairs: int = 0
    checked: bool = False


class Certificate(NamedTuple):
    """The corrected models, and all that is to be said of them as JSON knows it."""

    corrected: Corrected
    content: dict[str, Any]


def certify(recording: Recording, numbers: range, removal: Removal, how: How) -> Certificate:
    """Forget in these recorded rounds; then look at what is left, beside an exact replay if asked."""
    network = recording.network
    began = perf_counter()
    corrected = forget(network, recording.rounds(numbers), removal, how.level, how.points)
    found: dict[str, Any] = {"seconds": perf_counter() - began}
    (last,) = recording.rounds([numbers[-1]])
    people = {TRAINED: last.after}
    exact = corrected if how.level == "replay" else None
    if exact is None and how.checked:
        exact = forget(network, recording.rounds(numbers), removal, "replay")
        people[NEVER] = repair(network, exact, removal, how.repairs).participants
    corrected = repair(network, corrected, removal, how.repairs)
    people[FORGOTTEN] = corrected.participants
    draws = (done.draw for done in recording.rounds(numbers))
    members = network.data.train.subset(samples_of(removal, draws, network.nodes))
    traces = {name: trace(network, people[name], members) for name in (TRAINED, FORGOTTEN, NEVER) if name in people}
    left = None if exact is None else distance(
        corrected.participants, last.after, people.get(NEVER, corrected.participants), start=exact.participants
    )  # fmt: skip
    change = (corrected.participants.theta - last.after.theta).double().norm(dim=1)
    found |= {"distance": left if left is None or isfinite(left) else None, "change": _list(change)}
    found["traces"] = {name: {key: _list(row) for key, row in one._asdict().items()} for name, one in traces.items()}
    content = {
        "command": "forget",
        "version": cascadice.__version__,
        "run": recording.fingerprint,
        "title": f"{_what(removal)} forgotten",
        "findings": _findings(recording, numbers, removal, how, corrected, found, traces, len(members)),
        "table": {"columns": list(COLUMNS), "rows": _rows(found, traces)},
        "forgotten": _request(removal, numbers, corrected, len(members)),
        "how": how._asdict(),
        "next_round": corrected.t,
        **found,
    }
    return Certificate(corrected, content)


def _request(removal: Removal, numbers: range, corrected: Corrected, members: int) -> dict[str, Any]:
    rounds = numbers if removal.rounds is None else removal.rounds
    return {
        "participants": list(removal.nodes),
        "samples": list(removal.samples),
        "rounds": [rounds[0], rounds[-1]],
        "updates": corrected.updates,
        "uses": corrected.uses.tolist(),
        "distinct_samples": members,
    }


def _list(values: Tensor) -> list[float]:
    found: list[float] = values.double().cpu().tolist()
    return found


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _rows(found: dict[str, Any], traces: dict[str, Trace]) -> list[list[Any]]:
    left = {TRAINED: 1.0, FORGOTTEN: found["distance"], NEVER: 0.0}
    known = found["distance"] is not None
    return [
        [name, *(round(_mean(row), 4) for row in one), round(left[name], 4) if known else None]
        for name, one in traces.items()
    ]


def _what(removal: Removal) -> str:
    who = f"participant{'s' * (len(removal.nodes) > 1)} {_named(removal.nodes)}"
    if not removal.samples:
        return who
    samples = f"sample{'s' * (len(removal.samples) > 1)} {_named(removal.samples)}"
    return f"{samples} of {who}" if removal.nodes else samples


def _named(numbers: tuple[int, ...], most: int = 8) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


def _findings(
    recording: Recording, numbers: range, removal: Removal, how: How, corrected: Corrected, found: dict[str, Any],
    traces: dict[str, Trace], members: int,
) -> list[str]:  # fmt: skip
    rounds = numbers if removal.rounds is None else removal.rounds
    span = _span(rounds)
    count, name = (int(corrected.uses.sum()), "use") if removal.samples else (corrected.updates, "update")
    uses = f"{count} {name}{'s' * (count > 1)}"
    said = [f"forgotten in all {recording.network.nodes} models: {_what(removal)}, {uses} in {span}"]
    said.append(_how(how, found))
    if not any(found["change"]):
        return [*said, "nothing changed: what was to be forgotten left no trace in these rounds"]
    said += [_left(how, found, f"{_updates(removal)} in {span}"), *_compared(traces, members)]
    if unused := [s for s, times in zip(removal.samples, corrected.uses.tolist(), strict=True) if not times]:
        said.append(f"never used in these rounds, so nothing to forget: samples {_named(tuple(unused))}")
    if others := [part for part in (range(rounds.start), range(rounds.stop, numbers.stop)) if part and removal.rounds]:
        said.append(
            f"not forgotten, as only {span} {'was' if len(rounds) == 1 else 'were'} asked for: what was learned of "
            f"it in {' and '.join(map(_span, others))}"
        )
    if removal.rounds is None and numbers[0] > 0:
        said.append(f"rounds before {numbers[0]} were not recorded: what was learned in them stays")
    return said


def _span(rounds: range) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"


def _updates(removal: Removal) -> str:
    return _what(removal) if removal.samples else f"the updates of {_what(removal)}"


def _how(how: How, found: dict[str, Any]) -> str:
    level = f"{how.level}, {how.points} points" if how.level == "path-integrated" else how.level
    repaired = f"; then {how.repairs} rounds of training without it" if how.repairs else ""
    return f"by {level} ({LEVELS[how.level].description}), in {found['seconds']:.1f} s{repaired}"


def _left(how: How, found: dict[str, Any], what: str) -> str:
    if how.level == "replay":
        return f"exact: these are the models of the same run without {what}"
    if found["distance"] is None:
        return "an estimate, not checked: --check replays the rounds and says how far off it is"
    left = f"left of the way to models that never used it: {found['distance']:.3f} (as trained: 1, exact: 0)"
    return left if found["distance"] < 1 else f"{left}; this is worse than no correction: use --level replay"


def _compared(traces: dict[str, Trace], members: int) -> list[str]:
    def line(name: str, digits: int) -> str:
        before, after = (_mean(getattr(traces[which], name)) for which in (TRAINED, FORGOTTEN))
        aim = f" (never used: {_mean(getattr(traces[NEVER], name)):.{digits}f})" if NEVER in traces else ""
        return f"{before:.{digits}f} -> {after:.{digits}f}{aim}"

    accuracy = f", accuracy {line('accuracy', 3)}" if bool(traces[TRAINED].accuracy.isfinite().all()) else ""
    few = f"; it rests on {members} sample{'s' * (members > 1)} only" if members < ENOUGH else ""
    return [
        f"test loss {line('loss', 4)}{accuracy}",
        f"forgotten samples told from fresh ones by their loss: AUC {line('membership', 3)}; 0.5 is a guess{few}",
    ]
