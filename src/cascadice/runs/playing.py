"""A run to play again: from its settings alone, or from its recording where a rule chose who listens to whom."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cascadice.engine.exchange.rules import RULES
from cascadice.engine.networks import Network
from cascadice.files import Folder
from cascadice.names import lookup
from cascadice.runs import store
from cascadice.runs.config import Config, build, length, override
from cascadice.runs.folder import read_manifest, read_run_config
from cascadice.runs.recording import RecordedRounds


@dataclass(frozen=True)
class Playable:
    """A run that can be played again at any weight of the updates.

    Attributes:
        network: Trains as the run did.
        rounds: How many rounds the run had.
        recorded: All its rounds, where all of them were recorded.
    """

    folder: Path
    config: Config
    network: Network
    rounds: int
    recorded: RecordedRounds | None

    def rounds_at(self, at: float) -> int | RecordedRounds:
        """What `whole_run` takes for rounds at this weight: the recorded ones at 1, else how many to play."""
        return self.recorded if at == 1 and self.recorded is not None else self.rounds


def open_playable(run: Folder, settings: Mapping[str, Any] | None = None, *, quiet: bool = False) -> Playable:
    """Open a run to play it again; its rounds need not have been recorded, unless a rule chose W.

    Args:
        run: The folder that `cascadice run` wrote.
        settings: Settings that may differ from those it was trained with: `device`, `data_root`.

    Raises:
        ValueError: Where the run has no rounds, or cannot be played again.

    Example:
        >>> run = open_playable("runs/demo")  # doctest: +SKIP
        >>> whole_run(run.network, run.rounds_at(0.5), evaluate_on(run.network), at=0.5)  # doctest: +SKIP
    """
    folder = Path(run)
    config = read_run_config(folder)
    _check_rule(config, folder)
    network = build(override(config, settings or {}), quiet=quiet)
    rounds = _rounds(folder, config, network)
    saved = set(store.saved_rounds(folder))
    missing = next((t for t in range(rounds) if t not in saved), None)
    recorded = RecordedRounds(folder, range(rounds), network) if missing is None else None
    if config.rule is not None:
        if recorded is None:
            raise ValueError(
                f"the rule {config.rule!r} chose who listens to whom as the run went, so every round must be recorded; "
                f"{folder} lacks round {missing}. Train it again with --record all."
            )
        network = replace(network, mixing=partial(store.load_mixing, folder))
    elif recorded is not None and recorded[-1].rule is not None:  # gossip in an order that a recording cannot repeat
        recorded = None
    return Playable(folder, config, network, rounds, recorded)


def _check_rule(config: Config, folder: Path) -> None:
    if config.rule is not None and not lookup(RULES, config.rule, "rule").averages:
        raise ValueError(
            f"a run can be played again at other weights only if its participants average; {folder} used the rule "
            f"{config.rule!r}, which does not. Train it with another rule, or with none."
        )


def _rounds(folder: Path, config: Config, network: Network) -> int:
    assert network.partition is not None
    rounds = int(read_manifest(folder).get("rounds", length(config, network.partition)))
    if rounds < 1:
        raise ValueError(f"{folder} has no rounds yet. Continue it with: cascadice run --resume --out {folder}")
    return rounds
