"""A run that can be trained again: from its settings, or from its recording if a rule chose W."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cascadice.engine import Evaluation, Network, draw
from cascadice.engine.backwards import segment
from cascadice.engine.operator import Exchange
from cascadice.influence.trust import RULES
from cascadice.influence.weighted_run import WeightedRun, final_value
from cascadice.names import lookup
from cascadice.runs import store
from cascadice.runs.config import Config, length_of
from cascadice.runs.distributed.departures import read_departures
from cascadice.runs.distributed.processes import ONE_PROCESS, World
from cascadice.runs.folder import launcher, read_manifest, resuming
from cascadice.runs.recording import RecordedRounds, Recording
from cascadice.runs.saved import as_drawn


@dataclass(frozen=True)
class Playable:
    """A run that can be trained again at any weight of the updates, in memory or by several processes."""

    folder: Path
    config: Config
    network: Network  # trains as the run did
    rounds: int
    recorded: RecordedRounds | None  # all its rounds, if all of them were recorded
    length: int  # how many rounds to keep at a time; the same after a restart, so that the checkpoints fit
    exchange: Exchange | None = None
    world: World = ONE_PROCESS

    def before_and_after(
        self, evaluation: Evaluation, on: str | int = "all", trained: float | None = None,
        played: Callable[[], None] | None = None, during: range | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """f(0) and f(1): the loss without updates, those of the rounds `during` or all, and of the final models.

        `trained` is this process's part of the latter, if it is known. `played` is called after each round in which
        somebody trains.
        """
        run = WeightedRun(self.network, self.rounds, evaluation, 0.0, during, on, exchange=self.exchange)
        untrained = final_value(run if during is None else replace(run, played=played))
        if trained is None:
            trained = final_value(replace(run, rounds=self.rounds_at(1.0), at=1.0, played=played))
        before, after = self.world.total(untrained, trained)
        return before, after

    def rounds_at(self, at: float) -> int | RecordedRounds:
        """The argument `rounds` of `whole_run` at this weight: the recorded rounds at 1, else how many to train."""
        return self.recorded if at == 1 and self.recorded is not None else self.rounds


def playable(run: Recording) -> Playable:
    """Prepare an opened run to be trained again, with the recorded draws if all rounds were recorded."""
    folder, config, network = run.folder, run.config, run.network
    if config.rule is not None and not lookup(RULES, config.rule, "rule").averages:
        found = f"{folder} used the rule {config.rule!r}, which does not. Train it with another rule, or with none"
        raise ValueError(f"a run can be trained again at other weights only if its participants average; {found}.")
    manifest = read_manifest(folder)
    if away := read_departures(folder).away:
        how = f"{launcher((manifest.get('process') or {}).get('of', 1))} influence {folder.parent} --kind shares"
        found = f"{folder} lacks round {away[0]}. Score the rounds that all of them recorded: {how}"
        raise ValueError(f"a run can be trained again only if every process recorded every round; {found}.")
    rounds = int(manifest.get("rounds", length_of(config, network)))
    if rounds < 1:
        raise ValueError(f"{folder} has no rounds yet. Continue it with: {resuming(folder, manifest)}")
    if manifest.get("status") == "diverged":
        how = "Train it with a lower learning rate, or ask what its updates did within a few hops: --kind truth"
        raise ValueError(f"{folder} diverged in round {rounds}, so it has no final models. {how}.")
    saved, length = store.saved_rounds(folder), segment(network, rounds)
    missing = min(set(range(rounds)).difference(saved), default=None)
    if missing is None:
        recorded = RecordedRounds(folder, range(rounds), network, run.fingerprint)
        averaged = recorded[-1].rule is None  # gossip in an order that a recording cannot repeat is read as a rule
        return Playable(folder, config, as_drawn(network, folder), rounds, recorded if averaged else None, length)
    if config.saved is not None:
        found = f"{folder} lacks round {missing}. Save it with all of them, from round 0 on"
        raise ValueError(f"a network that was built in Python can be trained again only from its rounds; {found}.")
    if config.rule is not None:
        found = f"{folder} lacks round {missing}. Train it again with --record all"
        raise ValueError(f"the rule {config.rule!r} chose W during the run, so every round must be recorded; {found}.")
    if earlier := [t for t in saved if t < rounds]:  # a continued run may have had other learning rates
        t = earlier[-1]
        then, now = store.load_draw(folder, t), draw(network, t)
        rate, planned = (torch.as_tensor(each.lr, dtype=torch.float64).cpu() for each in (then, now))
        if not torch.equal(then.batch, now.batch) or not torch.allclose(rate, planned):
            found = f"its settings give other batches or learning rates for round {t} than its recording"
            raise ValueError(f"{folder} cannot be trained again: {found}. Train it with --record all.")
    return Playable(folder, config, network, rounds, None, length)
