"""The former names of `cosine_trust`, for code that was written with them."""

from cascadice.engine.exchange.cosine_trust import TrustRule as InfluenceAware
from cascadice.engine.exchange.cosine_trust import cosine_trust as influence_aware

__all__ = ["InfluenceAware", "influence_aware"]
