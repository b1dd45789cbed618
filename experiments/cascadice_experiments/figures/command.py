"""What `cascadice reproduce` does; its flags are in `cascadice.commands.reproduce`."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from cascadice.names import lookup
from cascadice.report.page import REPORT
from cascadice.report.page.results import ERROR
from cascadice.topology import read_csv
from cascadice_experiments.figures import registry
from cascadice_experiments.figures.figure import Figure, Mixing
from cascadice_experiments.figures.reproduction import Outcome, Request, reproduce

FAILED, SKIPPED = 1, 3  # exit codes
LEAST = 3  # participants


def run(args: argparse.Namespace) -> int:
    """Make the figures that were asked for, or list all of them; returns the exit code."""
    say = partial(Console(quiet=args.quiet).print, highlight=False, soft_wrap=True, markup=False)
    figures = registry.FIGURES
    if not args.figures:
        for name, figure in figures.items():
            say(f"{name:28} {figure.title}{' (takes --mixing)' * figure.takes_mixing}")
        return 0
    chosen = figures if "all" in args.figures else {name: lookup(figures, name, "figure") for name in args.figures}
    _check_device(args.device)
    mixing = _mixing(args, chosen)
    request = Request(Path(args.out), args.quick, args.device, args.data_root, mixing, args.overwrite, args.download)
    try:
        outcome = reproduce(chosen, request, say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. Run the same command without --overwrite to continue.") from None
    return _conclude(outcome, request.out, say)


def _check_device(device: str) -> None:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"--device must be cpu, cuda or cuda:N; found {device!r}.")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device {device} needs a CUDA device; torch finds none here. Use --device cpu.")


def _mixing(args: argparse.Namespace, chosen: Mapping[str, Figure]) -> Mixing | None:
    if args.mixing is None:
        if args.normalize:
            raise ValueError("--normalize applies to the matrix of --mixing, which was not given. Leave it out.")
        return None
    if not any(figure.takes_mixing for figure in chosen.values()):
        raise ValueError(f"none of these figures takes a mixing matrix: {', '.join(chosen)}. Leave out --mixing.")
    W = read_csv(args.mixing, normalize=args.normalize)  # errors in it are reported before anything is trained
    if len(W) < LEAST:
        raise ValueError(f"{args.mixing} has {len(W)} participants; a cascade needs at least {LEAST}.")
    return Mixing(str(Path(args.mixing).absolute()), args.normalize)


def _conclude(outcome: Outcome, out: Path, say: Callable[[str], None]) -> int:
    named = {"already made": outcome.kept, "skipped, data missing": outcome.skipped, "failed": outcome.failed}
    for label, names in named.items():
        if names:
            say(f"{label}: {', '.join(names)}")
    for name in outcome.failed:
        print(f"cascadice: {name} failed; see {out / name / ERROR}", file=sys.stderr)
    if (out / REPORT).exists():
        say(f"page in {out / REPORT}, text in {out / 'index.md'}")
    return FAILED if outcome.failed else SKIPPED if outcome.skipped else 0
