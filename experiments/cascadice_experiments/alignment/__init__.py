"""How well do estimates of influence follow the truth in a network that learns?

    python -m cascadice_experiments.alignment                              the MLP, one hop, about a minute
    python -m cascadice_experiments.alignment mlp-16-gelu --every 32       a named setting, changed
    python -m cascadice_experiments.alignment --all --device cuda --json   MLP and CNN, kinked and smooth, up to 4 hops

The paper's alignment setting (CIFAR-10, exponential graph of 16, learning rate 0.1) from shared initial parameters.
Every few rounds, each participant's update gives one point: its true influence against each estimate of it. The
network's test accuracy is printed beside the agreement.
"""
