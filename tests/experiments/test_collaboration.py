"""The collaboration study in small."""

import json
from dataclasses import replace

import torch

from cascadice import data
from cascadice.engine import simulate
from cascadice.engine.fleets import fleet
from cascadice_experiments.collaboration.__main__ import main, run
from cascadice_experiments.collaboration.measure import summary
from cascadice_experiments.collaboration.rules import rules_of, side_by_side
from cascadice_experiments.collaboration.settings import make_network, quick_settings, strangers


def test_the_study_in_small(tmp_path, capsys, one_thread):
    small = [replace(setting, nodes=6, per_node=64, epochs=3) for setting in quick_settings()]
    small.append(replace(small[0], attack="noise", graph="random-regular", nodes=8, epochs=1))
    results = run(small, data.digits(), [100, 101], tmp_path, 1e9, hidden=(12,))
    assert [len(result["accuracy"]["influence"]) for result in results] == [2] * 4
    assert json.loads((tmp_path / "result.json").read_text())["results"] == results
    assert (tmp_path / "collaboration.svg").exists()
    flipped = {row["rule"]: row for row in summary(results[0])}
    assert flipped["oracle"]["closed"] == 1
    assert flipped["uniform"]["closed"] == 0
    printed = capsys.readouterr().out
    assert "two groups 50%, exponential: 2 networks of 6" in printed
    assert run(small, data.digits(), [100], None, 0.0) == []


def test_rules_side_by_side_are_the_rules_alone(one_thread):
    """A fleet of two rules trains each network as if it were alone."""
    setting = replace(quick_settings()[0], nodes=6, per_node=64)
    alone = [make_network(setting, data.digits(), seed, (8,)) for seed in (100, 101)]
    bad = [k + 6 * i for i, seed in enumerate((100, 101)) for k in strangers(setting, seed)]
    together = rules_of(setting, fleet(alone), bad, 2)
    everything = fleet(alone * len(together))
    *_, found = simulate(everything, 5, rule=side_by_side(list(together.values()), 12))
    for i, (name, rule) in enumerate(rules_of(setting, fleet(alone), bad, 2).items()):
        *_, expected = simulate(fleet(alone), 5, rule=rule)
        rows = slice(12 * i, 12 * (i + 1))
        torch.testing.assert_close(found.after.theta[rows], expected.after.theta, msg=name)


def test_the_study_says_what_is_wrong(capsys):
    assert main(["--seeds", "0"]) == 2
    assert capsys.readouterr().err == "--seeds must be at least 1; found 0.\n"
