"""Do networks learn from own and from shared initial parameters?

The paper's plots come from networks in which every participant starts from its own random parameters. Averaging such
models destroys what they know: the network stays near chance, where influence is nearly linear and easy to estimate.
From shared parameters the same network learns. This trains both and prints the accuracy they reach.

    python -m cascadice_experiments.initialisation [--data-root DIR] [--out out/initialisation] [--device cpu] [--json]
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascadice.runs.config import Config
from cascadice.runs.recipes import paper
from cascadice.runs.train import run
from cascadice_experiments import study
from cascadice_experiments.data_sets import find_and_tell

FLAGS: study.Flags = {"--out": {"default": Path("out/initialisation"), "help": "folder for the runs [%(default)s]"}}
INITS = ("own", "shared")


def settings(source: str, root: str | None, device: str) -> list[Config]:
    """MLP (5 epochs) and CNN (3: it is slower), each from own and from shared parameters; evaluated only at the end."""
    if source == "digits":
        small = replace(paper("mlp", "digits", "exponential", 16), per_node=None, batch_size=32, epochs=30.0)
        bases = [small, replace(small, model="cnn")]
    else:
        bases = [paper("mlp", source, "exponential", 16), replace(paper("cnn", source, "exponential", 16), epochs=3.0)]
    here = [replace(base, data_root=root, device=device, eval_every=sys.maxsize) for base in bases]
    return [replace(config, init=init) for config in here for init in INITS]


def measure(config: Config, out: Path) -> dict[str, Any]:
    """Train one setting; the participants' accuracy and how far apart they are."""
    result = run(config, out / f"{config.model}-{config.init}", overwrite=True, quiet=True)
    assert result.last.test is not None
    accuracy = result.last.test.accuracy
    return {
        "data": config.data,
        "model": config.model,
        "init": config.init,
        "rounds": result.rounds,
        "accuracy_mean": float(accuracy.mean()),
        "accuracy_min": float(accuracy.min()),
        "accuracy_max": float(accuracy.max()),
        "consensus": float(result.last.consensus),
        "seconds": result.seconds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the table and, with --json, one JSON object last."""
    return study.run("initialisation", _measured, study.parser("initialisation", FLAGS).parse_args(arguments))


def _measured(args: Namespace) -> dict[str, Any]:
    source, root = find_and_tell(args.data_root)
    results = [measure(config, args.out) for config in settings(source, root, args.device)]
    _show(results)
    return {"results": results}


def _show(results: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{results[0]['data']}, exponential graph of 16: test accuracy of the participants")
    for column in ("model", "initial parameters", "mean", "least", "greatest", "consensus distance", "rounds", "s"):
        table.add_column(column, justify="left" if column in ("model", "initial parameters") else "right")
    for r in results:
        scores = (f"{r[f'accuracy_{which}']:.3f}" for which in ("mean", "min", "max"))
        table.add_row(r["model"], r["init"], *scores, f"{r['consensus']:.3g}", str(r["rounds"]), f"{r['seconds']:.1f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
