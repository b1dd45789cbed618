"""What does a participant gain by choosing whom to average with?

Among attackers of four kinds, and between two groups with different goals.

    python -m cascadice_experiments.collaboration --device cuda --out out/collaboration    all settings, minutes
    python -m cascadice_experiments.collaboration --quick                                  three small ones, a minute

Every rule trains the same networks: the same data, batches, initial parameters, graph and attackers, at random places.
All rules and seeds of a setting train side by side as one fleet. Accuracy is that of the honest participants on the
test data; in the setting with two groups, that of everyone on test data with its own group's labels.
"""
