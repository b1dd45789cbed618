"""How close does each level of forgetting come to models that never used the data, and at what cost?

    python -m cascadice_experiments.unlearning                    digits, some minutes on two cores
    python -m cascadice_experiments.unlearning --device cuda      CIFAR-10, about a minute
    python -m cascadice_experiments.unlearning --quick            digits, small
    python -m cascadice_experiments.unlearning --kind participant   one participant over all rounds, with baselines

A sample, a batch and a participant are forgotten, over the last 10 rounds and over (nearly) all of them. Networks with
several seeds, in each of which another participant is concerned, train and forget as one fleet. The distance left is 1
for the models as trained and 0 for models replayed without the data. Repaired models are compared with replayed ones
that trained on for as many rounds. A participant is also forgotten as others do it: by gradient ascent at the
participant, and by rolling back. Costs are given in times that of replay.
"""
