import json
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascadice import learning_rates
from cascadice.engine import behaviours, simulate
from cascadice.engine.compression import COMPRESSIONS
from cascadice.runs import config as configuration
from cascadice.runs.config import Config, build, from_json, length, override, sees_scale, to_json
from cascadice.runs.flags import read_setting
from cascadice.runs.folder import fingerprint
from cascadice.runs.options import read_options
from cascadice.runs.recipes import RECIPES, demo, describe
from cascadice.topology import SPARSE_FROM, read_csv, write_csv

SMALL = replace(demo(), nodes=3, model_options=("hidden=[4]",), epochs=None, rounds=2)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json_and_has_a_description(name):
    config = RECIPES[name]()
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    assert describe(name)
    assert "\n" not in describe(name)


@given(lr=st.floats(1e-9, 1e3), seed=st.integers(0, 2**63), options=st.lists(st.text(), max_size=2), clip=st.none())
def test_json_is_exact(lr, seed, options, clip):
    config = replace(demo(), lr=lr, seed=seed, model_options=tuple(options), clip=clip)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_every_setting_has_help():
    assert all(f.metadata["help"] for f in fields(Config))


def test_unknown_and_ill_typed_settings_are_refused():
    with pytest.raises(ValueError, match=r"unknown setting 'node'. Did you mean 'nodes'\?"):
        from_json({"node": 3})
    with pytest.raises(TypeError, match=r"nodes must be int or none; found 'x'"):
        from_json({"nodes": "x"})
    with pytest.raises(TypeError, match=r"batch_size must be int; found True"):
        from_json({"batch_size": True})
    with pytest.raises(TypeError, match=r"corruptions must be a list of strings; found"):
        from_json({"corruptions": [3]})


@pytest.mark.parametrize("name", ["nodes", "rounds", "eval_every", "checkpoint_every", "batch_size", "local_steps"])
def test_counts_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1; found 0"):
        override(demo(), {name: 0})


def test_a_run_has_rounds_or_epochs_and_a_size():
    with pytest.raises(ValueError, match=r"give either rounds or epochs; found rounds=3"):
        Config(rounds=3)
    with pytest.raises(ValueError, match=r"epochs must be positive and finite; found -1"):
        Config(epochs=-1.0)
    with pytest.raises(ValueError, match=r"nodes may be left out only if a mixing matrix is given"):
        Config(nodes=None)


def test_a_setting_puts_back_what_it_stands_in_for():
    config = override(demo(), {"rounds": 7, "mixing": "W.csv", "model": "cnn"})
    assert (config.rounds, config.epochs) == (7, None)
    assert (config.mixing, config.nodes) == ("W.csv", None)
    assert config.model_options == ()
    assert override(config, {"topology": "ring", "nodes": 4}).mixing is None
    assert override(demo(), {"model": demo().model}) == demo()


def test_options_are_read_as_json_or_text():
    assert read_options(("hidden=[3,4]", "activation=gelu", "max-degree=2")) == {
        "hidden": (3, 4),
        "activation": "gelu",
        "max_degree": 2,
    }
    with pytest.raises(ValueError, match=r"an option must read name=value, .*; found 'hidden'"):
        read_options(("hidden",))


def test_epochs_become_rounds():
    shares = [torch.arange(64)] * 3
    assert length(Config(epochs=2.5, batch_size=16), shares) == 10
    assert length(Config(epochs=0.01, batch_size=16), shares) == 1
    assert length(Config(epochs=None, rounds=3), shares) == 3


def test_names_become_objects():
    config = replace(
        SMALL, optimizer="momentum", optimizer_options=("beta=0.5",), weight_decay=0.1, clip=1.0, dtype="float64",
        lr_schedule="cosine", strategy="loop", behaviours=("free-rider:1@1-",), corruptions=("flip-labels:0:0.5",),
    )  # fmt: skip
    network = build(config)
    assert network.nodes == 3
    assert network.strategy == "loop"
    assert network.initial.theta.dtype == torch.float64
    assert set(network.initial.state) == {"momentum"}
    assert network.lr(1) == learning_rates.cosine(config.lr, 2)(1)
    assert network.corruptions[0].strength == 0.5
    first, second = simulate(network, 2)
    assert first.draw.conduct == ()
    assert second.draw.conduct[0].tolist() == [1, 0, 1]


def test_own_parameters_differ_and_shared_ones_do_not():
    own, shared = (build(replace(SMALL, init=init)).initial.theta for init in ("own", "shared"))
    assert torch.equal(shared[0], shared[1])
    assert not torch.isclose(own[0], own[1]).any()
    assert torch.equal(own[0], shared[0])


def test_the_seed_decides_the_parameters():
    one, again, other = (build(replace(SMALL, seed=seed)).initial.theta for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.isclose(one, other).all()


def test_a_mixing_file_sets_the_number_of_participants(tmp_path):
    W = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    path = tmp_path / "W.csv"
    write_csv(W, path)
    config = override(SMALL, {"mixing": str(path)})
    assert torch.equal(build(config).mixing(5), W)
    with pytest.raises(ValueError, match=r"has 2 participants, nodes is 3. Leave nodes out"):
        build(replace(config, nodes=3))
    before = fingerprint(config)
    write_csv(W.flip(0), path)
    assert fingerprint(config) != before
    assert torch.equal(read_csv(path), W.flip(0))


def test_links_may_fail_and_connection_may_be_required():
    lossy = configuration.schedule(replace(SMALL, nodes=8, link_loss=0.9))
    whole = configuration.schedule(replace(SMALL, nodes=8))
    assert (lossy(0) > 0).sum() < (whole(0) > 0).sum()
    configuration.schedule(replace(SMALL, connected=True))
    with pytest.raises(ValueError, match=r"must be strongly connected"):
        configuration.schedule(replace(SMALL, topology="alone", connected=True))


def test_bad_behaviours_are_refused():
    assert behaviours.parse("sign-flipper:2:3").strength == 3
    assert behaviours.parse("absent:2@3").rounds == range(3, 4)
    with pytest.raises(ValueError, match=r"unknown behaviour 'free-ridr'. Did you mean 'free-rider'\?"):
        behaviours.parse("free-ridr:2")
    with pytest.raises(ValueError, match=r"free-rider takes no strength; found 0.5"):
        behaviours.parse("free-rider:2:0.5")
    with pytest.raises(ValueError, match=r"a behaviour must be written kind:nodes.* e.g. noise-sender:0,3:0.5@10-20;"):
        behaviours.parse("free-rider")
    with pytest.raises(ValueError, match=r"the strength must be a number"):
        behaviours.parse("sign-flipper:1:much")
    with pytest.raises(ValueError, match=r"rounds must run from a smaller to a larger number"):
        behaviours.parse("absent:1@5-3")


def test_the_fingerprint_is_of_what_determines_the_rounds():
    config = demo()
    free = {"record": "all", "checkpoint_every": 3, "data_root": "/data", "rounds": 9}
    assert fingerprint(override(config, free)) == fingerprint(config)
    assert fingerprint(replace(config, lr=0.3)) != fingerprint(config)
    cosine = replace(config, lr_schedule="cosine")
    assert fingerprint(override(cosine, {"rounds": 9})) != fingerprint(cosine)


def test_large_networks_are_sparse():
    assert configuration.schedule(replace(SMALL, nodes=SPARSE_FROM))(0).layout == torch.sparse_csr


@pytest.mark.parametrize("text", ["x", "1.5"])
def test_flags_are_read_by_the_type_of_their_field(text):
    assert read_setting("nodes", "3") == 3
    assert read_setting("nodes", "none") is None
    assert read_setting("lr", "1e-3") == 1e-3
    with pytest.raises(ValueError, match=f"--batch-size must be a whole number; found '{text}'"):
        read_setting("batch_size", text)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"optimizer": "momentum"}, True),
        ({"optimizer": "adam"}, False),
        ({"clip": 1.0}, False),
        ({"participants": ("1:optimizer=adam",)}, False),
    ],
)
def test_which_settings_hide_the_size_of_gradients(settings, expected):
    assert sees_scale(replace(Config(), **settings), 3) == expected


def test_compression_is_a_setting_that_keeps_the_fingerprint_of_those_without_it():
    compressed = replace(SMALL, compression="8-bit")
    assert build(compressed).compression is COMPRESSIONS["8-bit"]
    assert fingerprint(compressed) != fingerprint(SMALL)
    with pytest.raises(ValueError, match="Did you mean '8-bit'"):
        build(replace(compressed, compression="8bit"))
