"""Does the ledger pay participants what their data contributed?

Against exact Shapley values, against leaving participants out, and with one participant that cheats, or that alone
holds a class.

    python -m cascadice_experiments.incentives                      digits, a few minutes on two cores
    python -m cascadice_experiments.incentives --quick              under a minute
    python -m cascadice_experiments.incentives --device cuda        CIFAR-10

Participants differ in quality: few samples, some or most labels wrong, two classes only. The game: a member of a
coalition trains; the others do no local work but still gossip, as free-riders do. Who hears whom stays the same, so the
value of data is not mixed up with the value of links. The loss of a coalition is the mean test loss of all final
models. Exact Shapley values need every coalition of 6 trained: 64 networks, side by side. A ledger knows the one run
in which everyone takes part; whole-run shares play it again at smaller learning rates. Misplaced is the part of the
budget that a ledger pays to others than the truth would. Equals, honest participants with as much data of the same
kind, should be paid the same.
"""
