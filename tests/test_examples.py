"""Every example runs, and prints what it promises."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from cascadice.cli import main
from cascadice.runs import saved

EXAMPLES = Path(__file__).parent.parent / "examples"
FASHION = Path("/usr/share/datasets/fashion-mnist")

# Patterns that the output must match; the numbers in their groups must lie within the bounds.
PROMISES = {
    "attackers": (r"nobody +(0\.\d+)[\s\S]*data +noise +(0\.\d+)[\s\S]*sign-flipper", [(0.92, 1), (0.4, 0.85)]),
    "detect_attackers": (
        r"flag participant 10 by its size\nround +\d+: 4 receivers flag participant  5 by its direction\n[\s\S]*"
        r"\n   5  (\d\.\d+)\n[\s\S]*: \[5, 10\]\.\n",
        [(1, 9)],
    ),
    "choose_collaborators": (
        r"neighbours +(0\.\d+)\n.*alone +(0\.\d+)\n.*influence +(0\.\d+)\n.*own group +(0\.\d+)\n[\s\S]*"
        r"\[0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1\]\nof 48 links (\d+) are kept, (\d+) of them",
        [(0.3, 0.6), (0.87, 0.93), (0.92, 1), (0.91, 1), (14, 16), (14, 16)],
    ),
    "first_network": (r"alone +accuracy (0\.\d+)[\s\S]*exponential +accuracy (0\.\d+)", [(0.8, 0.92), (0.94, 1)]),
    "flower_contributions": (
        r"client 3: \+(0\.\d+) over all rounds, 95 % interval \+(0\.\d+) to"
        r"[\s\S]*\n +2 +(-0\.\d+)[\s\S]*\n +3 +\+(0\.\d+)",
        [(0.1, 0.3), (0, 0.1), (-0.4, -0.2), (0.03, 0.1)],
    ),
    "forget_a_participant": (
        r"participant 2\nas trained .*loss (\d\.\d+)[\s\S]*?first-order .*left (\d\.\d+)[\s\S]*?replay .*loss (\d\.\d+)"
        r".*left (\d\.\d+)\nsample \d+\n[\s\S]*?gossip .*left (\d\.\d+)",
        [(0.5, 1), (0.01, 0.5), (0.4, 0.9), (0, 0), (1, 3)],
    ),
    "language_model": (r"held-out loss: (\d\.\d+) before, (\d\.\d+) after", [(4.3, 5.2), (1.5, 3.2)]),
    "lora_language_model": (
        r"held-out loss: (4\.\d+) before, (\d\.\d+) after[\s\S]*on prose by -(0\.\d+), on code by [+-](0\.\d+)\n"
        r".* by [+-](0\.\d+), on code by -(0\.\d+)\n[\s\S]*largest help for 7",
        [(4.4, 4.8), (2.5, 3.5), (0.01, 0.05), (0, 0.006), (0, 0.006), (0.01, 0.05)],
    ),
    "lenet_fashion": (
        r"7 helped, 1 harmed[\s\S]*\n +5 +\+(0\.\d+) .* harmed\n.*accuracy: (0\.\d+)\n.*html.*\ncascadice detect",
        [(0.01, 0.5), (0.35, 1)],
    ),
    "own_data": (
        r"spirals: mean accuracy (\d\.\d+)\ncurve, alone: .* (\d\.\d+)\ncurve, complete: .* (\d\.\d+)\n",
        [(0.95, 1), (0.5, 9), (0, 0.05)],
    ),
    "own_model_and_loss": (
        r"shared .*accuracy (0\.\d+)\nown .*accuracy (0\.\d+)\n.*Gated, eval mode True",
        [(0.94, 1), (0.9, 1)],
    ),
    "own_topology": (
        r"two cliques .*accuracy (0\.\d+)[\s\S]*away a while +accuracy (0\.\d+)[\s\S]*strongly connected  yes",
        [(0.85, 1), (0.85, 1)],
    ),
    "replay_a_published_run": (r"same batches: True\nparticipant 3's batch of round 10 replaced: False\n", []),
    "resume_from_python": (r"rounds on disk: \[0, 5, 10, 15\]\n[\s\S]*same parameters at round 40: True\n", []),
    "reward_participants": (
        r"rider +(20\.0)\n.*wrong labels +(\d+\.\d)\n[\s\S]*together (\d+\.\d); test accuracy (0\.\d+)\n.*truncated",
        [(20, 20), (20, 60), (1000, 1000), (0.85, 1)],
    ),
    "torchrun_cascade": (
        r"participant 0: loss (\d\.\d+), influence [+-](0\.\d+)\n[\s\S]*participant 7: .*\nProcess 0 sent 0.0 MB",
        [(0.01, 1.0), (0, 0.1)],
    ),
    "watch_your_own_loop": (
        r"7 helped, 1 harmed[\s\S]*\n +3 +\+(0\.\d+) .* harmed\nHighest of participant 3.*\n.*html.*\ncascadice detect",
        [(0.02, 0.4)],
    ),
}


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_prints_what_it_promises(script, capsys, one_thread, monkeypatch):
    if script.stem == "lora_language_model":
        pytest.importorskip("peft", reason="`make language` installs peft and transformers")
    if script.stem == "lenet_fashion" and not FASHION.exists():
        pytest.skip(f"{FASHION} is not here: apt install dataset-fashion-mnist")
    if script.stem == "flower_contributions":
        pytest.importorskip("flwr", reason="`make flower` installs Flower")
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    promise, bounds = PROMISES[script.stem]
    match = re.search(promise, printed)
    assert match, printed
    for number, (lowest, highest) in zip(match.groups(), bounds, strict=True):
        assert lowest <= float(number) <= highest, printed
    assert printed.rstrip().endswith("."), "an example ends with a plain statement"
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(saved, "_living", {})  # as in a process that knows the model by its name alone
    for command in re.findall(r"^cascadice (.+)$", printed, re.MULTILINE):
        assert main(command.split()) == 0
        assert "Scores (" not in capsys.readouterr().out, "to import an example is not to run it"


def test_every_promise_has_its_example():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROMISES)


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_is_short_and_says_what_it_shows(script):
    text = script.read_text()
    assert len(text.splitlines()) < 60
    assert re.match(r'"""[\s\S]+?\b[Pp]rints\b[\s\S]+?"""\n', text), "the docstring says what is printed"
