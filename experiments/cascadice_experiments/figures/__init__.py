"""The figures of the paper, and some beyond it, for `cascadice reproduce`.

`registry.py` lists them by name. A figure is a plan (plain data), a measurement of it, and a picture of what was
measured (`figure.py`); `reproduction.py` makes them and keeps what is measured.

| figures | measured in | drawn in |
|---|---|---|
| `align-…` | `alignment_plots.py` | `alignment_picture.py` |
| `beyond-hops`, `-optimizers`, `-changing-links`, `-language` | `alignment_extensions.py` | the same |
| `anomalies-…` | `anomaly_bars.py` | `anomaly_bars.py` |
| `servers`, `cascade-network`, `ripples-network` | `networks.py` | `network_pictures.py` |
| `cascade-mlp`, `cascade-resnet` | `one_hop_cascades.py` | `network_pictures.py` |
| `ripples` | `ripples.py` | `network_pictures.py` |
| `beyond-mislabelled`, `beyond-cost` | `mislabelled_samples.py`, `influence_cost.py` | the same files |
"""
