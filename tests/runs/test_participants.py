"""Participants that differ in optimizer, learning rate, batch size and number of local steps."""

from dataclasses import replace
from inspect import signature

import pytest
import torch

from cascadice.cli import main
from cascadice.engine import network
from cascadice.runs.config import Config, build, length, override, per_participant
from cascadice.runs.folder import fingerprint
from cascadice.runs.options import read_participants
from cascadice.runs.recipes import demo
from cascadice.runs.recording import open_recording

SMALL = replace(demo(), nodes=4, model_options=("hidden=[4]",), epochs=None, rounds=3, batch_size=8)
MIXED = ("2,3:optimizer=adam,lr=0.003", "0-1:batch_size=4,local_steps=2")


def test_a_text_names_participants_and_their_settings():
    nodes, settings, options = read_participants("0-2, 5".replace(" ", "") + ": optimizer=adam, betas=[0.8,0.9],lr=1")
    assert nodes == (0, 1, 2, 5)
    assert settings == {"optimizer": "adam", "lr": 1.0}
    assert options == ("betas=[0.8,0.9]",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lr=0.1", "participants must read nodes:name=value"),
        ("2:", "participants must read nodes:name=value"),
        ("all:lr=0.1", "participants must read nodes:name=value"),
        ("2:lr", "an option must read name=value"),
        ("3-1:lr=0.1", "must run from a smaller to a larger number; found 3-1"),
        ("2:lr=fast", "lr must be a number; found 'fast' in '2:lr=fast'"),
        ("2:batch_size=0", "batch_size must be a whole number of at least 1; found 0"),
        ("2:local_steps=1.5", "local_steps must be a whole number of at least 1; found 1.5"),
        ("2:lr=0.1,lr=0.2", "participants must be given each setting once; found lr twice in '2:lr=0.1,lr=0.2'"),
    ],
)
def test_what_cannot_be_read_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Config(participants=(text,))


def test_each_participant_has_its_own_settings():
    config = replace(SMALL, optimizer="momentum", optimizer_options=("beta=0.5",), weight_decay=0.1, participants=MIXED)
    each = per_participant(config, 4)
    assert [one.optimizer for one in each] == ["momentum", "momentum", "adam", "adam"]
    assert [one.lr for one in each] == [0.2, 0.2, 0.003, 0.003]
    assert [(one.batch_size, one.local_steps) for one in each] == [(4, 2), (4, 2), (8, 1), (8, 1)]
    assert [one.weight_decay for one in each] == [0.1, 0.1, None, None]  # another optimizer has its own options
    assert [one.optimizer_options for one in each] == [("beta=0.5",)] * 2 + [()] * 2


def test_later_texts_and_options_add_to_earlier_ones():
    config = replace(SMALL, participants=("0-3:optimizer=momentum,beta=0.5", "1:beta=0.7,clip=2", "1:lr=0.01"))
    first, second, *_ = per_participant(config, 4)
    assert first.optimizer_options == ("beta=0.5",)
    assert (second.optimizer_options, second.clip, second.lr) == (("beta=0.5", "beta=0.7"), 2.0, 0.01)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (("1:lr=0.1", "1:lr=0.2"), "participant 1 has lr twice, in '1:lr=0.1' and in '1:lr=0.2'. Leave one out"),
        (("1:lr=0.1", "0-3:lr=0.2"), "participant 1 has lr twice"),  # the second is no exception from the first
        (("0,1:beta=0.1", "1,2:beta=0.2"), "participant 1 has beta twice"),
    ],
)
def test_a_setting_given_twice_is_refused(texts, complaint):
    with pytest.raises(ValueError, match=complaint):
        Config(participants=texts)


def test_an_exception_from_a_group_is_no_repetition():
    each = per_participant(replace(SMALL, participants=("0-3:lr=0.1", "1,2:lr=0.2")), 4)
    assert [one.lr for one in each] == [0.1, 0.2, 0.2, 0.1]


def test_an_unknown_setting_lists_the_known_ones():
    known = "batch_size, beta, clip, local_steps, lr, nesterov, optimizer, weight_decay"
    with pytest.raises(
        ValueError, match=f"unknown setting of participants 'btea'. Did you mean 'beta'.* Known: {known}"
    ):
        build(replace(SMALL, participants=("1:optimizer=momentum,btea=1",)))


def test_participants_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"participants must be from 0 to 3; found 7 in '7:lr=1'"):
        build(replace(SMALL, participants=("7:lr=1",)))
    with pytest.raises(ValueError, match=r"unknown optimizer 'adm'"):
        build(replace(SMALL, participants=("1:optimizer=adm",)))


def test_an_epoch_uses_all_batches_of_all_participants():
    parts = [torch.arange(64)] * 2
    config = replace(SMALL, nodes=2, epochs=2.0, rounds=None, batch_size=16)
    assert length(config, parts) == 8
    assert length(replace(config, participants=("0:batch_size=8,local_steps=2",)), parts) == 8
    assert length(replace(config, participants=("0:local_steps=3",)), parts) == 4


def test_they_are_part_of_the_fingerprint():
    assert fingerprint(SMALL) != fingerprint(replace(SMALL, participants=MIXED))


def test_settings_that_are_the_same_for_all_are_no_sequences():
    """So that a network of equal participants is built, and computed, as it always was."""
    alike = build(replace(SMALL, participants=("0-3:lr=0.1",)))
    assert alike.lr(0) == build(override(SMALL, {"lr": 0.1})).lr(0) == 0.1


@pytest.mark.skipif(
    "Sequence" not in str(signature(network).parameters["batch_size"]), reason="needs the engine's part"
)
def test_from_the_command_line_to_a_recording(tmp_path):
    flags = ["--nodes", "4", "--model-options", "hidden=[4]", "--rounds", "3", "--batch-size", "8", "--record", "all"]
    assert main(["run", "demo", *flags, "--participants", *MIXED, "--out", str(tmp_path / "a"), "--quiet"]) == 0
    recording = open_recording(tmp_path / "a")
    assert recording.config.participants == MIXED
    first = next(recording.load_rounds())
    used = first.draw.batch != -1
    assert used.sum((1, 2)).tolist() == [8, 8, 8, 8]
    assert used[0].sum(1).tolist() == [4, 4]
    assert used[2].sum(1).tolist() == [8, 0]
    torch.testing.assert_close(torch.as_tensor(first.draw.lr).double(), torch.tensor([0.2, 0.2, 0.003, 0.003]).double())
    assert main(["influence", str(tmp_path / "a"), "--kind", "truth,first-order", "--quiet"]) == 0
