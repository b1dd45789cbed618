"""A participant with bad labels is taken out of everybody's model: exactly, by replay, and by estimates.

Prints the mean test loss and accuracy of the seven others before and after, and how far each way of forgetting is from
models that never heard of the participant (1: as trained, 0: the same), then the same for a single sample.
"""

import cascadice as cd
from cascadice.applications.forget.idea import LEVELS, Removal, distance, forget

LIAR, ROUNDS = 2, 30
data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,), activation="gelu")
lies = cd.Corruption("flip-labels", (LIAR,), strength=0.9)
network = cd.network(model, data, nodes=8, mixing="exponential", batch_size=32, lr=0.2, corruptions=[lies])
rounds = list(cd.simulate(network, ROUNDS))
trained = rounds[-1].after


def show(name: str, models: cd.Participants, left: float) -> None:
    """One line about these models, the liar's own left out."""
    judged = cd.evaluate(network, models)
    others = [k for k in range(network.nodes) if k != LIAR]
    loss, accuracy = judged.loss[others].mean(), judged.accuracy[others].mean()
    print(f"{name:16} test loss {loss:.3f}, accuracy {accuracy:.3f}, distance left {left:.3f}")


def compare(what: Removal) -> None:
    """Forget by every level."""
    exact = forget(network, rounds, what, "replay").participants
    show("as trained", trained, 1.0)
    for level in LEVELS:
        models = forget(network, rounds, what, level).participants
        show(level, models, distance(models, trained, exact))


print(f"participant {LIAR}")
compare(Removal(nodes=(LIAR,)))
sample = int(rounds[0].draw.batch[0, 0, 0])
print(f"sample {sample}")
compare(Removal(samples=(sample,)))
print("Replay is exact and costs less than an estimate that is good; gossip alone costs next to nothing, and shows it.")
