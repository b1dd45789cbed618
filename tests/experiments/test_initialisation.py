"""The study of initial parameters, for one round each."""

import json

from cascadice.runs.config import from_json, to_json
from cascadice_experiments import initialisation


def test_it_falls_back_to_digits(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CASCADICE_DATA", raising=False)
    settings = initialisation.settings

    def shorter(*given):
        return [from_json({**to_json(config), "rounds": 1, "epochs": None}) for config in settings(*given)]

    monkeypatch.setattr(initialisation, "settings", shorter)
    assert initialisation.main(["--json", "--out", "out"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "using digits" in out[0]
    results = json.loads(out[-1])["results"]
    assert [(r["model"], r["init"]) for r in results] == [
        ("mlp", "own"), ("mlp", "shared"), ("cnn", "own"), ("cnn", "shared"),
    ]  # fmt: skip
