from pathlib import Path

import pytest
import torch

from cascadice.pictures.partition import plot


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize(("nodes", "classes"), [(1, 1), (16, 10), (100, 200)])
def test_a_picture_is_written_and_nothing_else(tmp_path: Path, nodes: int, classes: int, suffix: str) -> None:
    counts = torch.randint(50, (nodes, classes), generator=torch.Generator().manual_seed(0))
    plot(counts, tmp_path / f"held.{suffix}", [f"class {c}" for c in range(classes)])
    assert [p.name for p in tmp_path.iterdir()] == [f"held.{suffix}"]
    content = (tmp_path / f"held.{suffix}").read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in content


def test_every_column_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found 3 columns and 2 names"):
        plot(torch.ones(2, 3, dtype=torch.int64), tmp_path / "held.png", ["a", "b"])
    assert list(tmp_path.iterdir()) == []
