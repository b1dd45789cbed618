"""How reliably do neighbours tell attackers from honest participants?

Influence and its factors, against the scores that people use instead.

    python -m cascadice_experiments.anomalies --quick                       a few settings, under a minute
    python -m cascadice_experiments.anomalies --device cuda --out out/anomalies
    python -m cascadice_experiments.anomalies flip-16-0.1 honest-128-0.1    some of the settings, by name
    python -m cascadice_experiments.anomalies --digits --places 1           all settings on digits, minutes on a CPU
    python -m cascadice_experiments.anomalies --model cnn --device cuda     CNNs instead of MLPs

The paper's nine settings: CIFAR-10, 32 participants on an exponential graph, MLPs from shared parameters, 512 samples
each, 5 epochs. Each network has one attacker, at one of 8 places; the networks train side by side. A point is what an
honest receiver thinks of one in-neighbour. Every score is accumulated over rounds in the same robust way, and the area
under the ROC curve (AUROC) says how often the attacker ranks above an honest neighbour. An attack in a single batch is
judged in its round alone. Networks without attackers, on similar and on dissimilar data, show how often honest
participants are flagged. Last comes the ablation: each signal left out, and each score alone.
"""
