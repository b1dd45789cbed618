"""A figure of influence: who helped and harmed, who influenced whom, how far it reaches, how accurate estimates are."""

from collections.abc import Mapping

from cascadice.files import Folder
from cascadice.influence.agreement import Agreement
from cascadice.pictures import figures
from cascadice.pictures.figures import Numbers, agreement, colours_of, contributions, decay
from cascadice.pictures.panels import panels, save

ByKind = Mapping[str, Numbers]


def plot(
    path: Folder, *, updates: ByKind, by_hop: ByKind, matrix: ByKind, agreements: Mapping[str, Agreement],
    injected: Mapping[int, str], test_results: str = "", title: str = "",
) -> None:  # fmt: skip
    """Plot a summary of influence as PNG or SVG, with a panel for each result that is given. Negative helped.

    Args:
        updates: kind -> [rounds, n], the influence of each update on everyone.
        by_hop: kind -> [hops + 1], the mean absolute influence of an update at each hop.
        matrix: kind -> [n, n], the influence of source on receiver.
        agreements: estimator -> how close it is to `updates["truth"]`.
        injected: participant -> its faults, for the labels.
        test_results: The participants' test accuracy, as text.
    """
    count = 1 + 2 * bool(matrix) + bool(agreements)
    rows = 2 if count == 4 else 1
    figure, axes = panels(count, (5.4 * count / rows, 4.6 * rows), rows)
    each, colours = iter(axes), colours_of(updates)
    kind, first = next(iter(updates.items()))
    contributions(first, kind=kind, injected=injected, ax=next(each))
    if matrix:
        figures.matrix(next(iter(matrix.values())), ax=next(each))
        decay(by_hop, colours=colours, ax=next(each))
    if agreements:
        estimates = {kind: updates[kind] for kind in agreements}
        heading = "estimates against the truth" + (f"\nnetwork with test {test_results}" if test_results else "")
        agreement(updates["truth"], estimates, colours=colours, measured=agreements, title=heading, ax=next(each))
    save(figure, path, title)
