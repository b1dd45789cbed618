"""What `cascadice choose --by contribution` computes, writes and says: whose data helped the final models."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cascadice.applications.choose.charts import charts, signed_table
from cascadice.applications.plain import Json
from cascadice.applications.writer import (
    SIGN_RULE,
    Section,
    Writer,
    check_same,
    comma_separated,
    concatenate,
    open_writer,
    resumable,
    run_in_processes,
)
from cascadice.engine.parts import numbered
from cascadice.influence.quadrature import more_points
from cascadice.influence.uncertainty import bounds_of_totals, plus_minus, signs
from cascadice.influence.whole_run_shares import POINTS
from cascadice.runs.distributed import together
from cascadice.runs.distributed.processes import World
from cascadice.runs.flags import open_from
from cascadice.runs.question import Question
from cascadice.runs.recording import playable
from cascadice.runs.summary import injected_faults, measured_models
from cascadice.runs.sweeps import SHARES, Swept, remove_sweeps, sweep_run
from cascadice.runs.words import sum_in_words

COLUMNS = ("participant", "influence", "± 95 %", "part", "advice", "injected")
SIGNS = (
    f"Influence: what a participant's data did to the loss. {SIGN_RULE} Part: its influence divided by what training "
    "as a whole did to the loss."
)
ADVICE = {-1: "keep", 0: "unclear", 1: "let go"}
OVERLAP = " Shares whose intervals overlap are not clearly different."
ONE_ROUND = "With one round there are no intervals: whom to keep and whom to let go may be noise."


def merge(parts: Sequence[Json]) -> Json:
    """Merge the results of several processes, each of which ranked its own participants."""
    check_same(parts, "run", "title", "on", "total", "points", "nodes")
    rows = (row for part in parts for row in signed_table(part["table"])["rows"])
    table = {"columns": list(COLUMNS), "rows": sorted(rows, key=lambda row: row[1])}
    merged = {**parts[0], "table": table, **concatenate(parts, "members", "contributions", "intervals")}
    return {**merged, "findings": [*_sentences(merged)]}


SECTION = Section(
    "Whom to keep, by what everybody's data did in the end?",
    "cascadice choose {run} --by contribution",
    f"{SIGNS} It is the participant's whole-run share of what training did to the final models. ± is half of a 95 % "
    "interval, from how much a share varies between rounds; where the interval includes 0, the advice is unclear.",
    charts=charts,
    merge=merge,
    table=signed_table,
    run_length=lambda results: results["rounds"],
)


def run(args: argparse.Namespace) -> None:
    """Run `cascadice choose --by contribution` with these flags."""
    flags = {"--groups": args.groups, "--degree": args.degree, "--new-links": args.new_links, "--heard": args.heard}
    for flag, given in flags.items():
        if given:
            raise ValueError(f"{flag} is for exchange. Use --by exchange, or leave it out.")
    run_in_processes(args, "contribution", _run)


def _run(args: argparse.Namespace, world: World) -> None:
    """Rank participants by their whole-run shares, in the final model of one participant or of all."""
    recording = open_from(args, world, recorded=False)
    if args.on is not None and not 0 <= args.on < (nodes := recording.network.whole):
        raise ValueError(f"--on must be a participant, from 0 to {nodes - 1}; found {args.on}.")
    writer = open_writer(args, recording, "contribution")
    points = POINTS if args.points is None else args.points
    question = Question(("whole-run-shares",), points=points, on="all" if args.on is None else args.on)
    with resumable(), world.exchange(recording.network) as exchange:
        run = replace(together.in_step(world, playable(recording)), exchange=exchange)
        swept = sweep_run(run, question, writer.folder, writer.console)
    (total,) = world.total(float(swept.scores[SHARES].participants.sum()))
    results = _results(writer, swept, question, total) | {"rounds": run.rounds}
    merged = writer.write(results, SECTION, world)
    remove_sweeps(writer.folder)
    rows = [
        [node, plus_minus(influence, half, 4), f"{100 * part:.1f} %", *more]
        for node, influence, half, part, *more in merged["table"]["rows"]
    ]
    writer.print(SIGNS)
    writer.print_table([*COLUMNS[:2], *COLUMNS[3:]], rows, right=2)
    writer.print_files()


def _results(writer: Writer, swept: Swept, question: Question, total: float) -> Json:
    shares, (untrained, trained) = swept.scores[SHARES].participants, swept.losses
    change = trained - untrained
    bounds = bounds_of_totals(swept.scores[SHARES].by_round.numpy())
    half, sign = (bounds.high - bounds.low) / 2, signs(shares.numpy(), bounds)
    sign[shares.numpy() == 0] = 1  # without any influence: let go
    network, rows = writer.recording.network, []
    injected, numbers = injected_faults(network), network.members or range(network.nodes)
    models = measured_models(question.on)
    for k in shares.argsort(stable=True).tolist():
        share, node = float(shares[k]), numbers[k]
        part = share / change + 0.0 if change else 0.0
        rows.append([node, share + 0.0, float(half[k]), part, ADVICE[int(sign[k])], injected.get(node, "")])
    results = {
        **writer.header(f"Whom to keep: who helped {models}", COLUMNS, rows),
        "sign": SIGN_RULE,
        "on": None if question.on == "all" else question.on,
        "nodes": network.whole,
        "total": total,
        "contributions": shares.tolist(),
        "intervals": np.stack(bounds, 1).tolist(),
        **writer.members(),
        "untrained": untrained,
        "trained": trained,
        "gap": total - change,
        "points": question.points,
    }
    return {**results, "findings": [*_sentences(results)]}


def _sentences(results: Json) -> Iterator[str]:
    """Who helped, whom to let go, who is unclear, and how much a participant's own data did for it."""
    rows, on, members = results["table"]["rows"], results["on"], results.get("members", ())
    models, change = measured_models("all" if on is None else on), results["trained"] - results["untrained"]
    kept, unclear, gone = (
        comma_separated(row[0] for row in rows if row[4] == advice and row[0] != on)
        for advice in ("keep", "unclear", "let go")
    )
    if 0 < len(members) < results["nodes"]:
        yield f"This is about {numbered(members)}."
    if kept:
        yield f"Clearly helped {models}, the largest share first: {kept}.{OVERLAP}"
    if gone:
        yield f"To be let go, because they did not help: {gone}."
    if unclear:
        yield f"Within noise (the interval includes 0), so unclear: {unclear}."
    for part in (row[3] for row in rows if row[0] == on):
        yield f"Its own data accounts for {100 * part:.1f} % of what training did to its loss."
    if rows[0][2] is None or np.isnan(rows[0][2]):
        yield ONE_ROUND
    more = f"Use more points: repeat the command with --points {more_points(results['points'])} --overwrite"
    sums = sum_in_words(results["total"], change, more)
    yield (
        f"Training took the loss of {models} from {results['untrained']:.4f} to {results['trained']:.4f}. With "
        f"{results['points']} points, {sums}."
    )
