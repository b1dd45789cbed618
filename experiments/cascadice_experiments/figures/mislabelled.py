"""Single samples with a wrong label: found by what they did to everybody, and against TracIn on one participant."""

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
from cascadice.influence import Evaluation, evaluate_on, sample_contributions, score_rounds
from cascadice.runs.config import Config, build, length
from cascadice.runs.recipes import paper
from cascadice_experiments.anomalies import auroc
from cascadice_experiments.figures.alignments import NAMES, scored
from cascadice_experiments.figures.results import Means, Part, Result, joined

TITLES = {**NAMES, "mnist": "MNIST"}
CHECKPOINTS = 5  # for captum


@dataclass(frozen=True)
class Mislabelled:
    """A run in which a share of the training labels is wrong, and how many clean samples influence is judged on."""

    name: str
    config: Config
    share: float
    judged_on: int
    hops: int = 1


def plan(quick: bool) -> list[Mislabelled]:
    """16 participants, and one that has no network. Quick: MNIST, 8 participants with half the data."""
    sets = ("mnist",) if quick else ("mnist", "cifar10")
    found = []
    for data in sets:
        run = replace(paper("mlp", data, "exponential", 16), batch_size=32, epochs=10.0)
        run = replace(run, nodes=8, per_node=256) if quick else run
        alone = replace(run, topology="alone", nodes=1, per_node=1024 if quick else 4096)
        for config, where in ((run, f"{run.nodes} participants"), (alone, "one participant")):
            found.append(Mislabelled(f"{TITLES[data]}, {where}", config, 0.2, 128 if quick else 512))
    return found


def measure(plan: Sequence[Mislabelled], means: Means) -> Result:
    """Train with wrong labels and score every sample; a part of the result is a run."""
    parts = [means.part(case.name, partial(_scored, case, means)) for case in plan]
    rows = [row for part in parts for row in part["rows"]]
    findings = [
        f"{row['panel']}, {row['score']}: AUC {row['auc']:.3f} for {row['wrong']} of {row['samples']} samples "
        f"(test accuracy {row['test_accuracy'][0]:.3f})."
        for row in rows
    ]
    if find_spec("captum") is None:
        findings.append("captum is not installed (make peers), so it was not compared with.")
    return Result(joined([part["points"] for part in parts]), rows, findings, {})


def _scored(case: Mislabelled, means: Means) -> Part:
    strategy = "vmap" if means.device.startswith("cuda") else "auto"
    network = build(replace(case.config, device=means.device, data_root=means.data_root, strategy=strategy))
    assert network.partition is not None
    held = torch.cat([part.cpu() for part in network.partition])
    draw = seeds.generator(case.config.seed, "wrong labels", case.name)
    wrong = held[torch.randperm(len(held), generator=draw)[: round(case.share * len(held))]]
    last = length(case.config, network.partition) - 1
    network = relabelled(network, wrong, draw)
    clean = torch.arange(len(network.data.test))
    yardstick = evaluate_on(network, network.data.test.subset(clean[: case.judged_on]))
    checkpoints: dict[int, Participants] = {}
    rounds = _noting(simulate(network, last + 1, taped=True), {last, *scored(last + 1, CHECKPOINTS, 1)}, checkpoints)
    seen = score_rounds(network, rounds, yardstick, hops=case.hops, samples=True)
    found = ((f.round, next(iter(f.samples.values()))) for f in seen)
    influence = sample_contributions(found, len(network.data.train)).value[held]
    accuracy = evaluate(network, checkpoints[last], network.data.test.subset(clean[case.judged_on :])).accuracy
    scores = {
        f"influence over {case.hops} hop": influence,
        "training loss at the end": _losses(network, checkpoints[last]),
    }
    if case.config.nodes == 1 and find_spec("captum"):
        scores["captum's TracInCP"] = _captum(network, list(checkpoints.values()), yardstick, held)
    return _part(case, held, torch.isin(held, wrong), scores, accuracy)


def relabelled(network: Network, wrong: Int[Tensor, " wrong"], draw: torch.Generator) -> Network:
    """The network in whose training data these samples have another class, for good."""
    train, classes = network.data.train, len(network.data.classes)
    shift = torch.randint(1, classes, (len(wrong),), generator=draw).to(train.y.device)
    y = train.y.clone()
    y[wrong] = (y[wrong] + shift) % classes
    return replace(network, data=replace(network.data, train=replace(train, y=y)))


def _noting(rounds: Iterator[Round], when: Container[int], noted: dict[int, Participants]) -> Iterator[Round]:
    """The rounds as they come; who was there after these of them is kept."""
    for done in rounds:
        if done.t in when:
            noted[done.t] = done.after
        yield done


def _losses(network: Network, people: Participants) -> Float[Tensor, " held"]:
    """Of everybody's own samples, by its own model, in the order of the partition."""
    found = []
    for k, part in enumerate(network.partition or ()):
        x, y = network.data.train.take(part.to(network.device))
        with torch.no_grad():
            out = module_of(network, people, k)(x)
        found.append(torch.nn.functional.cross_entropy(out, y, reduction="none").cpu())
    return torch.cat(found)


def _captum(
    network: Network, checkpoints: Sequence[Participants], yardstick: Evaluation, held: Int[Tensor, " held"]
) -> Float[Tensor, " held"]:
    """Minus TracInCP's influence on the clean samples: its positive helps."""
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
        found: Tensor = tracin.influence((yardstick.x, yardstick.y), aggregate=True)
    return -found[0].detach().cpu().double()


def _part(
    case: Mislabelled, held: Int[Tensor, " held"], wrong: Bool[Tensor, " held"], scores: Mapping[str, Tensor],
    accuracy: Float[Tensor, " n"],
) -> Part:  # fmt: skip
    spread = [float(accuracy.mean()), float(accuracy.min()), float(accuracy.max())]
    rows = [
        {
            "panel": case.name, "score": name, "auc": auroc(score, wrong), "samples": len(held),
            "wrong": int(wrong.sum()), "test_accuracy": spread,
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
    """How many of the wrong labels are among the so many most suspicious samples, a panel for each run."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(result.points["panel"]))
    figure = Figure(figsize=(4.4 * len(panels), 4), layout="constrained")
    table = list(zip(*result.points.values(), strict=True))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for row in (row for row in result.summary if row["panel"] == panel):
            suspects = sorted((-v, w) for p, s, _, w, v in table if (p, s) == (panel, row["score"]))
            caught = torch.tensor([w for _, w in suspects]).double().cumsum(0) / row["wrong"]
            looked = torch.arange(1, len(caught) + 1) / len(caught)
            axes.plot(looked, caught, label=f"{row['score']}: AUC {row['auc']:.3f}")
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axes.set(title=panel, xlabel="share of samples looked at", ylabel="share of wrong labels found")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=130, format=path.suffix.removeprefix("."))
