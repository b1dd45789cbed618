"""The collaboration study in small."""

import json
from dataclasses import replace

import torch

from cascadice import data
from cascadice.engine import simulate
from cascadice.engine.fleets import fleet
from cascadice_experiments.collaboration.__main__ import main, run
from cascadice_experiments.collaboration.measure import summary
from cascadice_experiments.collaboration.rules import rules_of, side_by_side, with_mimicry
from cascadice_experiments.collaboration.settings import make_network, quick_settings, settings, strangers, title


def test_the_study_in_small(tmp_path, capsys, one_thread):
    small = [replace(setting, nodes=6, per_node=64, epochs=3) for setting in quick_settings()]
    small.append(replace(small[0], attack="noise", graph="random-regular", nodes=8, epochs=1))
    results = run(small, data.digits(), [100, 101], tmp_path, 1e9, hidden=(12,))
    assert [len(result["accuracy"]["cosine trust"]) for result in results] == [2] * 6
    assert json.loads((tmp_path / "result.json").read_text())["results"] == results
    assert (tmp_path / "figure.svg").exists()
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
    together = rules_of(setting, fleet(alone), bad)
    everything = fleet(alone * len(together))
    *_, found = simulate(everything, 5, rule=side_by_side(list(together.values()), 12))
    for i, (name, rule) in enumerate(rules_of(setting, fleet(alone), bad).items()):
        *_, expected = simulate(fleet(alone), 5, rule=rule)
        rows = slice(12 * i, 12 * (i + 1))
        torch.testing.assert_close(found.after.theta[rows], expected.after.theta, msg=name)


def test_mimics_send_half_of_what_their_neighbours_do(one_thread):
    setting = replace(quick_settings()[0], attack="mimicry", nodes=6, per_node=64)
    net, seen = make_network(setting, data.digits(), 100, (8,)), {}
    (bad, *_) = strangers(setting, 100)

    def look(draw, before, half):
        seen["update"] = half.theta - before.theta
        return draw.W

    *_, honest = simulate(net, 1, rule=look)
    own = seen["update"].clone()
    simulated = simulate(net, 1, rule=with_mimicry(look, strangers(setting, 100)))
    list(simulated)
    sent, heard = seen["update"][bad], honest.W[bad].clone()
    heard[bad] = 0
    copied = own[heard > 0].mean(0)
    cosines = [torch.cosine_similarity(sent, other, dim=0) for other in (copied, own[bad])]
    torch.testing.assert_close(cosines[0], cosines[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sent.norm(), 2 * copied.norm(), atol=1e-5, rtol=1e-4)


def test_a_turncoat_is_honest_for_half_of_the_rounds():
    setting = quick_settings()[-1]
    assert setting.attack == "turncoat"
    (behaviour,) = make_network(setting, data.digits(), 100, (8,)).behaviours
    assert behaviour.rounds.start == 18


def test_settings_have_names_and_can_be_chosen(capsys):
    names = [title(setting) for setting in settings()]
    assert len(set(names)) == len(names) == 19
    assert {"noise-40-random-regular", "mirrored-labels-40-random-regular", "mimicry-25"} <= set(names)
    assert main(["noises-40", "--digits"]) == 2
    assert "unknown setting 'noises-40'. Did you mean 'noise-40'?" in capsys.readouterr().err


def test_the_study_says_what_is_wrong(capsys):
    assert main(["--seeds", "0"]) == 2
    assert capsys.readouterr().err == "--seeds must be at least 1; found 0.\n"
