import os
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from cascadice import topology

ONE_HOP = """\
0.8,0.2,0
0.3,0.6,0.1
0.4,0.4,0.3
"""


@pytest.fixture
def published():
    folder = Path(__file__).parents[2].parent / "shared" / "topologies"
    if not folder.is_dir():
        pytest.skip("the published matrices are not beside this checkout")
    return folder


@pytest.mark.parametrize("nodes", [1, 7, 600])
def test_a_matrix_survives_the_file_bit_for_bit(tmp_path, nodes):
    W = topology.build("erdos-renyi", nodes)(0)
    topology.write_csv(W, tmp_path / "W.csv")
    back = topology.read_csv(tmp_path / "W.csv")
    assert back.layout == W.layout
    assert torch.equal(back.to_dense(), W.to_dense())
    assert [path.name for path in tmp_path.iterdir()] == ["W.csv"]


def test_a_row_that_does_not_sum_to_one_is_refused_unless_normalised(tmp_path):
    path = tmp_path / "W.csv"
    path.write_text(ONE_HOP)
    with pytest.raises(
        ValueError, match=r"W\.csv: W must have rows summing to 1; row 2 sums to 1\.1\. Use .*normalize"
    ):
        topology.read_csv(path)
    W = topology.read_csv(path, normalize=True)
    assert_close(W[2], torch.tensor([4, 4, 3], dtype=torch.float64) / 11)
    assert_close(W[1], torch.tensor([0.3, 0.6, 0.1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("\n \n", "it is empty"),
        ("a,b\n1,0\n", "line 1 must be numbers between commas"),
        ("1,0\n0;1\n", "line 2 must be numbers between commas"),
        ("1,0,\n0,1,\n", "line 1 must be numbers between commas"),
        ("1,0\n1\n", "row 0 has 2 entries, row 1 has 1"),
        ("1,0\n", "W must be square.*found 1 x 2"),
        ("1,0\nnan,1\n", r"W\[1, 0\] is nan"),
        ("\x00\xff", "line 1 must be numbers between commas"),
    ],
)
def test_a_file_that_is_no_matrix_is_named_in_one_line(tmp_path, text, message):
    path = tmp_path / "W.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as error:
        topology.read_csv(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_line_ends_and_spaces_do_not_matter(tmp_path):
    path = tmp_path / "W.csv"
    path.write_bytes(b"\xef\xbb\xbf0.5, 0.5\r\n 0.25 ,0.75\r\n\r\n")
    assert topology.read_csv(path).tolist() == [[0.5, 0.5], [0.25, 0.75]]


def test_a_missing_file_is_a_plain_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        topology.read_csv(tmp_path / "nowhere.csv")


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    (tmp_path / "W.csv").mkdir()
    with pytest.raises(OSError, match=r"W\.csv"):
        topology.write_csv(topology.identity(2), tmp_path / "W.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["W.csv"]


def test_the_published_one_hop_matrix_needs_normalising(published):
    path = published / "cascade_onehop_16.csv"
    with pytest.raises(ValueError, match=r"row 15 sums to 1\.1\."):
        topology.read_csv(path)
    W = topology.read_csv(path, normalize=True)
    out = W.sum(0) - W.diagonal()
    assert set(out.topk(3).indices.tolist()) == {0, 7, 10}
    assert int(out.argmax()) == 0


def test_the_published_multi_hop_matrix_loads_and_is_not_strongly_connected(published):
    W = topology.read_csv(published / "cascade_multihop_16.csv")
    assert W[5, 0] == 0.3
    with pytest.warns(UserWarning, match="not strongly connected"):
        assert not topology.describe(W).strongly_connected


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "W.csv")
    with pytest.raises(ValueError, match=r"W\.csv must be a file; found a folder, a pipe or a device"):
        topology.read_csv(tmp_path / "W.csv")
