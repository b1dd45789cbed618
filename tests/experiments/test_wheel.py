"""The experiments come with a clone, not with a wheel; `cascadice reproduce` says so."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cascadice_experiments.figures.registry import FIGURES

ROOT = Path(__file__).parents[2]
HIDDEN = "import sys; sys.modules['cascadice_experiments'] = None; "
RUN = "from cascadice.cli import main; sys.exit(main(sys.argv[1:]))"


def python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_from_a_clone_it_lists_the_figures():
    from_clone = python("import sys; " + RUN, "reproduce")
    assert from_clone.returncode == 0, from_clone.stderr
    assert [line.split()[0] for line in from_clone.stdout.splitlines()] == list(FIGURES)


@pytest.mark.parametrize("arguments", [[], ["all", "--quick"]])
def test_from_a_wheel_it_says_how_to_get_them(arguments):
    from_wheel = python(HIDDEN + RUN, "reproduce", *arguments)
    assert from_wheel.returncode == 2
    (line,) = from_wheel.stderr.splitlines()
    assert "Clone the cascadice repository and install it from there with `pip install -e .`" in line


def test_everything_else_works_without_the_experiments():
    code = "from cascadice.cli import main; code = main(sys.argv[1:]); sys.exit(code)"
    from_wheel = python(HIDDEN + code, "topology", "ring", "--nodes", "4")
    assert from_wheel.returncode == 0, from_wheel.stderr
    assert python(HIDDEN + RUN, "reproduce", "--help").returncode == 0


def test_an_error_inside_the_experiments_is_not_mistaken_for_their_absence():
    broken = "import sys; sys.modules['rich.console'] = None; "
    failed = python(broken + "from cascadice.commands import reproduce; " + "reproduce.run(None)")
    assert "Clone the cascadice repository" not in failed.stderr
    assert "rich.console" in failed.stderr


def test_a_wheel_does_not_contain_them(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    build = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"cascadice"}
