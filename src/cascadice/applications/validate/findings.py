"""What `cascadice validate` computes, writes and says."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascadice.applications.plain import Json
from cascadice.applications.validate import idea
from cascadice.applications.validate.advice import advise, interval_text
from cascadice.applications.validate.charts import charts
from cascadice.applications.validate.command import EVAL_SAMPLES
from cascadice.applications.validate.estimates import ESTIMATES, Setting
from cascadice.applications.validate.idea import Checked, Plan, Results, Trained
from cascadice.applications.writer import Section, Writer, open_writer, resumable
from cascadice.console import track
from cascadice.engine import evaluate
from cascadice.files.tensors import read_tensors, write_tensors
from cascadice.influence.retraining import Prediction
from cascadice.influence.tables import difference
from cascadice.names import lookup
from cascadice.runs import memory, store
from cascadice.runs.flags import DIFFERENT
from cascadice.runs.folder import read_run_config
from cascadice.runs.forecast import of_retraining
from cascadice.runs.question import evaluate_on_first
from cascadice.runs.recording import Recording, build_recorded, playable
from cascadice.runs.round_metrics import quality

SAVED = "retrained.safetensors"
COLUMNS = ("estimate", "LDS", "95 % interval", "behind the best", "Pearson", "leave-one-out", "cost in trainings")
SECTION = Section(
    "Which estimate of influence predicts training without some data?",
    "cascadice validate {run}",
    "The network was trained again on random subsets of its participants or samples. LDS: rank correlation of the test "
    "loss that an estimate predicts for each subset with the one that training gave; 1 = ranks all subsets as training "
    "does, 0 = says nothing, negative = ranks them the wrong way round. Behind the best: the 95 % interval of how much "
    "lower the LDS is than the first one, over the same subsets; if it is above 0, the estimate is clearly worse. "
    "Leave-one-out: the rank correlation with the effect of leaving out each participant. Cost: the time of the "
    "estimate divided by that of one training.",
    charts=charts,
    run_length=lambda results: results["rounds"],
)


def run(args: argparse.Namespace) -> None:
    """Run `cascadice validate` with these flags."""
    _check_flags(args)
    recording, setting = _open(args)
    note = _note(recording, setting, args.seed)
    results = _read_saved(Path(args.out or recording.folder / "validate"), note, args.overwrite)
    plan = _plan(args, setting, results)
    count = sum(map(len, plan.networks.values()))
    chunks = [chunk for subsets in plan.networks.values() for chunk in idea.chunks(setting, len(subsets))]
    parts = of_retraining(setting.network, setting.rounds, len(setting.evaluation.y), max(map(len, chunks)))
    memory.check("validation", parts, setting.network.device)
    args.overwrite |= bool(results)  # the saved results have these settings, and more are added to them
    writer = open_writer(args, recording, "validate", SAVED)
    least = forecast(setting, plan, results)
    trainings = f"{least} to {2 * least} trainings" if least > 1 else "1 training"
    networks = f"{count} networks of {setting.rounds} rounds"
    estimates = f"{len(plan.kinds)} estimate{'s' * (len(plan.kinds) > 1)}"
    kept = ", with those of earlier calls" if results else ""
    many = "all " * (len(plan.subsets) < args.subsets) + str(len(plan.subsets))
    writer.print(
        f"Training on {many} subsets that keep {setting.in_words} ({setting.part:.3g}).",
        f"{networks}, {estimates}{kept}: about {trainings} to do.",
    )
    if args.kinds is None and "whole-run" not in plan.kinds:
        writer.print("Whole-run estimates are left out: they do not follow changes of running statistics (BatchNorm).")
    trained = idea.train(setting)
    minutes = max(trained.seconds * least / 60, 0.1)
    span = f"{minutes:.1f} to {2 * minutes:.1f} minutes"
    writer.print(f"One training takes {trained.seconds:.2g} s, so this takes about {span}.")
    total = len(plan.kinds) + len(chunks)
    steps, path = idea.steps(setting, plan, trained, results), writer.folder / SAVED
    with resumable(f"stopped; what was computed is kept in {path}. The same command, without --overwrite, continues."):
        for _ in track(steps, total, writer.console, "validating", str, unit="steps"):
            write_tensors(path, results, note)
    checked = idea.compare(setting, plan, trained, results)
    writer.write(_results(writer, setting, plan, trained, results, checked) | {"seed": args.seed}, SECTION)
    _print_estimates(writer, checked)
    writer.print_files()


def _check_flags(args: argparse.Namespace) -> None:
    if not 0 < args.keep < 1:
        raise ValueError(f"--keep must be above 0 and below 1; found {args.keep:g}.")
    for flag, least, value in (("--subsets", idea.LEAST, args.subsets), ("--eval-samples", 1, args.eval_samples)):
        if value is not None and value < least:
            raise ValueError(f"{flag} must be at least {least}; found {value}.")
    lookup({"participants": None, "samples": None}, args.of, "thing to leave out")


def _open(args: argparse.Namespace) -> tuple[Recording, Setting]:
    """Open the run. It is trained again, so its rounds need not be recorded."""
    folder, settings = Path(args.run), {k: v for k, v in vars(args).items() if k in DIFFERENT}
    config = read_run_config(folder)
    if config.rule is not None:
        raise ValueError(
            f"a run with a rule cannot be validated: networks trained again would average by the given W, not by the "
            f"rule {config.rule!r}, so they would not be this run without some data. Train it without a rule."
        )
    network = build_recorded(folder, config, settings, quiet=args.quiet)
    recording = Recording(folder, config, network, tuple(store.saved_rounds(folder)))
    run, least = playable(recording), min(len(network.data.test), EVAL_SAMPLES)
    evaluation = evaluate_on_first(least if args.eval_samples is None else args.eval_samples, run.network)
    recorded = set(recording.round_numbers).issuperset(range(run.rounds))
    return recording, Setting(run.network, run.rounds, evaluation, args.keep, args.of == "samples", recorded)


def _plan(args: argparse.Namespace, setting: Setting, kept: Results) -> Plan:
    """What these flags ask for, and what is kept of earlier calls: all is compared on the same subsets."""
    kinds = None if args.kinds is None else [kind.strip() for kind in args.kinds.split(",")]
    count = max(args.subsets, len(kept.get(idea.SUBSETS, ())))
    subsets = idea.distinct_subsets(setting.size, args.keep, count, args.seed)
    return idea.make_plan(setting, subsets, kinds, args.leave_one_out, kept)


def _note(recording: Recording, setting: Setting, seed: int) -> dict[str, str]:
    """The settings on which every result depends; more subsets and other estimates may be added."""
    return {
        "run": recording.fingerprint,
        "rounds": str(setting.rounds),
        "of": setting.what,
        "keep": f"{setting.kept} of {setting.size}",
        "eval-samples": str(len(setting.evaluation.y)),
        "seed": str(seed),
    }


def _read_saved(folder: Path, note: Mapping[str, str], overwrite: bool) -> Results:
    """The results of an earlier call with the same settings."""
    if overwrite or not (folder / SAVED).exists():
        return {}
    results, there = read_tensors(folder / SAVED, None)
    if differs := difference({name: there.get(name) for name in note}, note):
        remedy = "Choose another folder with --out, or replace them with --overwrite."
        raise ValueError(f"{folder} holds results of other settings: {differs}. {remedy}")
    return results


def forecast(setting: Setting, plan: Plan, results: Results) -> int:
    """About how many trainings the missing results take, including that of the run itself.

    Scores of samples, Adam and several local steps may double it.
    """
    missing = [ESTIMATES[kind] for kind in plan.kinds if kind not in results]
    networks = sum(max(0, len(subsets) - len(results.get(name, ()))) for name, subsets in plan.networks.items())
    return 1 + networks + round(sum(kind.trainings + kind.scoring / setting.every for kind in missing))


def _results(
    writer: Writer, setting: Setting, plan: Plan, trained: Trained, results: Results, checked: Sequence[Checked]
) -> Json:
    retrained = results[idea.SUBSETS][: len(plan.subsets)]
    measure, values = quality(evaluate(setting.network, trained.models))
    rows = [
        [one.name, round(one.lds.spearman, 3), _interval(one.lds), one.behind and interval_text(*one.behind),
         round(one.lds.pearson, 3), (out := one.leaving_out) and f"{out.spearman:.3f} ({_interval(out)})",
         round(one.trainings, 1)]
        for one in checked
    ]  # fmt: skip
    return {
        **writer.header("Which estimate of influence to trust", *_with_values(COLUMNS, rows)),
        "findings": [*advise(checked, setting, trained.value, retrained, (measure, values))],
        "of": setting.what,
        "keep": setting.part,
        "kept": setting.in_words,
        "rounds": setting.rounds,
        "eval_samples": len(setting.evaluation.y),
        "test": {"measure": measure, "values": values.tolist()},
        "trained": trained.value,
        "left_out": None if setting.samples else [(row == 0).nonzero().flatten().tolist() for row in plan.subsets],
        "retrained": retrained.tolist(),
        "leave_one_out": (trained.value - results[idea.EACH]).tolist() if plan.leave_one_out else None,
        "estimates": [
            {
                "name": one.name,
                "lds": one.lds._asdict(),
                "behind": one.behind,
                "leave_one_out": one.leaving_out and one.leaving_out._asdict(),
                "trainings": one.trainings,
                "predicted": one.predicted.tolist(),
            }
            for one in checked
        ],
    }


def _print_estimates(writer: Writer, checked: Sequence[Checked]) -> None:
    rows = [
        [one.name, f"{one.lds.spearman:.2f} ({_interval(one.lds)})", f"{one.lds.pearson:.2f}",
         (out := one.leaving_out) and f"{out.spearman:.2f} ({_interval(out)})", f"{one.trainings:.1f}"]
        for one in checked
    ]  # fmt: skip
    columns, rows = _with_values(["estimate", "LDS (95 % interval)", "Pearson", "leave-one-out", "cost"], rows)
    writer.print_table(columns, rows, right=len(columns) - 1, padding=2)


def _with_values(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """The columns and rows without the columns that have no value in any row."""
    shown = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    return [columns[place] for place in shown], [[row[place] for place in shown] for row in rows]


def _interval(prediction: Prediction) -> str:
    return interval_text(prediction.low, prediction.high)
