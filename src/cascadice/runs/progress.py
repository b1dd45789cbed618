"""What a run prints: before, during and after training."""

import math
import warnings
from collections.abc import Sequence

from rich.table import Table
from torch import Tensor

from cascadice.console import Console, say
from cascadice.data import partition
from cascadice.engine.networks import Network
from cascadice.engine.parts import numbered
from cascadice.runs.round_metrics import RoundMetrics, quality
from cascadice.topology import describe_schedule

FULL_TABLE_UP_TO = 32  # participants; beyond, minimum, mean and maximum


def latest(metrics: Sequence[RoundMetrics], members: Sequence[int] = ()) -> str:
    """The latest training loss and test accuracy in words, of `members` if this process has only a part."""
    tests = (float(m.test.accuracy.mean()) for m in reversed(metrics) if m.test is not None)
    known = "" if math.isnan(accuracy := next(tests, math.nan)) else f"  test accuracy {accuracy:.3f}"
    whose = f"{numbered(members)}: " if members else ""
    return f"  {whose}training loss {float(metrics[-1].train_loss.mean()):.4f}{known}"


def print_opening(console: Console, network: Network, rounds: int, name: str) -> None:
    """Print what is about to be trained: the model, the graph and how the data are divided."""
    size = f"{network.learner.size:,} parameters each, {rounds} rounds, {network.strategy} on {network.device}"
    here = f" ({network.nodes} of them in this process)" if network.members else ""
    say(console, f"{network.whole} participants{here} train on {network.data.name}: {size}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mixing = describe_schedule(network.mixing)
    sums = "doubly" if mixing.doubly_stochastic else "row"
    over = f" over {mixing.rounds} rounds" if mixing.rounds > 1 else ""
    say(console, f"{name}: {mixing.links} links{over}, spectral gap {mixing.spectral_gap:.4f}, {sums}-stochastic W")
    for warning in caught:
        say(console, f"warning: {warning.message}")
    if network.members:
        return  # nobody knows what the participants of other processes hold
    if network.partition is None or network.data.train.y.dim() != 1 or network.nodes > FULL_TABLE_UP_TO:
        sizes = [len(part) for part in network.partition or []] or [0]
        each = str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        say(console, f"each participant holds {each} training samples")
        return
    classes = network.data.classes
    console.print(holdings_table(partition.counts(network.partition, network.data.train.y, len(classes)), classes))


def holdings_table(holdings: Tensor, classes: Sequence[str], *, widest: int = 20) -> Table:
    """`partition.counts` as a table; with more than `widest` classes, only each participant's three commonest."""
    table, narrow = Table(title="who holds what"), len(classes) <= widest
    for heading in ("participant", "samples", *(classes if narrow else ("classes", "commonest"))):
        table.add_column(heading, justify="left" if heading == "commonest" else "right")
    for node, row in enumerate(holdings.tolist()):
        held = sorted((c for c in range(len(row)) if row[c]), key=lambda c: -row[c])
        commonest = ", ".join(f"{classes[c]} ({row[c]})" for c in held[:3])
        cells = [str(count or "·") for count in row] if narrow else [str(len(held)), commonest]
        table.add_row(str(node), str(sum(row)), *cells)
    return table


def print_closing(console: Console, metrics: RoundMetrics, members: Sequence[int] = ()) -> None:
    """Print the participants' final accuracy and consensus distance, of all of them or of these members."""
    part = members if len(members) == len(metrics.train_loss) else ()  # unless the others told theirs
    whose = f" of {numbered(part)}" if part else ""
    if metrics.test is not None:
        name, values = quality(metrics.test)
        if len(values) <= FULL_TABLE_UP_TO:
            table = Table(title=f"test {name} of each participant", show_header=False)
            each = list(zip(part or range(len(values)), values.tolist(), strict=True))
            for some in (each[first : first + 8] for first in range(0, len(each), 8)):
                table.add_row("participant", *(str(node) for node, _ in some), style="dim")
                table.add_row("", *(f"{value:.3f}" for _, value in some), end_section=True)
            console.print(table)
        spread = f"mean {float(values.mean()):.4f}, min {float(values.min()):.4f}, max {float(values.max()):.4f}"
        say(console, f"test {name}{whose}: {spread}")
    if not math.isnan(metrics.consensus):
        meant = f"consensus distance{whose} (root mean square distance from the mean model)"
        say(console, f"{meant}: {float(metrics.consensus):.4g}")
