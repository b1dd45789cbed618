"""Which influence predicts retraining?

Networks are retrained without random participants or samples, and without each participant; each estimate's sum over
what was kept is compared with the mean test loss of the final models (LDS: Spearman over subsets), over five seeds.

    python -m cascadice_experiments.retraining --quick               digits, about two minutes on two cores
    python -m cascadice_experiments.retraining --device cuda         CIFAR-10, all cases
    python -m cascadice_experiments.retraining --device cuda --case mlp,adam --out results
"""
