"""Single samples with a wrong label, found by their influence on everyone; for one participant, against TracIn."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.engine import Network, Participants, Round, evaluate, module_of, simulate
from cascadice.influence import Evaluation, evaluate_on, score_rounds
from cascadice.influence.readings import sample_contributions
from cascadice.runs.config import Config, build, length
from cascadice.runs.recipes import paper
from cascadice_experiments.drawing import hide_box, panels, save
from cascadice_experiments.figures.alignment_plots import NAMES, rounds_to_score
from cascadice_experiments.figures.figure import Context, Part, Result, spread, stack
from cascadice_experiments.roc import auroc

TITLES = {**NAMES, "mnist": "MNIST"}
CHECKPOINTS = 5  # for captum


@dataclass(frozen=True)
class Mislabelled:
    """A run in which a share of the training labels is wrong; influence is on `judged_on` clean test samples."""

    name: str
    config: Config
    share: float
    judged_on: int
    hops: int = 1


def plan(quick: bool) -> list[Mislabelled]:
    """16 participants, and a single one without a network. Quick: MNIST, 8 participants with half the data."""
    sets = ("mnist",) if quick else ("mnist", "cifar10")
    cases = []
    for data in sets:
        run = replace(paper("mlp", data, "exponential", 16), batch_size=32, epochs=10.0)
        run = replace(run, nodes=8, per_node=256) if quick else run
        alone = replace(run, topology="alone", nodes=1, per_node=1024 if quick else 4096)
        for config, where in ((run, f"{run.nodes} participants"), (alone, "one participant")):
            cases.append(Mislabelled(f"{TITLES[data]}, {where}", config, 0.2, 128 if quick else 512))
    return cases


def measure(plan: Sequence[Mislabelled], context: Context) -> Result:
    """Train with wrong labels and score every sample; each run is a part of the measurement."""
    parts = [context.part(case.name, partial(_measure, case, context)) for case in plan]
    rows = [row for part in parts for row in part["rows"]]
    findings = [
        f"{row['panel']}, {row['score']}: AUC {row['auc']:.3f} for {row['wrong']} of {row['samples']} samples "
        f"(test accuracy {row['test_accuracy'][0]:.3f})."
        for row in rows
    ]
    if find_spec("captum") is None:
        findings.append("captum is not installed (make peers), so there is no comparison with it.")
    return Result(stack([part["points"] for part in parts]), rows, findings, {})


def _measure(case: Mislabelled, context: Context) -> Part:
    network = build(context.configure(case.config))
    assert network.partition is not None
    held = torch.cat([part.cpu() for part in network.partition])
    draw = seeds.generator(case.config.seed, "wrong labels", case.name)
    wrong = held[torch.randperm(len(held), generator=draw)[: round(case.share * len(held))]]
    last = length(case.config, network.partition) - 1
    network = relabelled(network, wrong, draw)
    clean = torch.arange(len(network.data.test))
    evaluation = evaluate_on(network, network.data.test.subset(clean[: case.judged_on]))
    checkpoints: dict[int, Participants] = {}
    rounds = _keep_some(
        simulate(network, last + 1, taped=True), {last, *rounds_to_score(last + 1, CHECKPOINTS, 1)}, checkpoints
    )
    scored = score_rounds(network, rounds, evaluation, hops=case.hops, samples=True)
    by_round = ((one.round, next(iter(one.samples.values()))) for one in scored)
    influence = sample_contributions(by_round, len(network.data.train)).value[held]
    accuracy = evaluate(network, checkpoints[last], network.data.test.subset(clean[case.judged_on :])).accuracy
    scores = {
        f"influence over {case.hops} hop": influence,
        "training loss at the end": _losses(network, checkpoints[last]),
    }
    if case.config.nodes == 1 and find_spec("captum"):
        scores["captum's TracInCP"] = _captum(network, list(checkpoints.values()), evaluation, held)
    return _part(case, held, torch.isin(held, wrong), scores, accuracy)


def relabelled(network: Network, wrong: Int[Tensor, " wrong"], draw: torch.Generator) -> Network:
    """The network with another class, drawn at random, for these training samples."""
    train, classes = network.data.train, len(network.data.classes)
    shift = torch.randint(1, classes, (len(wrong),), generator=draw).to(train.y.device)
    y = train.y.clone()
    y[wrong] = (y[wrong] + shift) % classes
    return replace(network, data=replace(network.data, train=replace(train, y=y)))


def _keep_some(rounds: Iterator[Round], when: Container[int], kept: dict[int, Participants]) -> Iterator[Round]:
    """The same rounds; the participants after those in `when` are put into `kept`."""
    for round_ in rounds:
        if round_.t in when:
            kept[round_.t] = round_.after
        yield round_


def _losses(network: Network, people: Participants) -> Float[Tensor, " held"]:
    """The loss of everyone's own samples by its own model, in the order of the partition."""
    losses = []
    for k, part in enumerate(network.partition or ()):
        x, y = network.data.train.take(part.to(network.device))
        with torch.no_grad():
            out = module_of(network, people, k)(x)
        losses.append(torch.nn.functional.cross_entropy(out, y, reduction="none").cpu())
    return torch.cat(losses)


def _captum(
    network: Network, checkpoints: Sequence[Participants], evaluation: Evaluation, held: Int[Tensor, " held"]
) -> Float[Tensor, " held"]:
    """Minus TracInCP's influence on the clean samples: there, positive means that a sample helps."""
    import warnings

    from captum.influence import TracInCP
    from torch.utils.data import DataLoader, TensorDataset

    models = [module_of(network, people, 0) for people in checkpoints]
    x, y = network.data.train.take(held.to(network.device))

    def restore(model: torch.nn.Module, number: Any) -> float:
        model.load_state_dict(models[int(number)].state_dict())
        return 1.0

    with warnings.catch_warnings(action="ignore"):  # captum differentiates inputs and says so
        tracin = TracInCP(
            module_of(network, checkpoints[0], 0), DataLoader(TensorDataset(x, y), batch_size=256),
            checkpoints=[str(number) for number in range(len(models))], checkpoints_load_func=restore,
            loss_fn=torch.nn.CrossEntropyLoss(reduction="sum"), sample_wise_grads_per_batch=True,
        )  # fmt: skip
        scores: Tensor = tracin.influence((evaluation.x, evaluation.y), aggregate=True)
    return -scores[0].detach().cpu().double()


def _part(
    case: Mislabelled, held: Int[Tensor, " held"], wrong: Bool[Tensor, " held"], scores: Mapping[str, Tensor],
    accuracy: Float[Tensor, " n"],
) -> Part:  # fmt: skip
    rows = [
        {
            "panel": case.name, "score": name, "auc": auroc(score, wrong), "samples": len(held),
            "wrong": int(wrong.sum()), "test_accuracy": spread(accuracy),
        }
        for name, score in scores.items()
    ]  # fmt: skip
    points = {
        "panel": [case.name] * len(held) * len(scores),
        "score": [name for name in scores for _ in range(len(held))],
        "sample": held.tolist() * len(scores),
        "wrong": wrong.tolist() * len(scores),
        "value": [value for score in scores.values() for value in score.tolist()],
    }
    return {"points": points, "rows": rows}


def draw(result: Result, path: Path) -> None:
    """Draw the share of wrong labels found among the most suspicious samples, a panel per run."""
    names = list(dict.fromkeys(result.points["panel"]))
    figure, (places,) = panels(4.4 * len(names), 4, 1, len(names))
    table = list(zip(*result.points.values(), strict=True))
    for axes, panel in zip(places, names, strict=True):
        for row in (row for row in result.summary if row["panel"] == panel):
            suspects = sorted((-v, w) for p, s, _, w, v in table if (p, s) == (panel, row["score"]))
            caught = torch.tensor([w for _, w in suspects]).double().cumsum(0) / row["wrong"]
            inspected = torch.arange(1, len(caught) + 1) / len(caught)
            axes.plot(inspected, caught, label=f"{row['score']}: AUC {row['auc']:.3f}")
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axes.set(title=panel, xlabel="share of samples inspected", ylabel="share of wrong labels found")
        hide_box(axes)
        axes.legend(frameon=False, fontsize=7)
    save(figure, path, dpi=130)
