"""What others do to unlearn a participant in federated learning, brought to gossip."""

import torch

from cascadice.applications.forget.idea import Corrected, forget, repair
from cascadice.applications.forget.removals import Removal
from cascadice.engine import Network, Operator, Participants
from cascadice.influence import evaluate_on, own_data
from cascadice_experiments.unlearning.settings import Case, Setting

ASCENT, ROLLBACK = "gradient ascent", "rollback"
STEPS = 10  # of ascent
RADIUS = 1 / 3  # of the ball to project on, in distances from the mean of the others to the initial model


def baselines(network: Network, case: Case, setting: Setting) -> dict[str, Participants]:
    """The models by each baseline, for participants that are forgotten over all rounds.

    Gradient ascent (Halimi et al. 2022): the participant climbs the loss of its own data, in a ball around the mean of
    the others' models, then everyone trains on without it. Rollback: back to the checkpoint half-way, and from there
    on as it was without the participant; what it taught before stays.
    """
    middle = len(case.rounds) // 2
    late = Removal(case.removal.nodes, rounds=range(case.rounds[middle].t, case.rounds[-1].t + 1))
    climbed = ascended(network, case.rounds[-1].after, case.removal.nodes, setting)
    start = Corrected("replay", case.rounds[-1].t + 1, climbed, 0, torch.zeros(0, dtype=torch.int64))
    return {
        ROLLBACK: forget(network, case.rounds[middle:], late).participants,
        ASCENT: climbed,
        f"{ASCENT}, repaired": repair(network, start, case.removal, setting.repairs).participants,
    }


def ascended(network: Network, people: Participants, nodes: tuple[int, ...], setting: Setting) -> Participants:
    """Everybody's models after these participants, one in each network, climbed the loss of their own data."""
    held = min(len(part) for part in network.partition or ())
    own, operator, theta = evaluate_on(network, own_data(network, held)), Operator(network), people.theta.clone()
    for node in nodes:
        first = node // setting.nodes * setting.nodes
        others = [k for k in range(first, first + setting.nodes) if k != node]
        centre = people.theta[others].mean(0)
        radius = RADIUS * (network.initial.theta[node] - centre).norm()
        here = centre
        for _ in range(STEPS):
            at = Participants(here[None], {name: v[[node]] for name, v in people.state.items()}, {})
            _, gradient = operator.gradients(own, at, [node])
            offset = here + setting.lr * gradient[0] - centre
            here = centre + offset * (radius / offset.norm()).clamp(max=1)
        theta[node] = here
    return people._replace(theta=theta)
