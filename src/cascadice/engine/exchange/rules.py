"""The mixing rules that need nothing but what was sent; `cascadice.influence.trust.RULES` has these and more."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cascadice.engine.exchange import robust
from cascadice.engine.exchange.cosine_trust import cosine_trust
from cascadice.engine.networks import Network
from cascadice.engine.rounds import MixingRule


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
    "cosine-trust": NamedRule(
        cosine_trust, True, True, "listen to those whose recent updates point the way the receiver's own do"
    ),
    "influence": NamedRule(cosine_trust, True, True, "the former name of cosine-trust"),
    "clipping": NamedRule(lambda _: robust.clipping(), True, False, "self-centred clipping of models that are far off"),
    "krum": NamedRule(lambda _: robust.krum(), True, False, "adopt the model nearest to most of those received"),
    "trimmed-mean": NamedRule(
        lambda _: robust.trimmed_mean(), False, False, "mean of each coordinate without the extreme values"
    ),
}
