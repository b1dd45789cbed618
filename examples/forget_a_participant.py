"""Take a participant with wrong labels out of everyone's model: exactly, by replay, and by estimates.

Prints the mean test loss and accuracy of the seven others before and after, and how far each level of forgetting is
from models that never used the participant's updates (1: as trained, 0: the same); then the same for one sample.
"""

import cascadice as cd
from cascadice.applications.forget.idea import LEVELS, Removal, forget
from cascadice.applications.forget.traces import distance

BAD, ROUNDS = 2, 30
data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,), activation="gelu")
wrong_labels = cd.Corruption("flip-labels", (BAD,), strength=0.9)
network = cd.network(model, data, nodes=8, mixing="exponential", batch_size=32, lr=0.2, corruptions=[wrong_labels])
rounds = list(cd.simulate(network, ROUNDS))
trained = rounds[-1].after


def show(name: str, models: cd.Participants, left: float) -> None:
    """Print one line about these models, without the bad participant's."""
    metrics = cd.evaluate(network, models)
    others = [k for k in range(network.nodes) if k != BAD]
    loss, accuracy = metrics.loss[others].mean(), metrics.accuracy[others].mean()
    print(f"{name:16} test loss {loss:.3f}, accuracy {accuracy:.3f}, distance left {left:.3f}")


def compare(removal: Removal) -> None:
    """Forget it by every level."""
    exact = forget(network, rounds, removal, "replay").participants
    show("as trained", trained, 1.0)
    for level in LEVELS:
        models = forget(network, rounds, removal, level).participants
        show(level, models, distance(models, trained, exact))


print(f"participant {BAD}")
compare(Removal(nodes=(BAD,)))
sample = int(rounds[0].draw.batch[0, 0, 0])
print(f"sample {sample}")
compare(Removal(samples=(sample,)))
print("Replay is exact and costs less than a good estimate; gossip alone costs almost nothing and is far off.")
