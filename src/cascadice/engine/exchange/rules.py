"""The mixing rules that a run's configuration can name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cascadice.engine.exchange import robust
from cascadice.engine.exchange.influence_aware import influence_aware
from cascadice.engine.networks import Network
from cascadice.engine.rounds import MixingRule
from cascadice.names import lookup


class NamedRule(NamedTuple):
    """A mixing rule that can be chosen by name.

    Attributes:
        make: Makes the rule for a run of this network.
        averages: Whether it returns a W; otherwise it returns the mixed parameters.
        remembers: Whether it carries knowledge from round to round, which a checkpoint does not hold.
        description: What `cascadice list rules` says of it.
    """

    make: Callable[[Network], MixingRule]
    averages: bool
    remembers: bool
    description: str


RULES: Mapping[str, NamedRule] = {
    "influence": NamedRule(
        influence_aware, True, True, "listen to those whose updates help on the receiver's own data"
    ),
    "clipping": NamedRule(lambda _: robust.clipping(), True, False, "self-centred clipping of models that are far off"),
    "krum": NamedRule(lambda _: robust.krum(), True, False, "adopt the model nearest to most of those received"),
    "trimmed-mean": NamedRule(
        lambda _: robust.trimmed_mean(), False, False, "mean of each coordinate without the extreme values"
    ),
}


def build(name: str, network: Network) -> MixingRule:
    """Make the named rule for a run of this network; an unknown name raises ValueError and lists the known ones."""
    return lookup(RULES, name, "rule").make(network)
