import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pyarrow as pa
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from cascadice import data, files, models, topology
from cascadice.engine import Behaviour, Metrics, Participants, mix, network, simulate
from cascadice.files.tensors import DTYPES, content_of, read_tensors, write_tensors
from cascadice.influence import tables
from cascadice.optimizers import OPTIMIZERS
from cascadice.runs import round_metrics, store
from cascadice.runs.round_metrics import RoundMetrics


def small_network(nodes=4, **changes):
    return network(lambda: models.mlp((1, 8, 8), 10, hidden=(5,)), data.digits(), nodes=nodes, batch_size=4, **changes)


def same_bits(one, other):
    ones, others = tree_flatten(one)[0], tree_flatten(other)[0]
    assert len(ones) == len(others)
    for a, b in zip(ones, others, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.layout == b.layout
            assert a.dtype == b.dtype
            assert torch.equal(a.to_dense(), b.to_dense())
        else:
            assert a == b


CASES = {
    "sgd": {},
    "adam": {"optimizer": "adam"},
    "float64": {"dtype": "float64"},
    "time-varying": {"mixing": "matching"},
    "misbehaving": {"behaviours": [Behaviour("sign-flipper", (1,), strength=0.5), Behaviour("noise-sender", (2,))]},
    "two local steps": {"local_steps": 2, "lr": 1 / 3},
}


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_round_is_the_round_bit_for_bit(tmp_path, case):
    rounds = list(simulate(small_network(**CASES[case]), 3))
    for done in rounds:
        store.save_round(tmp_path, done)
    assert store.saved_rounds(tmp_path) == [0, 1, 2]
    for done, kept in zip(rounds, store.load_rounds(tmp_path), strict=True):
        same_bits(done, kept)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_participant_can_be_recorded_whatever_its_optimizer(tmp_path, optimizer):
    done = next(simulate(small_network(1, mixing="alone", optimizer=optimizer), 1))
    store.save_round(tmp_path, done)
    same_bits(done, store.load_round(tmp_path, 0))


@pytest.mark.parametrize("shape", [(2, 3), (1,), (), (0, 3)])
def test_the_bytes_of_a_tensor_do_not_depend_on_its_strides(shape):
    spaced = torch.rand(*shape, 2)[..., 0]
    assert bytes(content_of(spaced)) == spaced.numpy().tobytes()


def test_a_sparse_w_is_recorded_as_it_is(tmp_path):
    done = next(simulate(small_network(topology.SPARSE_FROM, partition="with-replacement", per_node=4), 1))
    assert done.W.layout == torch.sparse_csr
    store.save_round(tmp_path, done)
    same_bits(done, store.load_round(tmp_path, 0))


def largest(draw, before, half):
    """A rule that does not average: the largest of the parameters that each participant receives."""
    received = [half.theta[row > 0].amax(0) for row in draw.W]
    return half._replace(theta=torch.stack(received))


def test_a_round_of_a_rule_that_does_not_average_is_what_it_was(tmp_path):
    rounds = list(simulate(small_network(), 2, rule=largest))
    for done in rounds:
        store.save_round(tmp_path, done)
    for done, kept in zip(rounds, store.load_rounds(tmp_path), strict=True):
        assert not torch.isclose(done.after.theta, mix(done.W, done.half).theta).all()
        same_bits(done._replace(rule=None), kept._replace(rule=None))
        with pytest.raises(ValueError, match="the recording does not hold the rule"):
            kept.rule(kept.draw, kept.before, kept.half)


def test_after_takes_no_space_where_gossip_makes_it_again(tmp_path):
    done = next(simulate(small_network(), 1))
    store.save_round(tmp_path, done)
    tensors, metadata = read_tensors(tmp_path / "rounds" / "000000.safetensors", None)
    assert not any(name.startswith("after.") for name in tensors)
    assert "after" not in metadata


def test_a_learning_rate_for_each_participant_is_recorded(tmp_path):
    """A Recorder's round has one when its optimizers differ in their rates."""
    done = next(simulate(small_network(), 1))
    rates = torch.tensor([0.1, 0.2, 0.3, 0.4])
    done = done._replace(draw=done.draw._replace(lr=rates))
    store.save_round(tmp_path, done)
    same_bits(done, store.load_round(tmp_path, 0))


def test_one_tensor_is_written_under_two_names(tmp_path):
    shared, path = torch.arange(3.0), tmp_path / "both.safetensors"  # as the state of half and after, where NaN differ
    write_tensors(path, {"half": shared, "after": shared, "empty": shared[:0], "none": shared[3:]}, {})
    tensors, _ = read_tensors(path, None)
    assert list(tensors) == ["half", "after", "empty", "none"]
    assert torch.equal(tensors["half"], shared)
    assert torch.equal(tensors["after"], shared)


def test_buffers_are_recorded(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    done = list(simulate(network(model, data.digits(), nodes=3, batch_size=4), 2))[-1]
    assert {"2.running_mean", "2.num_batches_tracked"} <= set(done.half.buffers)
    store.save_round(tmp_path, done)
    same_bits(done, store.load_round(tmp_path, 1))


def test_a_checkpoint_is_the_participants_bit_for_bit(tmp_path):
    done = list(simulate(small_network(optimizer="adam"), 2))[-1]
    store.save_checkpoint(tmp_path, 2, done.after, run="abc")
    found = store.load_checkpoint(tmp_path, run="abc")
    assert found.t == 2
    same_bits(done.after, found.participants)


def test_equal_checkpoints_are_equal_files_that_others_may_read(tmp_path):
    done = next(simulate(small_network(), 1))
    files = []
    for name in "ab":
        store.save_checkpoint(tmp_path / name, 1, done.after, run="abc", layout='{"weight": [3]}')
        files.append(tmp_path / name / store.CHECKPOINT)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o644


def test_a_file_for_which_there_is_no_room_is_named(tmp_path):
    def fill():
        with files.replacing(tmp_path / "metrics.parquet"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"No space left on device: '.*metrics.parquet'"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_the_umask_is_respected(tmp_path):
    before = os.umask(0o077)
    try:
        store.save_checkpoint(tmp_path, 1, next(simulate(small_network(), 1)).after, run="abc")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / store.CHECKPOINT).stat().st_mode) == 0o600


def test_another_model_or_configuration_is_refused(tmp_path):
    wide, narrow = (store.layout(models.mlp((4,), 3, hidden=(width,))) for width in (5, 2))
    done = next(simulate(small_network(), 1))
    store.save_checkpoint(tmp_path, 1, done.after, run="abc", layout=wide)
    store.save_round(tmp_path, done, layout=wide)
    with pytest.raises(ValueError, match=r"another model: 1.weight is \[5, 4\] in the file, \[2, 4\] here"):
        store.load_checkpoint(tmp_path, layout=narrow)
    with pytest.raises(ValueError, match=r"another model"):
        store.load_round(tmp_path, 0, layout=narrow)
    with pytest.raises(ValueError, match=r"belongs to another configuration"):
        store.load_checkpoint(tmp_path, run="xyz")


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_a_truncated_file_is_reported_with_a_remedy(tmp_path, cut):
    done = next(simulate(small_network(), 1))
    store.save_checkpoint(tmp_path, 1, done.after)
    path = tmp_path / store.CHECKPOINT
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is damaged: .*Restore it") as error:
        store.load_checkpoint(tmp_path)
    assert "\n" not in str(error.value)


def test_a_flipped_bit_is_noticed(tmp_path):
    done = next(simulate(small_network(), 1))
    store.save_round(tmp_path, done)
    path = tmp_path / "rounds" / "000000.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged: the checksum of .* is wrong"):
        store.load_round(tmp_path, 0)


def test_metadata_that_are_nested_too_deeply_are_damage(tmp_path):
    path = tmp_path / "rounds" / "000000.safetensors"
    path.parent.mkdir()
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata={"cascadice": "[" * 100_000})
    with pytest.raises(ValueError, match="is damaged: its lists and objects are nested too deeply"):
        read_tensors(path, None)
    with pytest.raises(ValueError, match="is damaged: its lists and objects are nested too deeply"):
        store.load_draw(tmp_path, 0)
    write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)}, {"layout": "[" * 100_000})
    with pytest.raises(ValueError, match="is damaged: its lists and objects are nested too deeply"):
        read_tensors(tmp_path / "a.safetensors", "{}")
    write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)}, {"note": "[" * 100_000})
    with pytest.raises(ValueError, match="is damaged: its lists and objects are nested too deeply"):
        tables.load_array(tmp_path, "a")


def test_another_format_is_refused(tmp_path, monkeypatch):
    done = next(simulate(small_network(), 1))
    monkeypatch.setattr("cascadice.files.tensors.FORMAT", "cascadice-99")
    store.save_checkpoint(tmp_path, 1, done.after)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"must be of format cascadice-2; found cascadice-99"):
        store.load_checkpoint(tmp_path)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"round 3 was not recorded in .*; found no round"):
        store.load_round(tmp_path, 3)
    store.save_round(tmp_path, next(simulate(small_network(), 1)))
    with pytest.raises(FileNotFoundError, match=r"found 0 to 0"):
        store.load_round(tmp_path, 3)
    with pytest.raises(FileNotFoundError, match=r"checkpoint.safetensors does not exist"):
        store.load_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"metrics.parquet does not exist"):
        store.read_metrics(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})

    def fail():
        with files.replacing(path) as draft:
            draft.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match=r"power cut"):
        fail()
    assert files.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_drafts_of_a_killed_process_are_swept(tmp_path):
    (tmp_path / "rounds").mkdir()
    drafts = [tmp_path / ".tmp-1-config.json", tmp_path / "rounds" / ".tmp-1-000001.safetensors"]
    for draft in drafts:
        draft.write_text("half")
    assert store.saved_rounds(tmp_path) == []
    files.remove_drafts(tmp_path, "rounds")
    assert not any(draft.exists() for draft in drafts)


def test_a_file_that_is_removed_while_it_is_opened_does_not_exist(tmp_path, monkeypatch):
    """Safetensors opens it, then torch does: another writer may come in between."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.zeros(3)}, {})
    opened = torch.UntypedStorage.from_file

    def late(*arguments, **options):
        path.unlink()
        return opened(*arguments, **options)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", late)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*a\.safetensors"):
        read_tensors(path, None)
    with pytest.raises(RuntimeError, match="another"), files.intact(path):
        raise RuntimeError("another")


@pytest.mark.parametrize(
    ("content", "complaint"), [("{", "is not JSON"), ("[1]", "must hold a JSON object; found list")]
)
def test_bad_json_is_reported(tmp_path, content, complaint):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=complaint):
        files.read_json(tmp_path / "a.json")


@given(nodes=st.integers(1, 4), seen=st.lists(st.booleans(), max_size=5), first=st.integers(0, 3))
def test_metrics_come_back_as_they_were(tmp_path_factory, nodes, seen, first):
    folder = tmp_path_factory.mktemp("metrics")

    def row():
        return torch.rand(nodes, dtype=torch.float64, generator=draw)

    draw = torch.Generator().manual_seed(nodes)
    rows = [
        RoundMetrics(first + t, row(), row()[0], Metrics(row(), row()) if judged else None)
        for t, judged in enumerate(seen)
    ]
    store.write_metrics(folder, rows)
    found = store.read_metrics(folder)
    assert [m.t for m in found] == [m.t for m in rows]
    for one, other in zip(rows, found, strict=True):
        same_bits(one, other)
    shutil.rmtree(folder)


def test_metrics_are_a_tidy_table_with_nulls_where_nobody_looked(tmp_path):
    from pyarrow import parquet

    ones, nan = torch.ones(2), torch.full((2,), torch.nan)
    rows = [RoundMetrics(0, ones, ones[0]), RoundMetrics(1, 2 * ones, ones[0], Metrics(3 * ones, nan))]
    store.write_metrics(tmp_path, rows)
    table = parquet.read_table(tmp_path / store.METRICS)
    assert tuple(table.column_names) == round_metrics.COLUMNS
    assert table["round"].to_pylist() == [0, 0, 1, 1]
    assert table["node"].to_pylist() == [0, 1, 0, 1]
    assert table["eval_loss"].to_pylist() == [None, None, 3.0, 3.0]
    assert table["eval_accuracy"].null_count == 2


def test_damaged_metrics_are_reported(tmp_path):
    store.write_metrics(tmp_path, [RoundMetrics(0, torch.ones(2), torch.ones(()))])
    path = tmp_path / store.METRICS
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"metrics.parquet is damaged: .*Restore it"):
        store.read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("text", "kept", "most"),
    [("none", [], None), ("all", [0, 1, 2, 3, 4], None), ("last:2", [0, 1, 2, 3, 4], 2), ("1-3", [1, 2, 3], None)],
)
def test_recordings_are_written_in_four_ways(text, kept, most):
    found = store.rounds_to_keep(text)
    assert [t for t in range(5) if t in found.rounds] == kept
    assert found.most == most


@pytest.mark.parametrize("text", ["", "some", "last:0", "last:-1", "3-1", "1-"])
def test_other_recordings_are_refused(text):
    with pytest.raises(ValueError, match=r"record must be none, all, last:N or FROM-TO"):
        store.rounds_to_keep(text)


def test_the_layout_names_parameters_and_buffers():
    found = json.loads(store.layout(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))))
    assert found["0.weight"] == [3, 2]
    assert found["1.running_var"] == [3]


def test_participants_without_state_have_none(tmp_path):
    alone = Participants(torch.ones(1, 2), {}, {})
    store.save_checkpoint(tmp_path, 0, alone)
    same_bits(tree_map(torch.clone, alone), store.load_checkpoint(tmp_path).participants)


def test_a_file_is_replaced_not_rewritten(tmp_path):
    """Whoever has the old file open goes on reading it whole; at no moment is there half of the new one."""
    path = tmp_path / "config.json"
    files.write_json(path, {"old": 1})
    first = path.stat().st_ino
    with path.open() as reader:
        files.write_json(path, {"new": 2})
        assert json.load(reader) == {"old": 1}
    assert path.stat().st_ino != first
    assert files.read_json(path) == {"new": 2}


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    """The temporary name cannot be guessed; if it is, nothing is written there."""
    monkeypatch.setattr(files, "token_hex", lambda size: "guessed")
    planted = tmp_path / f".tmp-{os.getpid()}-guessed-a.json"
    planted.symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        files.write_json(tmp_path / "a.json", {})
    assert planted.is_symlink()
    assert not (tmp_path / "victim").exists()


def test_what_safetensors_leaves_behind_is_swept(tmp_path):
    (tmp_path / "rounds").mkdir()
    for name in (".tmpAb12Cd", "rounds/.tmpAb12Cd", ".tmp-1-0a1b-x", ".tmp-mine", ".tmpfiles.d"):
        (tmp_path / name).write_text("half")
    files.remove_drafts(tmp_path, "rounds", "missing")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".tmp-mine", ".tmpfiles.d", "rounds"]


DENIED = PermissionError(13, "Permission denied")
UNREADABLE = {
    "checkpoint": (store.load_checkpoint, DENIED),
    "checkpoint, by safetensors": (store.load_checkpoint, safetensors.SafetensorError("I/O error: no (os error 13)")),
    "round": (lambda folder: store.load_draw(folder, 0), DENIED),
    "metrics": (store.read_metrics, DENIED),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch, case):
    read, error = UNREADABLE[case]

    def refuse(*_, **__):
        raise error

    done = next(simulate(small_network(), 1))
    store.save_round(tmp_path, done)
    store.save_checkpoint(tmp_path, 1, done.after)
    round_metrics.write_metrics(tmp_path, [])
    monkeypatch.setattr(safetensors, "safe_open", refuse)
    monkeypatch.setattr(parquet, "read_table", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*(safetensors|parquet)'"):
        read(tmp_path)


def test_a_file_is_not_called_damaged_where_memory_or_threads_run_out(tmp_path):
    path, arrow = tmp_path / "metrics.parquet", pa.ArrowException
    with pytest.raises(MemoryError, match="malloc failed"), files.intact(path, arrow):
        raise pa.ArrowMemoryError("malloc failed")
    with pytest.raises(OSError, match=r"temporarily unavailable.*metrics.parquet"), files.intact(path, arrow):
        raise arrow("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")
    with pytest.raises(ValueError, match="is damaged: not a Parquet file"), files.intact(path, arrow):
        raise pa.ArrowInvalid("not a Parquet file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_called_that(tmp_path, monkeypatch):
    real, full = Path.open, Path("/dev/full")
    monkeypatch.setattr(Path, "open", lambda path, mode="r", **how: real(full if mode == "wb" else path, mode, **how))
    with pytest.raises(OSError, match=r"No space left on device: '.*checkpoint\.safetensors'"):
        store.save_checkpoint(tmp_path, 1, next(simulate(small_network(), 1)).after)
    assert list(tmp_path.iterdir()) == []


def test_tensor_files_are_those_that_safetensors_writes(tmp_path):
    """Byte for byte: every type, in the order of the library; empty, spaced and scalar tensors; any name."""
    path, twin = tmp_path / "own.safetensors", tmp_path / "twin.safetensors"
    tensors = {f"é {name}\n": torch.randn(3, 2).to(dtype) for dtype, name in DTYPES.items()}
    tensors |= {"empty": torch.zeros(0, 3), "one": torch.tensor(3.0), "spaced": torch.randn(4, 4).t()[:, ::2]}
    write_tensors(path, {**tensors, "again": tensors["one"]}, {"lr": 'é"', "t": "1"})
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file({**plain, "again": plain["one"].clone()}, twin, metadata=metadata)
    assert path.read_bytes() == twin.read_bytes()
    read, _ = read_tensors(path, None)
    assert list(read) == [*tensors, "again"]
    assert all(bytes(content_of(read[name])) == bytes(content_of(tensor)) for name, tensor in tensors.items())


def test_a_type_that_tensor_files_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"cannot hold theta: safetensors has no torch.complex128. Convert it"):
        write_tensors(tmp_path / "a.safetensors", {"theta": torch.zeros(2, dtype=torch.complex128)}, {})
    assert list(tmp_path.iterdir()) == []
