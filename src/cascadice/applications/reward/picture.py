"""Who is paid what, drawn and told: of one run's ledger, and of the study of how fair ledgers are."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from cascadice.applications.reward.idea import Payout
from cascadice.applications.reward.ledger import Ledger
from cascadice.files import aside
from cascadice.pictures.influence import COLOURS, HARMED, HELPED, NAMED_UP_TO
from cascadice.pictures.topology import SUFFIXES


def draw(
    payout: Payout,
    contributed: Float[Tensor, "rounds n"],
    rounds: Sequence[int],
    path: str | PathLike[str],
    *,
    known: Mapping[int, str] | None = None,
    title: str = "",
) -> None:
    """Payments, what was earned and lost for them, and how contributions grew over the rounds, as PNG or SVG."""
    figure, (paid, why, growth) = _figure(path, 3)
    nodes = len(payout.payment)
    names = [f"{known[k]}  {k}" if known and k in known else str(k) for k in range(nodes)]
    paid.barh(range(nodes), payout.payment.numpy(), color=COLOURS[1])
    paid.set(title="who is paid what", xlabel="payment", ylabel="participant")
    why.barh(range(nodes), payout.earned.numpy(), color=HELPED, label="in rounds in which it helped")
    why.barh(range(nodes), -payout.lost.numpy(), color=HARMED, label="in rounds in which it harmed")
    why.axvline(0, color="0.2", linewidth=0.8)
    why.set(title="why", xlabel="harmed  <  loss taken away  >  helped")
    why.legend(frameon=False, fontsize=8)
    for axes in (paid, why):
        axes.set_yticks(range(nodes), names if nodes <= NAMED_UP_TO else [""] * nodes, fontsize=8)
        axes.invert_yaxis()
    for node, line in enumerate(contributed.neg().cumsum(0).T.numpy()):
        bad = known is not None and node in known
        growth.plot(rounds, line, color=HARMED if bad else HELPED, alpha=0.9 if bad else 0.5, linewidth=1.2)
    growth.axhline(0, color="0.2", linewidth=0.8)
    growth.set(title="contributions so far", xlabel="round", ylabel="loss taken away")
    _save(figure, path, title)


def sentences(payout: Payout, ledger: Ledger, budget: float, known: Mapping[int, str], accuracy: str = "") -> list[str]:
    """What is paid to whom and why, in plain English."""
    rounds, nodes = ledger.rounds, len(payout.payment)
    span = f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    told = [
        f"{budget:g} was shared out among {nodes} participants by their contributions ({ledger.note['kind']}; {span})."
    ]
    most, least = int(payout.payment.argmax()), float(payout.payment.min())
    told.append(f"Most goes to {_name(most, known)}: {payout.payment[most]:.2f}.")
    unpaid = [k for k in range(nodes) if payout.credit[k] <= 0]
    idle = [k for k in unpaid if payout.earned[k] == 0 == payout.lost[k]]
    for text, who in ((f"No help to pay for, so {least:.2f} each", unpaid), ("Neither helped nor harmed", idle)):
        if who:
            told.append(f"{text}: {', '.join(_name(k, known) for k in who)}.")
    if accuracy:
        told.append(f"The network's {accuracy}.")
    told.append(f"The ledger is sealed by {ledger.seal[:16]}…; kept elsewhere, its seal shows if entries are removed.")
    return told


def table(payout: Payout, known: Mapping[int, str]) -> dict[str, Any]:
    """A row for each participant, the best paid first."""
    order = payout.payment.argsort(descending=True, stable=True).tolist()
    return {
        "columns": ["participant", "payment", "credit", "helped by", "harmed by", "told to"],
        "rows": [[k, *(round(float(part[k]), 6) for part in payout), known.get(k, "")] for k in order],
    }


def _name(node: int, known: Mapping[int, str]) -> str:
    return f"participant {node}" + (f" ({known[node]})" if node in known else "")


def _figure(path: str | PathLike[str], columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    figure = Figure(figsize=(5.4 * columns, 4.6), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(11)
    return figure, panels


def _save(figure: Any, path: str | PathLike[str], title: str) -> None:
    figure.suptitle(title)
    with aside(Path(path)) as draft:
        figure.savefig(draft, dpi=150, format=Path(path).suffix.lower().removeprefix("."))
