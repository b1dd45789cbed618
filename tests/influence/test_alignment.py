"""The alignment experiment: its figures mean what they say, and path integrals follow the truth best."""

import json

import pytest
import torch

from cascadice.experiments import alignment


def test_agreement():
    true = torch.tensor([1.0, 2.0, 3.0, -4.0], dtype=torch.float64)
    assert alignment.agreement(true, 2 * true) == pytest.approx({"pearson": 1.0, "relative_rmse": 1.0})
    assert alignment.agreement(true, -true)["pearson"] == pytest.approx(-1.0)


def test_on_digits(monkeypatch, capsys):
    monkeypatch.setattr(alignment, "find", lambda root: ("digits", None))
    assert alignment.main(["--hops", "2", "--every", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["points"] == 32
    assert 0.3 < found["test_accuracy"] < 1
    first, two = (found[name]["relative_rmse"] for name in ("first order", "path-integrated, 2 points"))
    assert two < first / 5
    assert found["path-integrated, 2 points"]["pearson"] > 0.99
