"""A ledger keeps what was entered, shows what was changed, and names what it has lost."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from cascadice import files
from cascadice.applications.reward import ledger as ledgers
from cascadice.applications.reward.contributions import Entry
from cascadice.applications.reward.ledger import CHAIN, by_round, enter, ledger_note, read_ledger, totals
from cascadice.influence.tables import ALL

NOTE = {"run": "cafe", "kind": "shares, 1 hop"}


def made_up(t, nodes=3, batch=4):
    draw = torch.Generator().manual_seed(t)
    samples = torch.randn(nodes, batch, generator=draw, dtype=torch.float64)
    return Entry(t, samples.sum(1), samples, torch.randint(20, (nodes, batch), generator=draw))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "ledger"
    enter(path, NOTE, map(made_up, range(5)))
    return path


def test_totals_are_those_of_a_slow_sum(folder):
    entries, ledger = [made_up(t) for t in range(5)], read_ledger(folder)
    assert not ledger.problems
    assert ledger.rounds == [0, 1, 2, 3, 4]
    assert_close(by_round(ledger), torch.stack([entry.participants for entry in entries]), rtol=0, atol=0)
    for node, value in enumerate(totals(ledger, "participant")["value"]):
        assert value == pytest.approx(sum(float(entry.participants[node]) for entry in entries))
    for t, value in enumerate(totals(ledger, "round")["value"]):
        assert value == pytest.approx(float(entries[t].participants.sum()))
    samples = totals(ledger, "sample")
    for sample, uses, value in zip(samples["sample"], samples["entries"], samples["value"], strict=True):
        masks = [entry.draw == sample for entry in entries]
        assert uses == sum(int(mask.sum()) for mask in masks)
        assert value == pytest.approx(sum(float(e.samples[mask].sum()) for e, mask in zip(entries, masks, strict=True)))
    pairs = totals(ledger, "participant", "sample")
    assert pairs["value"].sum() == pytest.approx(totals(ledger)["value"][0])
    assert len(pairs["value"]) == len(set(zip(pairs["participant"], pairs["sample"], strict=True)))


def test_other_programs_can_read_the_parts(folder):
    import pandas as pd

    frame = pd.concat(pd.read_parquet(path) for path in sorted(folder.glob("part-*.parquet")))
    assert list(frame.columns) == ["round", "participant", "sample", "value"]
    whole = frame[frame["sample"] == ALL].groupby("participant")["value"].sum()
    np.testing.assert_allclose(whole, totals(read_ledger(folder), "participant")["value"])


def test_a_setting_at_its_default_is_left_out_of_the_header_and_need_not_be_there(tmp_path):
    usual = {**NOTE, "samples": "false", "eval-samples": "all"}
    enter(tmp_path / "new", usual, [made_up(0)])
    assert json.loads((tmp_path / "new" / CHAIN).read_text().splitlines()[0]) == {
        "format": ledgers.FORMAT,
        "note": NOTE,
    }
    assert read_ledger(tmp_path / "new").note == usual
    for note in (NOTE, usual):
        assert read_ledger(tmp_path / "new", note).rounds == [0]
    with pytest.raises(ValueError, match="of other settings: its samples is 'false', not 'true'"):
        read_ledger(tmp_path / "new", NOTE | {"samples": "true"})


def test_a_column_that_may_be_left_out_is_filled_in_and_others_are_ignored(tmp_path, monkeypatch):
    def older(entry):
        columns = columns_of(entry)
        whole = columns["sample"] == ALL
        kept = {name: column[whole] for name, column in columns.items() if name != "sample"}
        return kept | {"added later": kept["value"]}

    columns_of = ledgers.columns_of
    monkeypatch.setattr(ledgers, "columns_of", older)
    enter(tmp_path, NOTE, map(made_up, range(2)))
    ledger = read_ledger(tmp_path)
    assert set(ledger.rows) == set(ledgers.DTYPES)
    assert_close(by_round(ledger), torch.stack([made_up(t).participants for t in range(2)]), rtol=0, atol=0)


def test_goes_on_where_it_was_and_a_seal_kept_elsewhere_still_fits(folder):
    seal = read_ledger(folder).seal
    enter(folder, NOTE, [made_up(9)])
    assert read_ledger(folder, NOTE, seal).rounds == [0, 1, 2, 3, 4, 9]
    assert read_ledger(folder).seal != seal


def test_a_truncated_part_is_named_and_the_rest_kept(folder):
    path = folder / "part-00000002.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    ledger = read_ledger(folder)
    assert list(ledger.problems) == [2]
    assert ledger.problems[2].startswith("part-00000002.parquet is truncated: ")
    assert ledger.rounds == [0, 1, 3, 4]
    enter(folder, NOTE, [made_up(2)])
    again = read_ledger(folder)
    assert not again.problems
    assert by_round(again).shape == (5, 3)
    assert len(again.chain) == 6  # both entries of round 2 can be seen


def test_a_removed_or_altered_part_is_noticed(folder):
    (folder / "part-00000001.parquet").unlink()
    path = folder / "part-00000003.parquet"
    path.write_bytes(path.read_bytes().replace(b"P", b"Q", 1))
    ledger = read_ledger(folder)
    assert ledger.problems == {
        1: "part-00000001.parquet is missing",
        3: "part-00000003.parquet was altered after it was entered",
    }
    assert ledger.rounds == [0, 2, 4]


def test_a_part_that_contradicts_the_list_of_checksums_is_refused(tmp_path):
    files.keep_checksums(tmp_path)
    for values in (1.0, 2.0):  # the second ledger is whole, but not what was listed
        enter(tmp_path / f"ledger-{values}", NOTE, [made_up(0)._replace(participants=torch.full((3,), values))])
    for path in (tmp_path / "ledger-2.0").iterdir():
        shutil.copy(path, tmp_path / "ledger-1.0")
    with pytest.raises(ValueError, match=r"part-00000000.parquet is damaged: .* another ledger"):
        read_ledger(tmp_path / "ledger-1.0")


@pytest.mark.parametrize("change", ["remove", "alter", "swap"])
def test_an_altered_chain_is_refused(folder, change):
    header, one, two, *rest = (folder / CHAIN).read_text().splitlines()
    other = json.dumps(json.loads(one) | {"round": 7})
    lines = {"remove": [two], "alter": [other, two], "swap": [two, one]}[change]
    (folder / CHAIN).write_text("\n".join([header, *lines, *rest]) + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*chain.jsonl does not follow from those before it"):
        read_ledger(folder)


def test_lines_missing_at_the_end_are_noticed_by_a_seal(folder):
    seal = read_ledger(folder).seal
    lines = (folder / CHAIN).read_text().splitlines()
    (folder / CHAIN).write_text("\n".join(lines[:-1]) + "\n")
    assert read_ledger(folder).rounds == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"lacks the entries sealed by .*: lines were removed from its chain"):
        read_ledger(folder, seal=seal)


def test_another_runs_ledger_is_refused(folder):
    with pytest.raises(ValueError, match="is the ledger of another run: its run is 'cafe', not 'beef'"):
        enter(folder, NOTE | {"run": "beef"}, [made_up(9)])
    with pytest.raises(ValueError, match="is the ledger of other settings: its kind is 'shares, 1 hop', not 'x'"):
        read_ledger(folder, NOTE | {"kind": "x"})
    assert not (folder / "part-00000009.parquet").exists()


def test_a_header_that_was_changed_is_noticed(folder):
    text = (folder / CHAIN).read_text()
    (folder / CHAIN).write_text(text.replace("cafe", "beef", 1))
    with pytest.raises(ValueError, match=r"line 2 of .* does not follow"):
        read_ledger(folder)


@pytest.mark.parametrize("moment", ["before the line", "within the line"])
def test_killed_while_entering_it_goes_on(folder, monkeypatch, moment):
    def killed(chain, entry, end):
        if moment == "within the line":
            with chain.open("a") as file:
                file.write(json.dumps(entry)[:20])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledgers.jsonl, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            enter(folder, NOTE, [made_up(5)])
    assert read_ledger(folder).rounds == [0, 1, 2, 3, 4]
    enter(folder, NOTE, [made_up(5), made_up(6)])
    ledger = read_ledger(folder)
    assert ledger.rounds == [0, 1, 2, 3, 4, 5, 6]
    assert not ledger.problems


def test_what_is_not_a_ledger_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no ledger: there is no chain.jsonl"):
        read_ledger(tmp_path)
    (tmp_path / CHAIN).write_text('{"some": "thing"}\n')
    with pytest.raises(ValueError, match="must begin with a ledger's header of format cascadice-ledger-1"):
        read_ledger(tmp_path)
    (tmp_path / CHAIN).write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"line 1 of .* is not readable"):
        read_ledger(tmp_path)


def test_entries_must_be_numbers(tmp_path):
    with pytest.raises(ValueError, match="contributions must be finite to enter a ledger; found nan in round 3"):
        enter(tmp_path, NOTE, [Entry(3, torch.tensor([0.0, torch.nan]))])


def test_questions_that_cannot_be_answered(tmp_path, folder):
    with pytest.raises(ValueError, match="unknown column 'node'"):
        totals(read_ledger(folder), "node")
    enter(tmp_path / "plain", NOTE, [Entry(0, torch.ones(3))])
    with pytest.raises(ValueError, match=r"has no entries of samples to sum\. Enter some with --samples"):
        totals(read_ledger(tmp_path / "plain"), "sample")


def test_shares_of_a_whole_run_under_their_earlier_name(tmp_path):
    note = {"run": "r", "kind": "whole-run, 3 points, to the end of round 0"}
    enter(tmp_path, note, [Entry(0, torch.ones(2))])
    now = note | {"kind": "whole-run-shares, 3 points, to the end of round 0"}
    assert read_ledger(tmp_path, now).note["kind"] == ledger_note(tmp_path)["kind"] == now["kind"]
