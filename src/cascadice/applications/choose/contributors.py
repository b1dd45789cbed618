"""`cascadice choose --by contribution`: whom to keep, by what everyone's data did to final models."""

import argparse
from dataclasses import replace
from typing import Any

from cascadice.applications.choose import picture
from cascadice.applications.plain import Json
from cascadice.applications.writer import Writer, comma_separated, open_writer
from cascadice.runs import together
from cascadice.runs.flags import open_from
from cascadice.runs.playing import playable
from cascadice.runs.processes import World
from cascadice.runs.summary import injected_faults
from cascadice.runs.sweeps import SHARES, Swept, WholeRunQuestion, remove_sweeps, sweep_run

COLUMNS = ("participant", "lowered the loss by", "part", "advice", "injected")
MOST_HELPFUL = 3  # participants that are named


def run(args: argparse.Namespace, world: World | None) -> None:
    """Rank participants by their whole-run shares, on the final model of one of them or of all.

    Of several processes, each ranks its own.
    """
    for flag, given in {"--groups": args.groups, "--degree": args.degree, "--new-links": args.new_links}.items():
        if given:
            raise ValueError(f"{flag} is for exchange. Use --by exchange, or leave it out.")
    recording = open_from(args, world)
    if args.on is not None and not 0 <= args.on < (nodes := recording.network.whole):
        raise ValueError(f"--on must be a participant, from 0 to {nodes - 1}; found {args.on}.")
    writer = open_writer(args, recording, "contribution")
    played = playable(recording.folder, recording.config, recording.network)
    question = WholeRunQuestion(on="all" if args.on is None else args.on)
    try:
        with together.exchange(world, recording.network) as exchange:
            run = replace(together.in_step(world, played), exchange=exchange)
            swept = sweep_run(run, question, writer.folder, writer.console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. What was computed so far is kept; the same command continues.") from None
    (total,) = together.total(world, float(swept.scores[SHARES].participants.sum()))
    results = _results(writer, swept, question, args.on, total)
    writer.write(results, picture.plot_contributions)
    remove_sweeps(writer.folder)
    rows = [[node, f"{lowered:+.4f}", f"{part:.1%}", *more] for node, lowered, part, *more in results["table"]["rows"]]
    writer.print_table(COLUMNS, rows, right=2)
    writer.print_files()


def _results(writer: Writer, swept: Swept, question: WholeRunQuestion, on: int | None, total: float) -> Json:
    shares, (untrained, trained) = swept.scores[SHARES].participants, swept.losses
    network = writer.recording.network
    injected, numbers = injected_faults(network), network.members or tuple(range(network.nodes))
    order, whose = shares.argsort(stable=True).tolist(), "the final models" if on is None else f"{on}'s final model"
    rows = [
        [
            numbers[k],
            0.0 - float(shares[k]),
            float(shares[k]) / total + 0.0 if total else 0.0,
            "keep" if shares[k] < 0 else "let go",
            injected.get(numbers[k], ""),
        ]
        for k in order
    ]
    sentences = [
        *_sentences(rows, whose, on),
        f"Training took the loss of {whose} from {untrained:.4f} to {trained:.4f}; the shares of participants in that "
        f"sum to {total:+.4f} (whole-run shares, {question.points} points).",
    ]
    return {
        **writer.header(f"Who helped {whose}", sentences, COLUMNS, rows),
        "on": on,
        "contributions": shares.tolist(),
        **({"members": list(network.members)} if network.members else {}),
        "untrained": untrained,
        "trained": trained,
        "gap": total - trained + untrained,
    }


def _sentences(rows: list[list[Any]], whose: str, on: int | None) -> list[str]:
    """Who helped most, whom to let go, and how much a participant did for itself."""
    kept, gone = ([row[0] for row in rows if row[3] == advice and row[0] != on] for advice in ("keep", "let go"))
    own = [f"Its own data accounts for {row[2]:.1%} of what it gained by training." for row in rows if row[0] == on]
    return [
        *([f"Most helpful to {whose}: {comma_separated(kept[:MOST_HELPFUL])}."] if kept else []),
        *([f"To be let go, because they did not help: {comma_separated(gone)}."] if gone else []),
        *own,
    ]
