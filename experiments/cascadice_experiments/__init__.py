"""The paper's figures and the studies behind the documentation, measured with cascadice's public API alone.

| command | question |
|---|---|
| `cascadice reproduce` | the figures of the paper, and some beyond it (`figures/`) |
| `python -m cascadice_experiments.alignment` | how closely do the estimates follow the true influence? |
| `python -m cascadice_experiments.anomalies` | how reliably do neighbours tell attackers from honest participants? |
| `python -m cascadice_experiments.collaboration` | what does a participant gain by choosing whom to average with? |
| `python -m cascadice_experiments.incentives` | does the ledger pay participants what their data contributed? |
| `python -m cascadice_experiments.unlearning` | how close does forgetting come to models that never used the data? |
| `python -m cascadice_experiments.initialisation` | do networks learn from own and from shared initial parameters? |

A study is a folder: `settings.py` (what is compared), `measure.py`, `picture.py`, and `__main__.py`, its command.
Each prints its table; with `--out DIR` it also writes `result.json`, the points as Parquet and a picture.
"""
