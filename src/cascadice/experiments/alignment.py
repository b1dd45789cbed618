"""How well estimates of influence follow the truth in a network that learns, with its test accuracy beside them.

    python -m cascadice.experiments.alignment [--model mlp] [--batch-size 128] [--hops 1] [--every 4] [--data-root DIR]

The paper's alignment setting (CIFAR-10, exponential graph of 16, learning rate 0.1) from shared initial parameters. In
every so many rounds, everybody's update is a point: its true influence against each estimate of it.
"""

import argparse
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cascadice.configuration import build, length
from cascadice.engine import Round, evaluate, simulate
from cascadice.experiments.regimes import find
from cascadice.influence import Judge, agreement, first_order, judge, path_integrated, truth
from cascadice.recipes import paper


def measure(model: str, batch_size: int, epochs: float, hops: int, every: int, root: str | None) -> dict[str, Any]:
    """Train, and compare estimates with the truth on the way."""
    source, place = find(root)
    changes = (
        {"batch_size": batch_size, "epochs": epochs} if source == "cifar10" else {"per_node": None, "batch_size": 16}
    )
    config = replace(paper(model, source, "exponential", 16), data_root=place, **changes)
    network = build(config)
    assert network.partition is not None
    size = min(256, len(network.data.test))
    yardstick = judge(network, network.data.test.subset(torch.arange(size)))
    window: deque[Round] = deque(maxlen=hops)
    points: dict[str, list[Tensor]] = {}
    for done in simulate(network, length(config, network.partition)):
        window.append(done)
        if len(window) == hops and (done.t + 1) % every == 0:
            for name, value in _scores(network, list(window), yardstick).items():
                points.setdefault(name, []).append(value)
    found = {name: torch.cat(values) for name, values in points.items()}
    true = found.pop("truth")
    accuracy = float(evaluate(network, done.after).accuracy.mean())
    setting = {"data": source, "model": model, "batch_size": config.batch_size, "hops": hops, "points": len(true)}
    agreements = {name: agreement(true, value)._asdict() for name, value in found.items()}
    return {**setting, "test_accuracy": accuracy, **agreements}


def _scores(network: Any, rounds: list[Round], yardstick: Judge) -> dict[str, Tensor]:
    return {
        "truth": truth(network, rounds, yardstick).total,
        "first order": first_order(network, rounds, yardstick).total,
        "path-integrated, 1 point": path_integrated(network, rounds, yardstick, points=1).total,
        "path-integrated, 2 points": path_integrated(network, rounds, yardstick, points=2).total,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each estimate and, if asked, one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--hops", type=int, default=1)
    parser.add_argument("--every", type=int, default=4, help="rounds between those that are scored")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args(arguments)
    result = measure(args.model, args.batch_size, args.epochs, args.hops, args.every, args.data_root)
    print(
        f"{result['model']} on {result['data']}, batch {result['batch_size']}, {result['hops']} hops, "
        f"{result['points']} points; test accuracy {result['test_accuracy']:.3f}"
    )
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"  {name:26} Pearson {value['pearson']:.4f}   relative RMSE {value['relative_rmse']:.4f}")
    if args.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
