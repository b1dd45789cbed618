"""Train networks with an attacker, and record every score of every link."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.applications.detect.evidence import (
    ALLOWANCE,
    Evidence,
    accumulate,
    deviations,
    lasting_spread,
    no_evidence,
    strengths,
    threshold,
)
from cascadice.applications.detect.signals import SIGNALS, signal_scores
from cascadice.data import DataSet
from cascadice.engine import Network, evaluate, fleet, simulate
from cascadice.engine.exchange.geometry import neighbours
from cascadice.influence import Evaluation, evaluate_on, own_data
from cascadice.influence.proximity import in_turn
from cascadice_experiments.anomalies.ablation import ablate
from cascadice_experiments.anomalies.rivals import RIVALS
from cascadice_experiments.anomalies.settings import (
    Fleet,
    Plan,
    Setting,
    attacked,
    fleets_of,
    honest_network,
    rounds_of,
)
from cascadice_experiments.roc import auroc

RATE = 0.01
# (allowance, unlike) by name; "measured" is the default of `cascadice detect`, "unlike" its --unlike
TERMS: Mapping[str, tuple[float | None, bool]] = {
    "0.25": (0.25, False),
    "0.5": (0.5, False),
    "0.7": (0.7, False),
    "1": (1.0, False),
    "unlike": (0.5, True),
    "measured": (None, False),
}
SCORES = {**SIGNALS, **RIVALS}
DETECTOR = "detector"


def own_evaluation(networks: Sequence[Network], together: Network) -> Evaluation:
    """Evaluate each participant on its own data: as many samples as the smallest holding has, at most 512."""
    most = min(512, *(len(part) for part in together.partition or ()))
    samples = {id(net): own_data(net, most) for net in networks}
    return evaluate_on(together, [own for net in networks for own in samples[id(net)]])


class Watched(NamedTuple):
    """What was seen of each link: |deviation| by each score after each round, and whether it is flagged in the end.

    `flagged` has a row for each of `TERMS`; `accuracy` is each participant's test accuracy.
    """

    deviation: Float[Tensor, "rounds scores links"]
    flagged: Bool[Tensor, "terms links"]
    source: Int[Tensor, " links"]
    receiver: Int[Tensor, " links"]
    accuracy: Float[Tensor, " n"]


def watch(
    network: Network, rounds: int, evaluation: Evaluation, samples: int, networks: int, once: bool = False
) -> Watched:
    """Train a fleet and accumulate evidence on every link, over all rounds, or in the last round alone if `once`."""
    heard, deviation = neighbours(network.mixing(0)).T.to(network.device), []
    source, receiver = heard.nonzero().unbind(1)
    evidence: Evidence | None = None
    for round_ in simulate(network, rounds):
        if once and round_.t < rounds - 1:
            continue
        scores = signal_scores(network, round_, in_turn(evaluation, round_.t, samples), SCORES)
        evidence = accumulate(no_evidence(scores) if evidence is None else evidence, scores, heard)
        deviation.append(deviations(evidence)[:, source, receiver].abs().float())
    assert evidence is not None  # there is a last round
    by_signals = evidence._replace(total=evidence.total[: len(SIGNALS)], latest=evidence.latest[: len(SIGNALS)])
    flagged = torch.stack([_strengths(by_signals, networks, *terms)[source, receiver] > 1 for terms in TERMS.values()])
    accuracy = evaluate(network, round_.after).accuracy
    return Watched(torch.stack(deviation).cpu(), flagged.cpu(), source.cpu(), receiver.cpu(), accuracy.cpu())


def _strengths(evidence: Evidence, networks: int, allowance: float | None, unlike: bool) -> Float[Tensor, "n n"]:
    """The strengths of a fleet; a measured allowance is measured in each network separately."""
    size, strength = len(evidence.weight) // networks, torch.zeros_like(evidence.weight)
    for rows in (slice(i * size, (i + 1) * size) for i in range(networks)):
        one = Evidence(*(part[..., rows, rows] for part in evidence))
        allowed = lasting_spread(one).clamp_min(ALLOWANCE) if allowance is None else allowance
        strength[rows, rows] = strengths(one, RATE, allowed, unlike)
    return strength


def table_of(watched: Watched, networks: Fleet, nodes: int) -> dict[str, Tensor]:
    """A row per honest receiver and in-neighbour: the evidence in the end, whether it attacks, when it was flagged.

    `delay` is the number of rounds until the flag stood for good; one more than there are rounds if it never did.
    """
    which = watched.receiver // nodes
    seed, place = torch.tensor(networks)[which].unbind(1)
    source, receiver = watched.source % nodes, watched.receiver % nodes
    degree = int((watched.receiver == 0).sum())  # the graph is regular
    limit = threshold(degree, RATE / len(SIGNALS))
    strength = watched.deviation[:, : len(SIGNALS)].amax(1) / limit
    stood = (strength > 1).flip(0).cumprod(0).sum(0)
    columns = {
        "seed": seed, "attacker": place, "source": source, "receiver": receiver, "attacks": source == place,
        DETECTOR: strength[-1], **{name: watched.deviation[-1, i] for i, name in enumerate(SCORES)},
        **{_flagged(terms): watched.flagged[i] for i, terms in enumerate(TERMS)},
        "degree": torch.full_like(source, degree), "ever": (strength > 1).any(0), "delay": len(strength) - stood + 1,
        "accuracy": watched.accuracy[watched.receiver],
    }  # fmt: skip
    return {name: column[receiver != place] for name, column in columns.items()}


def _flagged(terms: str) -> str:
    return f"flagged at {terms}"


def measure(setting: Setting, plan: Plan, dataset: DataSet, evaluations: dict[Any, Evaluation]) -> dict[str, Tensor]:
    """All points of a setting; `evaluations` caches the evaluation data from one setting to the next."""
    tables = []
    for networks in fleets_of(setting, plan):
        honest = {seed: honest_network(setting, plan, dataset, seed) for seed in {seed for seed, _ in networks}}
        held = min(len(part) for net in honest.values() for part in net.partition or ())
        rounds = rounds_of(setting, plan, plan.per_node or held)
        together = fleet([attacked(honest[seed], setting, place, rounds - 1) for seed, place in networks])
        key = (setting.partition, tuple(seed for seed, _ in networks))
        if key not in evaluations:
            evaluations[key] = own_evaluation([honest[seed] for seed, _ in networks], together)
        samples = min(plan.samples, len(evaluations[key].y[0]))
        watched = watch(together, rounds, evaluations[key], samples, len(networks), setting.once)
        tables.append(table_of(watched, networks, plan.nodes))
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def summary(name: str, setting: Setting, rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """Mean and spread over seeds: AUROC of every score, share of attackers and of honest links flagged, accuracy."""
    per_seed = [{n: column[rows["seed"] == seed] for n, column in rows.items()} for seed in set(rows["seed"].tolist())]
    attackers, honest = rows["attacks"], ~rows["attacks"]
    networks = {*zip(rows["seed"].tolist(), rows["attacker"].tolist(), strict=True)}
    areas = {score: [auroc(one[score], one["attacks"]) for one in per_seed] for score in (DETECTOR, *SCORES)}
    result = {
        "name": name, **setting._asdict(), "networks": len(networks),
        "points": len(attackers), "accuracy": _spread([float(one["accuracy"].mean()) for one in per_seed]),
        "false_alarms": {terms: _share_flagged(per_seed, terms, False) for terms in TERMS},
        "false_alarms_ever": float(rows["ever"][honest].double().mean()), "ablation": ablate(per_seed, RATE),
    }  # fmt: skip
    if not setting.kind:
        return result
    return {
        **result,
        "auroc": {score: _spread(values) for score, values in areas.items()},
        "flagged": {terms: _share_flagged(per_seed, terms, True) for terms in TERMS},
        "delay": float(rows["delay"][attackers].double().median()),
    }


def _share_flagged(per_seed: Sequence[Mapping[str, Tensor]], terms: str, attacks: bool) -> dict[str, float]:
    """The share of the attackers' links, or of the honest ones, that are flagged in the end."""
    name = _flagged(terms)
    return _spread([float(one[name][one["attacks"] == attacks].double().mean()) for one in per_seed])


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation, least and greatest over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "sd": deviation, "least": min(values), "most": max(values)}
