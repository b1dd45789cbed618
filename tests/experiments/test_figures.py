"""The figures: all of the paper's are there with its settings, and what each measures is what it says."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cascadice.engine import simulate
from cascadice.influence import agreement
from cascadice.runs.config import Config, build
from cascadice_experiments.figures import (
    alignment_extensions,
    alignment_plots,
    alignment_seeds,
    anomaly_bars,
    bootstrap,
    influence_cost,
    mislabelled_samples,
    network_pictures,
    networks,
    one_hop_cascades,
    ripples,
)
from cascadice_experiments.figures.alignment_plots import Panel
from cascadice_experiments.figures.anomaly_bars import Attack
from cascadice_experiments.figures.figure import Context, Mixing, Result
from cascadice_experiments.figures.influence_cost import Cost
from cascadice_experiments.figures.mislabelled_samples import Mislabelled
from cascadice_experiments.figures.probes import Probe
from cascadice_experiments.figures.registry import ALIGNMENTS, ANOMALIES, BEYOND, CASCADES, FIGURES

# every figure of the paper, by its label there; one that is printed twice has none the second time
PAPER = {
    "influence_cascade", "topology_main", "topology",
    "alignment-tinyimagenet-32-128-0.1",
    "alignment-cifar10-exponential-16-128-0.1", "alignment-cifar10-exponential-32-128-0.1",
    "alignment-cifar10-ring-32-16-0.1", "alignment-cifar10-ring-32-64-0.1", "alignment-cifar10-ring-32-128-0.1",
    "alignment-cifar10-ring-16-64-0.1", "alignment-cifar10-ring-16-64-0.01",
    "alignment-cifar10-ring-32-64-0.1 (again)", "alignment-cifar10-ring-32-64-0.01",
    *(f"alignment-cifar10-exp-32-64-0.01-{epochs}epoch" for epochs in (10, 20, 30)),
    "anomaly-cifar10-exp-32",
    *(f"anomaly-cifar10-exp-32-bs{batch}-lr{lr}" for batch in (16, 64, 128) for lr in (0.1, 0.01)),
    *(f"anomaly-cifar10-exp-32-bs{batch}-noise" for batch in (16, 64, 128)),
    "cascade-mlp-mnist-heatmap+graph", "cascade-mlp-combined", "cascade-resnet-combined",
    "cascade-cifar10-heatmap-mainfigure",
}  # fmt: skip

DIGITS = Config(nodes=5, model_options=("hidden=[8]",), batch_size=16, lr=0.3, epochs=None, rounds=8)
CONTEXT = Context(True, "cpu", None, None, lambda name, make: make())


@pytest.fixture(autouse=True)
def _sooner(one_thread, monkeypatch):
    """Threads that wait for one another are slow on a busy machine; and intervals need not be exact here."""
    monkeypatch.setattr(bootstrap, "DRAWS", 40)


def test_every_figure_of_the_paper_is_there_once():
    shown = [label for figure in FIGURES.values() for label in figure.shows]
    assert sorted(shown) == sorted(PAPER)


def test_alignments_have_the_settings_of_the_paper():
    seen = set()
    for figure in ALIGNMENTS.values():
        panels = figure.plan(False)
        assert {p.config.init for p in panels} == {"own", "shared"}
        assert {p.config.model for p in panels} == {"mlp", "cnn"}
        assert {p.config.data for p in panels} == set(figure.data)
        for p in panels:
            c = p.config
            seen.add((c.topology, c.nodes, c.per_node, c.batch_size, c.lr, c.epochs, c.data.startswith("cifar")))
    assert seen == {
        ("ring", 32, 512, 128, 0.1, 5.0, False),
        ("exponential", 16, 512, 128, 0.1, 5.0, True), ("exponential", 32, 512, 128, 0.1, 5.0, True),
        *(("ring", 32, 512, batch, 0.1, 5.0, True) for batch in (16, 64, 128)),
        *(("ring", nodes, 512, 64, lr, 5.0, True) for nodes, lr in ((16, 0.1), (16, 0.01), (32, 0.01))),
        ("exponential", 16, 8192, 128, 0.1, 30.0, False), ("exponential", 32, 8192, 128, 0.1, 30.0, False),
    }  # fmt: skip


def test_long_runs_are_looked_at_after_10_20_and_30_epochs():
    panels = FIGURES["align-tiny-epochs"].plan(False)
    assert all([round(30 * stop) for stop in p.stops] == [10, 20, 30] for p in panels)
    assert all(p.config.partition == "with-replacement" for p in panels)


def test_anomalies_have_the_settings_of_the_paper():
    for figure in ANOMALIES.values():
        for a in figure.plan(False):
            c = a.config
            assert (c.topology, c.nodes, c.per_node, c.epochs, c.data) == ("exponential", 32, 512, 5.0, "cifar10")
            assert len(a.positions) == 8
    flips, noises = (
        {(a.config.batch_size, a.config.lr, a.strength) for a in figure.plan(False)} for figure in ANOMALIES.values()
    )
    assert flips == {(batch, lr, 1.0) for batch in (16, 64, 128) for lr in (0.1, 0.01)}
    assert noises == {(128, 0.1, 100.0), (64, 0.01, 100.0), (16, 0.1, 100.0)}


@pytest.mark.parametrize("name", FIGURES)
def test_plans_are_settings(name):
    """Both scales are plain data that say what differs, and every part of a plan has a name of its own."""
    figure = FIGURES[name]
    for quick in (False, True):
        assert figure.settings(quick)
        keys = [(getattr(p, "name", ""), getattr(getattr(p, "config", None), "init", "")) for p in figure.plan(quick)]
        assert len(set(keys)) == len(keys) or len(set(map(str, figure.settings(quick)))) == len(keys)


def test_beyond_goes_beyond():
    assert {p.hops for p in alignment_extensions.several_hops(False)} == {3}
    assert {p.config.optimizer for p in alignment_extensions.optimizers(False)} >= {"momentum", "adam"}
    assert len({p.config.topology for p in alignment_extensions.changing_links(False)}) == 4
    assert all(p.config.init == "shared" for figure in BEYOND.values() for p in figure.plan(False) if type(p) is Panel)


def test_seeds_differ_and_nothing_else():
    for name in ("beyond-seeds-mlp", "beyond-seeds-cnn", "beyond-seeds-tiny-mlp", "beyond-seeds-tiny-cnn"):
        panels = FIGURES[name].plan(False)
        assert [p.config.seed for p in panels] == [0, 1, 2, 3, 4]
        figure = "align-tiny-epochs" if "tiny" in name else "align-batch-16"
        (one,) = {replace(p, name="", config=replace(p.config, seed=0), stops=()) for p in panels}
        assert one in {replace(p, name="", stops=()) for p in FIGURES[figure].plan(False)}


def test_seeds_are_measured_by_first_order_alone():
    panels = [Panel(f"digits, seed {seed}", replace(DIGITS, seed=seed), scored=2, judged_on=32) for seed in (0, 1)]
    found = alignment_seeds.measure(panels, CONTEXT)
    assert [(row["panel"], row["estimator"]) for row in found.summary] == [(p.name, "first order") for p in panels]
    one, other = (row["pearson"][0] for row in found.summary)
    assert one != other


@pytest.mark.parametrize(("rounds", "many", "hops"), [(20, 20, 1), (20, 4, 1), (20, 7, 3), (4, 10, 1), (8, 8, 3)])
def test_looks_are_spread_over_the_run(rounds, many, hops):
    found = sorted(alignment_plots.rounds_to_score(rounds, many, hops))
    assert found[-1] == rounds - 1
    assert found[0] >= hops - 1
    assert len(found) <= min(many, rounds)
    gaps = {b - a for a, b in pairwise(found)}
    assert max(gaps) - min(gaps) <= 1


def test_stops_are_reported_as_if_the_run_had_ended_there():
    panel = Panel("digits", DIGITS, scored=8, judged_on=32, stops=(0.5, 1.0), hops=2)
    found = alignment_plots.measure([panel], CONTEXT)
    short = alignment_plots.measure([replace(panel, config=replace(DIGITS, rounds=4), scored=4, stops=(1.0,))], CONTEXT)
    half = [row for row in found.summary if row["rounds"] == 4]
    # of the longer run, an update in round 3 reaches beyond the stop
    for row, other in zip(half, short.summary, strict=True):
        assert row["test_accuracy"] == other["test_accuracy"]
        assert row["points"] == other["points"] + 5
    assert {row["hops"] for row in found.summary} == {1, 2}


def test_bootstrap_draws_groups():
    draw = torch.Generator().manual_seed(3)
    truth, group = torch.randn(60, generator=draw).double(), torch.arange(60) // 10
    estimate = truth + 0.3 * torch.randn(60, generator=draw) + torch.randn(6, generator=draw)[group]
    found = bootstrap.bootstrap(truth, estimate, group)
    assert found == bootstrap.bootstrap(truth, estimate, group)
    for (value, low, high), exact in zip(found.values(), agreement(truth, estimate), strict=True):
        assert value == exact
        assert low < high
    single = bootstrap.bootstrap(truth, estimate, torch.arange(60))
    assert (
        single["relative_rmse"][2] - single["relative_rmse"][1] < found["relative_rmse"][2] - found["relative_rmse"][1]
    )
    assert bootstrap.bootstrap(truth, truth, group)["pearson"] == pytest.approx([1, 1, 1])


def test_neighbourhoods_are_those_of_the_receivers():
    heard = torch.zeros(4, 4, dtype=torch.bool)
    for j, k in ((0, 1), (2, 1), (0, 3), (3, 0)):
        heard[j, k] = True
    assert anomaly_bars.neighbourhoods(heard, 0) == [(1, [0, 2]), (3, [0])]


def test_an_anomaly_has_the_highest_bar(tmp_path):
    config = replace(DIGITS, nodes=8, lr=0.1, rounds=24, per_node=64)
    attack = Attack("digits", config, "flip-labels", 1.0, (2, 5), 6, 64)
    found = anomaly_bars.measure([attack], CONTEXT)
    assert len(found.points["influence"]) == 2 * 3 * 3
    assert sum(found.points["is_anomaly"]) == 2 * 3
    rows = {row["reading"]: row for row in found.summary}
    assert rows["influence"]["auroc"][0] > 0.8
    assert rows["influence"]["positions"] == 2
    assert all(0 <= value <= 1 for row in rows.values() for key in ("auroc", "highest_bar") for value in row[key])
    anomaly_bars.draw(found, tmp_path / "bars.svg")
    drawn = (tmp_path / "bars.svg").read_text()
    assert drawn.count("at participant") == drawn.count("neighbour (orange: the anomaly)") == 3
    assert anomaly_bars.ANOMALY.lower() in drawn


def test_exchanging_a_batch_is_drawing_another():
    """The slow way: play the round with the other batch at j alone."""
    network = build(replace(DIGITS, dtype="float64"))
    *_, last = simulate(network, 3)
    other = torch.arange(16)
    usual, given = (
        next(simulate(one, 4, start=3, participants=last.after))
        for one in (network, replace(network, batches=lambda t: other.expand(5, 1, -1)))
    )
    for j in (0, 3):
        batch = usual.draw.batch.clone()
        batch[j] = other
        plain = next(simulate(replace(network, batches=lambda t, b=batch: b), 4, start=3, participants=last.after))
        made = one_hop_cascades._exchanged(usual, given, j)
        assert torch.equal(made.draw.batch, plain.draw.batch)
        torch.testing.assert_close(made.after.theta, plain.after.theta)
        torch.testing.assert_close(made.half.theta, plain.half.theta)


def test_the_same_batch_counts_for_more_where_its_holder_is_heard(tmp_path):
    config = replace(DIGITS, topology="dominant", nodes=8, lr=0.1, rounds=20, dtype="float64")
    found = one_hop_cascades.measure_one_hop([Probe("digits", config, batches=2, judged_on=64)], CONTEXT)
    (row,) = found.summary
    assert row["strongest"] == 0
    assert row["pearson_out_weight"] > 0.8
    assert row["pearson_truth"] > 0.9
    assert row["in_order"] > 0.9
    assert len(found.points["truth"]) == 2 * 8
    network_pictures.draw_one_hop(found, tmp_path / "cascade.png")
    assert (tmp_path / "cascade.png").stat().st_size > 10_000
    assert _white_rim(tmp_path / "cascade.png")


def test_pairs_of_one_weight_have_no_order():
    weight, size = torch.tensor([3.0, 1.0, 1.0, 2.0]), torch.tensor([5.0, 2.0, 1.0, 1.5])
    assert one_hop_cascades.in_order(weight, size) == pytest.approx(4 / 5)


def test_ripples_follow_the_weights(tmp_path):
    config = replace(DIGITS, topology="ring", nodes=8, lr=0.05, rounds=10)
    found = ripples.measure_ripples([Probe("digits", config, batches=2, judged_on=64)], CONTEXT)
    assert [row["reached"] for row in found.summary] == [1, 3, 5, 7, 8, 8]
    assert all(row["pearson_weights"] > 0.9 for row in found.summary[1:4])
    network_pictures.draw_ripples(found, tmp_path / "ripples.svg")
    drawn = (tmp_path / "ripples.svg").read_text()
    for h, row in enumerate(found.summary):
        assert f"hop {h}: all together {row['influence']:+.3g}" in drawn
    assert all(colour.lower() in drawn for colour, _ in network_pictures.HOPS)
    assert "#1f77b4" not in drawn  # the first of Matplotlib's own


def test_areas_are_shares_and_arrows_end_at_rims():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    W = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]
    network_pictures._network(axes, W, network_pictures._circle(range(3)), [-4.0, 2.0, 0.0], 4.0)
    full, half, none = (float(dot.get_sizes()[0]) for dot in axes.collections)
    assert full == network_pictures.LARGEST
    assert half == pytest.approx(full / 2)
    assert none == network_pictures.SMALLEST
    ends = [(arrow.shrinkA, arrow.shrinkB) for arrow in axes.patches]
    rims = [area**0.5 / 2 for area in (full, half, none)]
    assert ends == [(rims[j], rims[k]) for k, j in ((0, 1), (1, 0), (1, 2), (2, 0))]


def test_equal_weights_are_equal_whatever_their_last_bits():
    size = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    weight = torch.tensor([2.0, 0.6, 0.6 - 1e-15, 0.6 + 1e-15], dtype=torch.float64)
    found = one_hop_cascades._row("x", size, size, weight, [0.5])
    assert found["rank_correlation"][0] == pytest.approx(0.7746, abs=1e-4)  # of three ties; 0.4 if there were none
    assert found["strongest_to_median"] == pytest.approx(4 / 2.5)


def test_the_networks_of_the_cascades_are_drawn():
    rippling = networks.measure_network(ripples.network_of_ripples(True), CONTEXT)
    assert [row["out_weight"] for row in rippling.summary] == pytest.approx([0.8] * 16)
    dominant = networks.measure_network(networks.dominant_network(True), CONTEXT)
    assert max(dominant.summary, key=lambda row: row["out_weight"])["participant"] == 0


def test_weights_on_the_way_are_powers():
    W = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]).double()
    found = ripples.path_weights(W, 1)
    for hops in range(6):
        torch.testing.assert_close(found[hops], torch.linalg.matrix_power(W, hops)[:, 1])


def test_a_given_matrix_takes_the_place_of_the_own(tmp_path):
    path = tmp_path / "W.csv"
    path.write_text("0.5,0.5,0.2\n0,1,0\n0,0.5,0.5\n")
    context = CONTEXT._replace(mixing=Mixing(str(path), normalize=True))
    found = networks.measure_network(networks.dominant_network(True), context)
    assert len(found.summary) == 3
    assert found.more["W"][0] == pytest.approx([5 / 12, 5 / 12, 2 / 12])
    assert "not strongly connected" in found.findings[1]
    network_pictures.draw_network(found, tmp_path / "network.svg")
    config = networks.with_mixing(DIGITS, context.mixing)
    assert (config.nodes, config.mixing, config.normalize) == (None, str(path), True)
    assert all(figure.takes_mixing for name, figure in CASCADES.items() if name != "servers")


def test_a_server_is_busier_than_anybody(tmp_path):
    found = networks.measure_servers(networks.with_and_without_server(True), CONTEXT)
    assert {row["network"]: row["busiest_links"] for row in found.summary} == {"star": 15, "ring": 2, "exponential": 4}
    network_pictures.draw_servers(found, tmp_path / "servers.png")
    assert _white_rim(tmp_path / "servers.png")


def _white_rim(path):
    """Nothing is cut off."""
    from matplotlib.image import imread

    picture = imread(path)[..., :3]
    return all((line == 1).all() for line in (picture[0], picture[-1], picture[:, 0], picture[:, -1]))


def test_who_is_never_reached_has_no_distance():
    assert networks.distances([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1.0]], 0) == {0: 0, 1: 1}


def test_wrong_labels_are_found(tmp_path):
    wide = ("hidden=[32]",)
    config = replace(DIGITS, nodes=2, per_node=128, epochs=15.0, rounds=None, batch_size=32, model_options=wide)
    cases = [
        Mislabelled("two", config, 0.2, 128),
        Mislabelled("one", replace(config, nodes=1, topology="alone"), 0.2, 128),
    ]
    found = mislabelled_samples.measure(cases, CONTEXT)
    rows = {(row["panel"], row["score"]): row for row in found.summary}
    assert rows["two", "influence over 1 hop"]["auc"] > 0.75
    assert rows["two", "influence over 1 hop"]["wrong"] == round(0.2 * 256)
    pytest.importorskip("captum", reason="captum is not installed: make peers")
    ours, theirs = (rows["one", score]["auc"] for score in ("influence over 1 hop", "captum's TracInCP"))
    assert abs(ours - theirs) < 0.1
    mislabelled_samples.draw(found, tmp_path / "labels.svg")
    assert "TracInCP" in (tmp_path / "labels.svg").read_text()


def test_only_wrong_labels_are_changed():
    network = build(DIGITS)
    wrong = torch.tensor([3, 50, 51])
    other = mislabelled_samples.relabelled(network, wrong, torch.Generator().manual_seed(0))
    changed = (other.data.train.y != network.data.train.y).nonzero()[:, 0]
    assert torch.equal(changed, wrong)
    assert int(other.data.train.y.max()) < 10


def test_costs_grow_with_the_hops():
    found = influence_cost.measure([Cost(DIGITS, hops=2, repeats=1)], CONTEXT)
    linked = build(DIGITS).mixing(0) > 0
    assert found.points["paths"] == [int(linked.sum()), int((linked.double() @ linked.double()).sum())]
    assert all(value > 0 for row in found.summary for name, value in row.items() if "source" in name)


def test_hops_are_whole_and_seconds_plain(tmp_path):
    columns = {"hops": [1, 2, 3], "paths": [20, 150, 900], **{name: [0.3, 0.4, 0.7] for name in influence_cost.STYLES}}
    influence_cost.draw(Result(columns, [], [], {}), tmp_path / "cost.svg")
    drawn = (tmp_path / "cost.svg").read_text()
    assert "<!-- 1.5" not in drawn
    assert "<!-- 0.5 -->" in drawn
    assert r"\times" not in drawn
