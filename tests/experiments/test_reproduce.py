"""`cascadice reproduce`: figures are made once, kept, taken up again, and whatever is in their way is said."""

import json
from contextvars import Context
from dataclasses import dataclass, replace

import numpy as np
import pytest
from pyarrow import parquet

import cascadice
from cascadice.cli import main
from cascadice.report.page.results import result_folders
from cascadice.runs.config import Config
from cascadice_experiments.alignment.measure import FIRST_ORDER
from cascadice_experiments.figures import alignment_picture, alignment_plots, bootstrap, registry, reproduction
from cascadice_experiments.figures.alignment_plots import PATH_INTEGRATED, Panel
from cascadice_experiments.figures.figure import Figure, Mixing, Result
from cascadice_experiments.figures.parts import plain
from cascadice_experiments.figures.reproduction import Request, reproduce, settings_of

SMALL = Config(nodes=4, model_options=("hidden=[8]",), batch_size=16, lr=0.5, epochs=None, rounds=12)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch, one_thread):
    """Where no data set lies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CASCADICE_DATA", raising=False)
    monkeypatch.setattr(bootstrap, "DRAWS", 40)
    reproduction._missing.cache_clear()


def small_plan(quick):
    panels = [Panel("digits", replace(SMALL, init=init), scored=8, judged_on=32) for init in ("own", "shared")]
    return panels[:1] if quick else panels


ALIGNED = Figure(
    "Digits",
    ("a-label",),
    ("digits",),
    small_plan,
    alignment_plots.measure,
    alignment_picture.draw,
    "they agree.",
    (1, 1),
)


@dataclass(frozen=True)
class Step:
    """What a figure without training measures."""

    name: str


def steps(quick):
    return [Step("one"), Step("two")]


def draw(result, path):
    path.write_bytes(b"a picture")


def figure(measure, data=(), **more):
    return Figure("Steps", (), tuple(data), steps, measure, draw, "", (1, 1), **more)


def count(plan, context):
    found = [context.part(step.name, lambda step=step: {"letters": len(step.name)}) for step in plan]
    return Result({"letters": [part["letters"] for part in found]}, found, ["all have three."], {})


def fail(plan, context):
    raise ValueError("nothing\nworks")


def test_a_plot_of_part_of_a_run_shows_thirty_points_too(tmp_path):
    """As any other: thirty of those it has."""
    panel = Panel("digits", replace(SMALL, init="own"), scored=12, judged_on=32, stops=(2 / 3, 1.0))
    halves = replace(ALIGNED, plan=lambda quick: [panel])
    reproduce({"digits": halves}, Request(tmp_path / "out"), lambda _: None)
    table = parquet.read_table(tmp_path / "out" / "digits" / "points.parquet").to_pydict()
    rows = json.loads((tmp_path / "out" / "digits" / "result.json").read_text())["summary"]
    assert {(row["rounds"], row["points"]) for row in rows} == {(8, 32), (12, 48)}
    for row in rows:
        kept = [i for i, t in enumerate(table["round"]) if t < row["rounds"]]
        shown = sorted(kept, key=lambda i: table["drawn"][i])[:30]
        true, estimate = (np.array(table[name])[shown] for name in ("truth", row["estimator"]))
        assert row["pearson_30"] == pytest.approx(np.corrcoef(true, estimate)[0, 1], abs=1e-6)


def test_a_figure_from_end_to_end(tmp_path):
    said = []
    outcome = reproduce({"digits": ALIGNED}, Request(tmp_path / "out"), said.append)
    assert outcome == (["digits"], [], [], [])
    folder = tmp_path / "out" / "digits"
    assert {path.name for path in folder.iterdir()} == {"result.json", "points.parquet", "figure.png", "figure.svg"}
    result = json.loads((folder / "result.json").read_text())
    assert (result["version"], result["settings"]["quick"], result["shows"]) == (
        cascadice.__version__,
        False,
        ["a-label"],
    )
    assert result["settings"]["panels"][0]["config"]["nodes"] == 4
    points = parquet.read_table(folder / "points.parquet").to_pydict()
    assert len(points["truth"]) == 2 * 8 * 4
    assert sorted(points["drawn"]) == sorted([*range(8 * 4)] * 2)
    assert {(row["init"], row["estimator"]) for row in result["summary"]} == {
        (init, estimator) for init in ("own", "shared") for estimator in (FIRST_ORDER, PATH_INTEGRATED)
    }
    for row in result["summary"]:
        for name in ("pearson", "spearman", "slope", "relative_rmse", "test_accuracy"):
            value, low, high = row[name]
            assert low <= value <= high
    errors = {(row["init"], row["estimator"]): row["relative_rmse"][0] for row in result["summary"]}
    assert errors["shared", PATH_INTEGRATED] < errors["shared", FIRST_ORDER] / 3
    assert not any("min so far" in line for line in said), "nothing is left after the last"
    (told,) = (line for line in said if "left for this figure" in line)
    assert told.startswith("  digits, own initialisation")
    assert "(1 of 2, about 0." in told
    page = (tmp_path / "out" / "report.html").read_text()
    assert "data:image/" in page
    assert "they agree." in page
    assert "![Digits](digits/figure.png)" in (tmp_path / "out" / "index.md").read_text()


def test_what_is_there_is_kept(tmp_path):
    request, said = Request(tmp_path / "out"), []
    reproduce({"steps": figure(count)}, request, said.append)
    before = (tmp_path / "out" / "steps" / "result.json").stat().st_mtime_ns
    outcome = reproduce({"steps": figure(fail)}, request, said.append)
    assert outcome.kept == ["steps"]
    assert "steps: already made" in said
    assert (tmp_path / "out" / "steps" / "result.json").stat().st_mtime_ns == before


def test_an_interrupted_figure_goes_on_where_it_was(tmp_path):
    made = []

    def measure(plan, context):
        for step in plan:
            if made == ["one"] and step.name == "two":
                made.append("stop")
                raise KeyboardInterrupt
            context.part(step.name, lambda step=step: made.append(step.name) or {"letters": 3})
        return count(plan, context)

    request = Request(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        reproduce({"steps": figure(measure)}, request, lambda text: None)
    assert reproduce({"steps": figure(measure)}, request, lambda text: None).made == ["steps"]
    assert made == ["one", "stop", "two"]
    assert not (tmp_path / "out" / "steps" / "parts").exists()


def test_a_part_of_other_settings_is_not_taken(tmp_path):
    made = []

    def measure(plan, context):
        context.part("one", lambda: made.append(context.quick) or {})
        raise ValueError("no")

    for quick in (False, True, True):
        reproduce({"steps": figure(measure)}, Request(tmp_path / "out", quick), lambda text: None)
    assert made == [False, True]


def test_one_that_fails_does_not_take_the_others_along(tmp_path):
    said = []
    outcome = reproduce({"bad": figure(fail), "good": figure(count)}, Request(tmp_path / "out"), said.append)
    assert (outcome.made, outcome.failed) == (["good"], ["bad"])
    assert any(line.startswith("  failed: nothing works") for line in said)
    assert "in fail" in (tmp_path / "out" / "bad" / "error.txt").read_text()
    assert any("min left" in line for line in said)
    reproduce({"bad": figure(count)}, Request(tmp_path / "out"), said.append)
    assert not (tmp_path / "out" / "bad" / "error.txt").exists()


def test_another_version_is_refused_or_replaced(tmp_path, monkeypatch):
    out = tmp_path / "out"
    reproduce({"steps": figure(count), "more": figure(count)}, Request(out), lambda text: None)
    monkeypatch.setattr(cascadice, "__version__", "99")
    with pytest.raises(ValueError, match=r"was made by cascadice .*; this is 99.*Choose another --out, or make these"):
        reproduce({"steps": figure(count)}, Request(out), lambda text: None)
    assert reproduce({"steps": figure(count)}, Request(out, overwrite=True), lambda text: None).made == ["steps"]
    assert (out / "more" / "result.json").exists(), "nobody asked to replace it"
    with pytest.raises(ValueError, match=r"more was made by cascadice .*; this is 99"):
        reproduce({"more": figure(count)}, Request(out), lambda text: None)


def test_a_damaged_figure_does_not_keep_others_from_being_made(tmp_path):
    out = tmp_path / "out"
    reproduce({"steps": figure(count), "broken": figure(count)}, Request(out), lambda text: None)
    (out / "steps" / "figure.png").unlink()
    (out / "broken" / "result.json").write_text("{")
    assert reproduce({"more": figure(count)}, Request(out), lambda text: None).made == ["more"]
    page = (out / "report.html").read_text()
    assert "The result in broken is not shown" in page


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path):
    said = []

    def measure(plan, context):
        request = Request(tmp_path / "out", overwrite=True)
        with pytest.raises(ValueError, match=r"out is in use: process \d+ has been writing to it since"):
            Context().run(reproduce, {"steps": figure(count)}, request, said.append)
        return count(plan, context)

    assert reproduce({"steps": figure(measure)}, Request(tmp_path / "out"), said.append).made == ["steps"]


def test_where_there_are_no_locks_figures_are_made_without(tmp_path, monkeypatch):
    monkeypatch.setattr("cascadice.files.locks.fcntl", None)
    with pytest.warns(UserWarning, match=r"this system cannot lock folders"):
        made = reproduce({"steps": figure(count)}, Request(tmp_path / "out"), lambda text: None).made
    assert made == ["steps"]


@pytest.fixture
def interrupted(tmp_path):
    """How a figure is asked for of which one part, named "one", was measured; and where that is."""
    request = Request(tmp_path / "out")

    def measure(plan, context):
        context.part("one", lambda: {"letters": 4})
        raise ValueError("no")

    reproduce({"steps": figure(measure)}, request, lambda text: None)
    (part,) = (request.out / "steps" / "parts").iterdir()
    return request, part


def test_seconds_count_what_was_measured_before(interrupted):
    request, part = interrupted
    part.write_text(json.dumps({**json.loads(part.read_text()), "seconds": 1000.0}))
    reproduce({"steps": figure(count)}, request, lambda text: None)
    result = json.loads((request.out / "steps" / "result.json").read_text())
    assert 1000 <= result["seconds"] < 1010
    assert result["summary"] == [{"letters": 4}, {"letters": 3}]


def test_a_part_that_cannot_be_read_is_measured_again(interrupted):
    request, part = interrupted
    part.write_text('{"sec')
    reproduce({"steps": figure(count)}, request, lambda text: None)
    result = json.loads((request.out / "steps" / "result.json").read_text())
    assert result["summary"] == [{"letters": 3}, {"letters": 3}]


def test_data_sets_are_fetched_if_asked(tmp_path, monkeypatch):
    asked = []

    def load(name, root=None, download=False):
        asked.append((name, root, download))
        if not download:
            raise FileNotFoundError(f"{name} is not here")

    monkeypatch.setattr(reproduction.data, "load", load)
    absent = {"steps": figure(count, ["cifar10"])}
    assert reproduce(absent, Request(tmp_path / "out"), lambda text: None).skipped == ["steps"]
    assert reproduce(absent, Request(tmp_path / "out", download=True), lambda text: None).made == ["steps"]
    assert asked[-1] == ("cifar10", None, True)


def test_other_settings_are_refused_or_replaced(tmp_path):
    out = tmp_path / "out"
    reproduce({"steps": figure(count)}, Request(out), lambda text: None)
    with pytest.raises(ValueError, match=r"other settings \(quick is False there, True here\)"):
        reproduce({"steps": figure(count)}, Request(out, quick=True), lambda text: None)
    again = reproduce({"steps": figure(count)}, Request(out, quick=True, overwrite=True), lambda text: None)
    assert again.made == ["steps"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds files that `cascadice reproduce` did not write"):
        reproduce({"steps": figure(count)}, Request(tmp_path, overwrite=True), lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture
def program(monkeypatch, capsys):
    def call(figures, *arguments):
        monkeypatch.setattr(registry, "FIGURES", figures)
        code = main(["reproduce", *arguments])
        return code, *capsys.readouterr()

    return call


def test_exit_codes(program):
    code, out, _ = program({"steps": figure(count)}, "all")
    assert code == 0
    assert "page in out/reproduce/report.html" in out
    code, out, _ = program({"steps": figure(count), "absent": figure(count, ["cifar10"])}, "all", "--data-root", "here")
    assert code == 3
    assert "skipped: CIFAR-10 was not found" in out
    assert "skipped, data missing: absent" in out
    code, out, _ = program({"bad": figure(fail), "absent": figure(count, ["cifar10"])}, "all")
    assert code == 1
    assert "failed: bad" in out
    code, out, err = program({"bad": figure(fail)}, "all", "--quiet")
    assert (code, out) == (1, "")
    assert err == "cascadice: bad failed; see out/reproduce/bad/error.txt\n"


def test_without_names_it_says_which_there_are(program, tmp_path):
    code, out, _ = program({"steps": figure(count, takes_mixing=True)})
    assert code == 0
    assert out.split() == ["steps", "Steps", "(takes", "--mixing)"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["step"], "unknown figure 'step'. Did you mean 'steps'?"),
        (["steps", "--device", "gpu"], "--device must be cpu, cuda or cuda:N; found 'gpu'"),
        (["steps", "--mixing", "W.csv"], "none of these figures takes a mixing matrix: steps"),
        (["mixed", "--mixing", "W.csv"], "row 0 sums to 1.5"),
        (["mixed", "--mixing", "none.csv"], "none.csv"),
        (["mixed", "--normalize"], "--normalize applies to the matrix of --mixing, which was not given"),
        (["mixed", "--mixing", "W.csv", "--normalize"], "W.csv has 2 participants; a cascade needs at least 3"),
    ],
)
def test_mistakes(program, tmp_path, arguments, said):
    (tmp_path / "W.csv").write_text("1,0.5\n0,1\n")
    code, _, error = program({"steps": figure(count), "mixed": figure(count, takes_mixing=True)}, *arguments)
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_mixing_matrix_is_a_setting(tmp_path):
    (tmp_path / "W.csv").write_text("1,0\n0,1\n")
    takes, request = figure(count, takes_mixing=True), Request(tmp_path / "out")
    given = request._replace(mixing=Mixing(str(tmp_path / "W.csv")))
    own, other = (settings_of("x", takes, r) for r in (request, given))
    assert own["mixing"] is None
    assert other["mixing"] is not None
    assert settings_of("x", figure(count), given)["mixing"] is None
    normalised = given._replace(mixing=given.mixing._replace(normalize=True))
    assert settings_of("x", takes, normalised) != other
    (tmp_path / "W.csv").write_text("0,1\n1,0\n")
    assert settings_of("x", takes, given) != other


def test_what_is_no_number_is_null():
    assert plain({"a": (1.0, float("nan")), "b": [{"c": float("inf")}]}) == {"a": [1.0, None], "b": [{"c": None}]}


def test_the_manifest_gives_the_order_of_the_registry(tmp_path):
    names = list(registry.FIGURES)
    for name in sorted(names)[:5]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text("{}")
    reproduce({}, Request(tmp_path / "empty"))
    (tmp_path / "empty" / "reproduction.json").rename(tmp_path / "reproduction.json")
    shown = [folder.name for folder in result_folders(tmp_path)]
    assert shown == [name for name in names if name in shown]
    assert len(shown) == 5
