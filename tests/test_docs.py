"""The documentation is true: its code runs and prints what it says, its names and commands exist, its links resolve."""

import ast
import re
import shlex
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

import cascadice
from cascadice.cli import _parser
from cascadice.engine.fast.strategies import SMALL
from cascadice.runs.config import Config, override
from cascadice.runs.flags import settings_from
from cascadice.runs.recipes import RECIPES
from cascadice_experiments.alignment import table

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "api").glob("*.md")])
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
FENCE = re.compile(r"^(<!-- not run.*-->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`((?:cascadice (?:list|run|topology)|make )[^`]*)`")
DOTTED = re.compile(r"`((?:cascadice|cascadice_experiments|cd|influence)(?:\.\w+)+)(?:\(.*?\))?`")
MODULE = re.compile(r"python -m (cascadice\w*(?:\.\w+)*)")
PATHS = re.compile(r"`((?:src|tests|docs|examples|benchmarks|experiments|deploy)/[\w/.-]+\.\w+)(?:::(\w+))?`")


class Block(NamedTuple):
    """A fenced piece of a page; `printed` is the output shown below it."""

    language: str
    text: str
    run: bool
    printed: str | None


def blocks(page):
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    for this, following in zip_longest(fences, fences[1:]):
        below = following is not None and following[2] == "text" and not text[this.end() : following.start()].strip()
        yield Block(this[2], this[3], this[1] is None, following[3] if below else None)


def form(printed):
    """The text without its numbers, whose last digits differ from one processor to another."""
    return re.sub(r" +", " ", re.sub(r"-?\d+(\.\d*)?", "0", printed)).strip()


WITH_CODE = [page for page in PAGES if any(b.language == "python" and b.run for b in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch, capsys, one_thread):
    monkeypatch.chdir(tmp_path)
    names = {"folder": tmp_path, "__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and block.run:
            exec(compile(block.text, str(page), "exec"), names)
            printed = capsys.readouterr().out
            assert block.printed is not None or not printed, f"{page.name} does not show what it prints: {printed}"
            assert form(printed) == form(block.printed or "")


def test_tutorial_and_how_to_have_code():
    assert {"tutorial", "howto", "index"} <= {page.stem for page in WITH_CODE}


def test_the_readme_shows_code_that_is_run():
    shown = {(b.text, b.printed) for b in blocks(ROOT / "README.md") if b.language == "python"}
    assert shown
    assert shown <= {(b.text, b.printed) for page in WITH_CODE for b in blocks(page) if b.run}


def commands(program):
    """Every command line of this program that is quoted, in a block or in a sentence."""
    for text in (text for text in TEXTS if text.exists()):
        lines = [line for block in blocks(text) if block.language == "sh" for line in block.text.splitlines()]
        for line in lines + QUOTED.findall(FENCE.sub("", text.read_text())):
            if line.startswith(f"{program} "):
                yield pytest.param(line, id=f"{text.stem}: {line}")


@pytest.mark.parametrize("line", list(commands("cascadice")))
def test_commands_are_those_of_the_program(line):
    arguments = shlex.split(line, comments=True)[1:]
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            _parser().parse_args(arguments)
        return
    args = _parser().parse_args(arguments)
    override(Config(), settings_from(args))
    recipe = getattr(args, "recipe", None)
    assert recipe in (None, "RECIPE", *RECIPES) or recipe.startswith("runs/")


@pytest.mark.parametrize("line", list(commands("make")))
def test_make_knows_its_targets(line):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line.split()[1] in targets


def links():
    for text in (text for text in TEXTS if text.exists()):
        without_code = FENCE.sub("", text.read_text())
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code):
            if "://" not in target:
                yield pytest.param(text, target, id=f"{text.stem}: {target}")


@pytest.mark.parametrize(("text", "target"), list(links()))
def test_links_resolve(text, target):
    path, _, anchor = target.partition("#")
    linked = text.parent / path if path else text
    assert linked.exists()
    if anchor:
        headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page for page in PAGES if f": {page.relative_to(ROOT / 'docs')}" not in navigation] == []


def named(pattern):
    """What the texts quote in this form, outside the changelog, which also has names that are gone."""
    for text in (text for text in TEXTS if text.exists() and text.name != "CHANGELOG.md"):
        for match in pattern.findall(text.read_text()):
            yield pytest.param(match, id=f"{text.stem}: {match if isinstance(match, str) else '::'.join(match)}")


def resolves(name):
    """Whether a dotted name leads to a module or to something in one."""
    full = re.sub(r"^(cd|influence)(?=\.)", lambda short: SHORT[short[0]], name)
    try:
        resolve_name(full)
    except (ImportError, AttributeError):
        return full in ("cascadice.adapters.flower", "cascadice.adapters.flower.InProcess") and not find_spec("flwr")
    return True


SHORT = {"cd": "cascadice", "influence": "cascadice.influence"}


@pytest.mark.parametrize("name", list(named(DOTTED)))
def test_names_exist(name):
    assert name.endswith((".json", ".png", ".parquet")) or resolves(name)


@pytest.mark.parametrize("name", list(named(MODULE)))
def test_programs_exist(name):
    assert find_spec(name) is not None


@pytest.mark.parametrize("place", list(named(PATHS)))
def test_files_exist(place):
    path, test = place
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("name", ["cascadice.influence.judge", "cascadice.experiments", "cd.influence.Recorder"])
def test_names_that_are_gone_are_noticed(name):
    assert not resolves(name)


@pytest.mark.parametrize(
    "line", re.findall(r"^\+ ((?:from|import) .*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
)
def test_migration_imports_work(line):
    found: dict[str, object] = {}
    exec(line, found)
    named = {alias.asname or alias.name for alias in ast.parse(line).body[0].names}
    assert {name.partition(".")[0] for name in named} <= found.keys()


API = {name: own for page in PAGES for name, own in re.findall(r"^::: (\S+)(\n    options:)?$", page.read_text(), re.M)}
LISTED = re.compile(r"^::: (\S+)\n    options:\n      members: \[(.*)\]$", re.M)
DOCUMENTED = {name for name, own_options in API.items() if not own_options}
DOCUMENTED |= {
    f"{module}.{name}"
    for page in PAGES
    for module, members in LISTED.findall(page.read_text())
    for name in members.split(", ")
}


@pytest.mark.parametrize("name", API)
def test_api_pages_are_of_what_exists(name):
    assert resolves(name)


@pytest.mark.parametrize("package", [cascadice, cascadice.influence, cascadice.topology, cascadice.data])
def test_api_pages_have_every_public_name(package):
    public = {name: getattr(package, name) for name in package.__all__}
    homes = {name: getattr(value, "__module__", getattr(value, "__name__", "")) for name, value in public.items()}
    paths = {
        name: {f"{package.__name__}.{name}", package.__name__, f"{home}.{name}", home} for name, home in homes.items()
    }
    missing = {name for name, known in paths.items() if not known & DOCUMENTED and callable(public[name])}
    assert missing == set()


def test_the_automatic_choice_is_as_described():
    assert f"more than {SMALL:,} parameters" in (ROOT / "docs" / "performance.md").read_text()


RESULTS = ROOT / "docs" / "results" / "reproduce"


def test_the_tables_of_estimates_are_printed_from_the_results():
    """`python -m cascadice_experiments.alignment --show docs/results/reproduce` prints them."""
    shown = list(table.lines(RESULTS))
    assert len(shown) == 2 + 4
    several = [line for line in shown[2:] if "| 0 to 4 |" in line]  # the README quotes nothing of a single seed
    assert len(several) == 2
    for page, quoted in (("README.md", [*shown[:2], *several]), ("docs/paper.md", shown)):
        lines = (ROOT / page).read_text().splitlines()
        assert [line for line in quoted if line not in lines] == [], page


def test_ranks_within_rounds_are_those_of_pandas():
    points = pq.read_table(RESULTS / "align-batch-16.parquet").to_pandas()
    points = points[(points.panel == "CNN, CIFAR-10, ring of 32") & (points.init == "shared")]
    each = [of.truth.corr(of["first order"], method="spearman") for _, of in points.groupby("round")]
    expected = f"{sum(each) / len(each):.3f} ({min(each):.3f} to {max(each):.3f})"
    (run,) = (run for run in table.RUNS if run.panel == "CNN, CIFAR-10, ring of 32")
    (measured,) = table.measured(RESULTS, run.figure, run)
    assert f"{measured['within']:.3f} ({measured['least']:.3f} to {measured['most']:.3f})" == expected
