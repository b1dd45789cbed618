"""One sign rule: page, console and JSON of one run say with the same sign who helped, and say what the sign means."""

import io
import json
import re
from contextlib import redirect_stdout

import numpy as np
import pytest

from cascadice.applications.choose.charts import with_todays_signs
from cascadice.applications.writer import SIGN_RULE
from cascadice.cli import main
from cascadice.report.page.collecting import collect

RUN = ["--nodes", "4", "--model-options", "hidden=[8]", "--per-node", "64", "--batch-size", "16", "--lr", "0.2"]
COMMANDS = {
    "choose": ["choose"],
    "contribution": ["choose", "--by", "contribution"],
    "reward": ["reward", "--budget", "100"],
}
HARMFUL = 2


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the page shows, what JSON holds and what was printed, command by command, of one run with a sign-flipper."""
    place, printed = tmp_path_factory.mktemp("signs") / "run", {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        patch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: path.touch())
        run = ["run", *RUN, "--rounds", "8", "--topology", "complete", "--behaviours", f"sign-flipper:{HARMFUL}:3"]
        assert main([*run, "--record", "all", "--quiet", "--out", str(place)]) == 0
        for name, (command, *flags) in COMMANDS.items():
            with redirect_stdout(io.StringIO()) as out:
                assert main([command, str(place), *flags]) == 0
            printed[name] = out.getvalue()
    results = {name: json.loads((place / name / f"{name}.json").read_text()) for name in COMMANDS}
    return {section["name"]: section for section in collect(place)["sections"]}, results, printed


def column(section, name):
    """A column of the page, by participant."""
    place = section["columns"].index(name)
    return [row[place] for row in sorted(section["rows"])]


def printed_rows(text, numbers):
    """The signed numbers with ± in each row of a printed table, by participant."""
    rows = [re.findall(r"([+-]\d+\.\d+) ±", line) for line in text.splitlines() if re.match(r"\d+ ", line)]
    nodes = [int(line.split()[0]) for line in text.splitlines() if re.match(r"\d+ ", line)]
    assert {len(row) for row in rows} == {numbers}
    return np.array([[float(value) for value in row] for _, row in sorted(zip(nodes, rows, strict=True))]).T


def test_influence_has_the_same_sign_on_the_page_on_the_console_and_in_json(told):
    page, results, printed = told
    for place, name in enumerate(("given", "taken")):
        held = results["choose"][f"influence_{name}"][-1]
        assert column(page["choose"], f"influence {name}") == held
        np.testing.assert_allclose(printed_rows(printed["choose"], 2)[place], held, atol=6e-4)
    held = results["contribution"]["contributions"]
    assert column(page["contribution"], "influence") == held
    np.testing.assert_allclose(printed_rows(printed["contribution"], 1)[0], held, atol=6e-5)
    np.testing.assert_allclose(np.array(results["reward"]["contributions"]).sum(0), held, rtol=1e-4)


def test_whoever_harms_has_positive_influence_and_negative_credit(told):
    _, results, _ = told
    assert results["choose"]["influence_given"][-1][HARMFUL] > 0
    assert results["contribution"]["contributions"][HARMFUL] == max(results["contribution"]["contributions"]) > 0
    assert results["reward"]["credit"][HARMFUL] < 0


def test_the_rule_is_said_where_the_numbers_are(told):
    page, results, printed = told
    for name in ("choose", "contribution"):
        assert results[name]["sign"] == SIGN_RULE
        assert SIGN_RULE in page[name]["lead"]
        assert printed[name].index(SIGN_RULE) < printed[name].index("injected")
    assert SIGN_RULE in results["reward"]["sign"]
    assert "credit is positive where influence, the change of the loss, is negative" in printed["reward"]
    assert "positive credit = negative influence = it helped" in page["reward"]["lead"]


def test_results_of_earlier_versions_are_drawn_like_new_ones(told):
    _, results, _ = told
    new = results["choose"]
    opposites = {"gave": "influence_given", "took": "influence_taken", "influence": "cosines"}
    older = {name: (-np.array(new[held])).tolist() for name, held in opposites.items()}
    older["intervals"] = {"gave": new["half_widths"]["influence_given"]}
    read = with_todays_signs({**older, "groups": new["groups"]})
    assert all((np.array(read[held]) == np.array(new[held])).all() for held in opposites.values())
    assert read["half_widths"] == {"influence_given": new["half_widths"]["influence_given"]}
    assert with_todays_signs(new) == new
