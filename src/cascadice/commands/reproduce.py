"""`cascadice reproduce`: the figures of the paper, and some beyond it. Torch is loaded when the command runs."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cascadice.names import lookup

if TYPE_CHECKING:
    from cascadice_experiments.figures.reproduction import Outcome
    from cascadice_experiments.figures.results import Figure, Mixing

FAILED, SKIPPED = 1, 3  # exit codes
LEAST = 3  # participants


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("figures", nargs="*", metavar="NAME", help="figures, or all (none: say which there are)")
    parser.add_argument("--quick", action="store_true", help="fewer participants, rounds and points: minutes on a CPU")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data sets")
    parser.add_argument("--download", action="store_true", help="fetch data sets that are not there")
    parser.add_argument("--device", default="cpu", metavar="TEXT", help="cpu, cuda or cuda:N [cpu]")
    parser.add_argument("--out", default="out/reproduce", metavar="DIR", help="folder for everything [out/reproduce]")
    parser.add_argument("--mixing", metavar="FILE", help="CSV file with W, for the figures that take one")
    parser.add_argument("--normalize", action="store_true", help="divide each row of the CSV file by its sum")
    parser.add_argument("--overwrite", action="store_true", help="make these figures again, whatever there is of them")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(command=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from cascadice_experiments.figures.registry import FIGURES
    from cascadice_experiments.figures.reproduction import Request, reproduce
    from rich.console import Console

    console = Console(quiet=args.quiet)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    if not args.figures:
        for name, figure in FIGURES.items():
            say(f"{name:28} {figure.title}{' (takes --mixing)' * figure.takes_mixing}")
        return 0
    chosen = FIGURES if "all" in args.figures else {name: lookup(FIGURES, name, "figure") for name in args.figures}
    _check_device(args.device)
    mixing = _mixing(args, chosen)
    request = Request(Path(args.out), args.quick, args.device, args.data_root, mixing, args.overwrite, args.download)
    try:
        outcome = reproduce(chosen, request, say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. The same command, without --overwrite, goes on.") from None
    return _closing(outcome, request.out, say)


def _check_device(device: str) -> None:
    import torch

    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"--device must be cpu, cuda or cuda:N; found {device!r}.")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError("CUDA was asked for but torch finds no CUDA device here. Use --device cpu.")


def _mixing(args: argparse.Namespace, chosen: Mapping[str, "Figure"]) -> "Mixing | None":
    from cascadice_experiments.figures.results import Mixing

    from cascadice.topology import read_csv

    if args.mixing is None:
        if args.normalize:
            raise ValueError("--normalize is for the matrix that --mixing gives; found none. Leave it out.")
        return None
    if not any(figure.takes_mixing for figure in chosen.values()):
        raise ValueError(f"none of these figures takes a mixing matrix: {', '.join(chosen)}. Leave out --mixing.")
    W = read_csv(args.mixing, normalize=args.normalize)  # what is wrong with it is said before anything is trained
    if len(W) < LEAST:
        raise ValueError(f"{args.mixing} has {len(W)} participants; a cascade needs {LEAST} or more to compare.")
    return Mixing(str(Path(args.mixing).absolute()), args.normalize)


def _closing(outcome: "Outcome", out: Path, say: Callable[[str], None]) -> int:
    """What became of the figures; the exit code."""
    from cascadice.report.page import REPORT

    for what, names in zip(("were there already", "lack their data", "failed"), outcome[1:], strict=True):
        if names:
            say(f"{what}: {', '.join(names)}")
    if (out / REPORT).exists():
        say(f"page in {out / REPORT}, text in {out / 'index.md'}")
    return FAILED if outcome.failed else SKIPPED if outcome.skipped else 0
