import pytest
import torch

from cascadice.pictures.training import LINES_UP_TO, plot


def metrics(nodes, rounds=5, every=2):
    steps = torch.arange(1, nodes + 1) / nodes
    tested = dict.fromkeys(range(0, rounds, every), steps)
    loss, consensus = {t: steps / (t + 1) for t in range(rounds)}, dict.fromkeys(range(rounds), 0.5)
    return {"train_loss": loss, "test_loss": tested, "accuracy": tested, "consensus": consensus}


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_the_suffix_decides_the_format(tmp_path, suffix, start):
    path = tmp_path / f"training{suffix}"
    plot(path, **metrics(3), title="three")
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def lines(tmp_path, rows):
    plot(tmp_path / "a.svg", **rows)
    return (tmp_path / "a.svg").read_text().count("stroke-opacity: 0.35")


def test_each_participant_has_a_line_unless_they_are_too_many(tmp_path):
    assert lines(tmp_path, metrics(8)) == 2 * 8
    assert lines(tmp_path, metrics(LINES_UP_TO)) == 2 * LINES_UP_TO
    assert lines(tmp_path, metrics(LINES_UP_TO + 1)) == 0


def test_one_round_alone_and_no_evaluation_can_be_drawn(tmp_path):
    plot(tmp_path / "one.svg", **metrics(2, rounds=1))
    plot(tmp_path / "unseen.svg", **metrics(2) | {"test_loss": {}, "accuracy": {}})
    plot(tmp_path / "regression.svg", **metrics(2) | {"accuracy": {0: torch.full((2,), torch.nan)}})
    for name in ("unseen", "regression"):
        assert "not evaluated" in (tmp_path / f"{name}.svg").read_text()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .png or .svg; found"):
        plot(tmp_path / "a.gif", **metrics(2))
    with pytest.raises(ValueError, match="at least one round to plot"):
        plot(tmp_path / "a.png", **metrics(2, rounds=0))
    assert not list(tmp_path.iterdir())
