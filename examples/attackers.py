"""Participants with bad data, and participants that misbehave.

Prints the mean test accuracy of the honest participants without attackers and with each kind of them. Participants
0 and 1 of 8 misbehave, from round 20 on.
"""

import cascadice as cd

NODES, BAD, LATER = 8, (0, 1), range(20, 10**9)
data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,))


def honest_accuracy(*attacks: cd.Corruption | cd.Behaviour) -> float:
    """Mean test accuracy of everybody else after 80 rounds on the exponential graph."""
    network = cd.network(
        model,
        data,
        nodes=NODES,
        batch_size=16,
        lr=0.2,
        corruptions=[a for a in attacks if isinstance(a, cd.Corruption)],
        behaviours=[a for a in attacks if isinstance(a, cd.Behaviour)],
    )
    *_, last = cd.simulate(network, 80, window=0)
    return float(cd.evaluate(network, last.after).accuracy[len(BAD) :].mean())


print(f"{'nobody':32} {honest_accuracy():.3f}")
for attack in (
    cd.Corruption("permute-labels", BAD, LATER),
    cd.Corruption("flip-labels", BAD, LATER, strength=0.8),
    cd.Corruption("noise", BAD, LATER, strength=100.0),
    cd.Behaviour("free-rider", BAD, LATER),
    cd.Behaviour("noise-sender", BAD, LATER, strength=1e-2),
    cd.Behaviour("sign-flipper", BAD, LATER),
    cd.Behaviour("absent", BAD, LATER),
):
    kind = "data" if isinstance(attack, cd.Corruption) else "conduct"
    print(f"{kind:8} {attack.kind:23} {honest_accuracy(attack):.3f}")
print("Plain averaging trusts everybody: what two participants send reaches all.")
