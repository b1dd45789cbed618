"""The table holds what the cascade holds, and comes back from disk bit for bit, or not at all."""

import builtins
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from influence import cases
from pyarrow import parquet

from cascadice.engine import simulate
from cascadice.influence import by_sample, evaluate_on, first_order, reverse_gossip, truth, truth_of_samples
from cascadice.influence.cascade import Cascade
from cascadice.influence.tables import (
    TYPES,
    Table,
    concatenate,
    load_array,
    parts,
    read_note,
    read_table,
    save_array,
    table_of,
    table_of_participants,
    table_of_samples,
    write_part,
)

NOTE = {"hops": "1", "kinds": "truth"}


def cascade(value, sources, t=7, kind="truth"):
    return Cascade(kind, t, sources, torch.as_tensor(value, dtype=torch.float64))


def rows(table):
    return list(zip(*(column.tolist() for column in table.columns.values()), strict=True))


def scores(t, values, kind="shares"):
    return table_of_participants(kind, t, torch.tensor(values, dtype=torch.float64))


def same(one, other):
    for name in TYPES:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype == TYPES[name]
        if name == "value":
            mine, theirs = mine.view(np.int64), theirs.view(np.int64)  # bits: NaN and -0.0 too
        assert mine.tolist() == theirs.tolist()


def test_a_row_for_each_entry_that_is_not_zero_and_for_each_direct_effect():
    value = [[[0, 0, 1.5], [0, 0, 0]], [[0, -2.0, 0.5], [0.25, 0, 0]]]
    assert rows(table_of(cascade(value, (2, 0)))) == [
        (7, 2, -1, 0, 2, "truth", 1.5),
        (7, 2, -1, 1, 1, "truth", -2.0),
        (7, 2, -1, 1, 2, "truth", 0.5),
        (7, 0, -1, 0, 0, "truth", 0.0),
        (7, 0, -1, 1, 0, "truth", 0.25),
    ]


def test_the_table_of_a_real_cascade_holds_all_of_it():
    network = cases.small()
    rounds = cases.window(network, 2)
    made = first_order(network, rounds, evaluate_on(network), sources=[3, 1])
    table = table_of(made)
    back = torch.zeros_like(made.value)
    for row in rows(table):
        assert (row[0], row[2], row[5]) == (rounds[0].t, -1, "first order")
        back[row[3], made.sources.index(row[1]), row[4]] = row[6]
    assert torch.equal(back, made.value)
    assert 0 < len(table) < made.value.numel()


def test_a_cascade_of_samples_names_them():
    network = cases.small()
    rounds = cases.window(network, 1)
    made = truth_of_samples(network, rounds, evaluate_on(network), 2, samples=[3, 1])
    with pytest.raises(
        ValueError, match=r"name the samples of the cascade: sample=round.draw.batch\[source, 0, list\("
    ):
        table_of(made)
    drawn = rounds[0].draw.batch[2, 0]
    table = table_of(made, sample=drawn[list(made.samples)].tolist())
    assert set(table.source.tolist()) == {2}
    for s, place in enumerate((3, 1)):
        of_sample = table.select(sample=int(drawn[place]))
        assert float(made.total[s]) == pytest.approx(of_sample.value.sum(), rel=1e-12)
    assert set(table_of(made, sample=5).sample.tolist()) == {5}
    with pytest.raises(ValueError, match=r"one number, or one for each of 2 cases; found 3"):
        table_of(made, sample=[1, 2, 3])


def test_scores_of_participants():
    assert rows(scores(3, [0.5, 0.0])) == [(3, 0, -1, -1, -1, "shares", 0.5), (3, 1, -1, -1, -1, "shares", 0.0)]


def test_scores_of_samples_name_them_by_their_place_in_the_training_data():
    network = cases.small()
    done = list(simulate(network, 2))[-1]
    found = by_sample(network, done, reverse_gossip(network, [done], evaluate_on(network)))
    expected = [
        (1, k, int(done.draw.batch[k, 0, place]), -1, -1, "first order", float(found[k, place]))
        for k in range(network.nodes)
        for place in range(found.shape[1])
    ]
    assert rows(table_of_samples("first order", done, found)) == expected
    with pytest.raises(ValueError, match=r"must be \[participants, samples of the round\]"):
        table_of_samples("first order", done, found[:, 1:])


def test_select_by_value_or_by_any_of_several():
    table = concatenate([scores(0, [1.0, 2.0]), scores(1, [3.0, 4.0], "truth"), scores(2, [5.0, 6.0], "truth")])
    assert table.select(kind="truth").value.tolist() == [3, 4, 5, 6]
    assert table.select(kind="truth", source=1).value.tolist() == [4, 6]
    for several in ([0, 2], (0, 2), {0, 2}, range(0, 3, 2), np.array([0, 2]), torch.tensor([0, 2])):
        assert table.select(round=several).value.tolist() == [1, 2, 5, 6]
    assert table.select(kind={"shares", "first order"}).value.tolist() == [1, 2]
    assert table.select(source=torch.tensor([2.0, 9.0]).argmax()).value.tolist() == [2, 4, 6]
    assert len(table.select(round=[])) == 0
    assert len(table.select()) == len(table) == 6
    with pytest.raises(ValueError, match=r"unknown column 'sauce'\. Did you mean 'source'\?"):
        table.select(sauce=1)


def test_concatenate_nothing_is_an_empty_table():
    empty = concatenate([])
    assert len(empty) == 0
    same(empty, concatenate([empty, empty]))


def test_rows_share_their_kind():
    table = scores(0, [1.0] * 100, kind="a name that is long")
    assert all(kind is table.kind[0] for kind in table.kind)


def test_columns_must_fit():
    with pytest.raises(ValueError, match=r"column 'round' must fit in int32; found 2147483648"):
        scores(2**31, [1.0])
    value = torch.zeros(2**15 + 1, 1, 1)
    value[-1] = 1
    with pytest.raises(ValueError, match=r"column 'hop' must fit in int16; found 32768"):
        table_of(cascade(value, (0,)))
    good = scores(0, [1.0, 2.0]).columns
    with pytest.raises(ValueError, match=r"column 'source' must be int32 of shape \(2,\); found int32 of shape \(1,\)"):
        Table(**{**good, "source": good["source"][:1]})


def test_a_column_of_another_type_is_refused(unchecked):
    good = scores(0, [1.0, 2.0]).columns
    with pytest.raises(ValueError, match=r"column 'value' must be float64 .*; found float32 .*\. Use table_of"):
        Table(**{**good, "value": good["value"].astype(np.float32)})


def test_to_pandas():
    table = concatenate([scores(0, [1.0, 2.0]), scores(1, [3.0, 4.0], "truth")])
    frame = table.to_pandas()
    assert list(frame.columns) == list(TYPES)
    assert [tuple(row) for row in frame.itertuples(index=False)] == rows(table)
    assert frame["hop"].dtype == np.int16
    assert frame.groupby("kind")["value"].sum().to_dict() == {"shares": 3.0, "truth": 7.0}


def test_without_pandas_it_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **options):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"needs pandas, .*: pip install pandas"):
        scores(0, [1.0]).to_pandas()


def test_to_arrow():
    found = scores(4, [1.0, 2.0]).to_arrow()
    assert found.column_names == list(TYPES)
    assert found.schema.field("kind").type == pa.dictionary(pa.int32(), pa.string())
    assert found["value"].to_pylist() == [1.0, 2.0]


numbers = st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True), max_size=6)


@settings(max_examples=25)
@given(
    st.dictionaries(st.integers(0, 2**31 - 1), st.tuples(numbers, st.sampled_from(["truth", "größe, 2"])), min_size=1)
)
def test_round_trip_is_exact(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("influence")
    written = {number: scores(number, values, kind) for number, (values, kind) in content.items()}
    for number, table in written.items():
        write_part(folder, table, number, NOTE)
    assert list(parts(folder)) == sorted(written)
    same(read_table(folder), concatenate(written[number] for number in sorted(written)))


def test_a_folder_of_influence(tmp_path):
    network = cases.small()
    rounds = list(simulate(network, 3))
    jury = evaluate_on(network)
    for done in rounds:
        write_part(tmp_path / "new" / "folder", table_of(truth(network, [done], jury)), done.t, NOTE)
    folder = tmp_path / "new" / "folder"
    names = [f"part-{t:08d}.parquet" for t in range(3)]
    assert sorted(path.name for path in folder.iterdir()) == ["influence.json", *names]
    assert list(parts(str(folder)).values()) == [folder / name for name in names]
    assert read_note(folder) == json.loads((folder / "influence.json").read_text()) == NOTE
    kind = parquet.ParquetFile(folder / names[0]).metadata.row_group(0).column(5)
    assert "RLE_DICTIONARY" in kind.encodings
    same(read_table(folder).select(round=1), table_of(truth(network, rounds[1:2], jury)))


def test_a_part_written_again_takes_the_place_of_the_old(tmp_path):
    write_part(tmp_path, scores(0, [1.0]), 0, NOTE)
    write_part(tmp_path, scores(0, [2.0]), 0, NOTE)
    assert read_table(tmp_path).value.tolist() == [2.0]


def test_other_settings_belong_elsewhere(tmp_path):
    write_part(tmp_path, scores(0, [1.0]), 0, NOTE)
    with pytest.raises(ValueError, match=r"other settings: hops is '1' there, '2' here\. Use another folder"):
        write_part(tmp_path, scores(1, [1.0]), 1, {**NOTE, "hops": "2"})
    with pytest.raises(ValueError, match=r"other settings: kinds is 'truth' there, None here"):
        write_part(tmp_path, scores(1, [1.0]), 1, {"hops": "1"})
    assert list(parts(tmp_path)) == [0]


KILLED = """
import os, sys
from pathlib import Path
from cascadice.influence import tables
import torch
table = tables.table_of_participants("shares", 1, torch.ones(3))
Path.replace = lambda self, target: os._exit(9)
tables.write_part(sys.argv[1], table, 1, {"hops": "1", "kinds": "truth"})
"""


def test_killed_before_the_rename_it_leaves_what_was_there(tmp_path):
    write_part(tmp_path, scores(0, [1.0]), 0, NOTE)
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode == 9
    drafts = list(tmp_path.glob(".tmp-*"))
    assert len(drafts) == 1
    assert list(parts(tmp_path)) == [0]
    assert read_table(tmp_path).value.tolist() == [1.0]
    write_part(tmp_path, scores(2, [2.0]), 2, NOTE)
    assert not drafts[0].exists()
    assert read_table(tmp_path).round.tolist() == [0, 2]


@pytest.mark.parametrize("cut", [0, 4, 60, -1])
def test_a_damaged_part_is_named(tmp_path, cut):
    write_part(tmp_path, scores(0, [1.0]), 0, NOTE)
    path = tmp_path / "part-00000000.parquet"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"part-00000000.parquet is damaged: .*Restore it") as error:
        read_table(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "foreign",
    [
        {"a": [1, 2]},
        {**scores(0, [1.0]).columns, "value": np.zeros(1, dtype=np.float32)},
        scores(0, [1.0]).columns,  # kind as plain strings, all nullable
    ],
)
def test_a_foreign_part_is_named(tmp_path, foreign):
    parquet.write_table(pa.table(foreign), tmp_path / "part-00000003.parquet")
    with pytest.raises(
        ValueError, match=r"part-00000003.parquet must have the columns round, source, .*; found"
    ) as error:
        read_table(tmp_path)
    assert "\n" not in str(error.value)


def test_what_is_not_there_is_said(tmp_path):
    (tmp_path / "part-7.parquet").touch()
    (tmp_path / "part-00000007.csv").touch()
    with pytest.raises(FileNotFoundError, match=r"must hold parts of a table, .*; found none"):
        read_table(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"found none"):
        read_table(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"influence.json does not exist"):
        read_note(tmp_path)
    with pytest.raises(ValueError, match=r"parts are numbered from 0, by round; found -1"):
        write_part(tmp_path, scores(0, [1.0]), -1, NOTE)


def test_a_folder_named_like_a_partition_is_a_folder(tmp_path):
    folder = tmp_path / "seed=3"
    write_part(folder, scores(0, [1.0]), 0, NOTE)
    assert read_table(folder).value.tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_arrays_come_back_bit_for_bit(tmp_path, dtype):
    tensor = torch.arange(-6, 6).reshape(3, 4).to(dtype).T
    note = {"kind": "first order", "format": "a word that the file uses itself"}
    save_array(tmp_path, "all-rounds", tensor, note)
    assert [path.name for path in tmp_path.iterdir()] == ["all-rounds.safetensors"]
    found, said = load_array(tmp_path, "all-rounds")
    assert found.dtype == dtype
    assert torch.equal(found, tensor)
    assert said == note


def test_arrays_that_cannot_be(tmp_path):
    for name in ("../up", "a/b", "", ".tmp-1"):
        with pytest.raises(ValueError, match=r"an array's name must be made of letters"):
            save_array(tmp_path, name, torch.zeros(1), {})
    with pytest.raises(FileNotFoundError, match=r"scores.safetensors does not exist"):
        load_array(tmp_path, "scores")
    save_array(tmp_path, "scores", torch.zeros(3), {})
    (tmp_path / "scores.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.safetensors must hold an array saved as 'other'; found scores"):
        load_array(tmp_path, "other")
    (tmp_path / "bad.safetensors").write_bytes(b"not an array")
    with pytest.raises(ValueError, match=r"bad.safetensors is damaged"):
        load_array(tmp_path, "bad")
