"""What does a participant gain by choosing whom to average with?

Among attackers of four kinds and two that know the rules, and between two groups with different goals.

    python -m cascadice_experiments.collaboration --device cuda --out out/collaboration    all settings, minutes
    python -m cascadice_experiments.collaboration --quick                                  five small ones, a minute
    python -m cascadice_experiments.collaboration --digits --quick --seeds 5 --whole-run 9   with whole-run trust
    python -m cascadice_experiments.collaboration noise-40-random-regular                  some of the settings, by name

Every rule trains the same networks: the same data, batches, initial parameters, graph and attackers, at random places.
All rules and seeds of a setting train side by side as one fleet. Accuracy is that of the honest participants on the
test data; in the setting with two groups, that of everyone on test data with its own group's labels.
"""
