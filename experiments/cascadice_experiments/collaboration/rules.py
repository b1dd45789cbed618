"""The mixing rules that are compared, and how several of them run in one fleet."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice import seeds
from cascadice.engine import Draw, MixingRule, Network, Participants, mix
from cascadice.engine.exchange import robust
from cascadice.engine.exchange.influence_aware import influence_aware
from cascadice_experiments.collaboration.settings import GROUPS, Setting

NOISE = 1e-3  # variance of what noise senders add


def rules_of(setting: Setting, together: Network, strangers: Sequence[int], count: int) -> dict[str, MixingRule]:
    """The rules by name, for a fleet of `count` networks; robust rules are told the fraction of attackers."""
    own, exploring = (influence_aware(together, explore=explore, networks=count) for explore in (False, True))
    uniform: dict[str, MixingRule] = {"uniform": lambda draw, before, half: draw.W}
    by_influence: dict[str, MixingRule] = {"influence, own links": own, "influence": exploring}
    if setting.attack == GROUPS:
        group = torch.zeros(together.nodes, dtype=torch.int64).index_fill_(0, torch.tensor(strangers), 1)
        return {**uniform, "alone": robust.alone, **by_influence, "oracle": robust.within(group)}
    share = setting.fraction or 0.25
    by_statistics = {
        "trimmed mean": robust.trimmed_mean(share),
        "clipping": robust.clipping(share),
        "krum": robust.krum(share),
    }
    return {**uniform, **by_statistics, **by_influence, "oracle": robust.without(strangers)}


def side_by_side(rules: Sequence[MixingRule], size: int) -> MixingRule:
    """A rule that mixes the first `size` participants by the first rule, the next `size` by the second, and so on."""

    def rule(draw: Draw, before: Participants, half: Participants) -> Participants:
        mixed = []
        for i, one in enumerate(rules):
            rows = slice(i * size, (i + 1) * size)
            its_before, its_half = tree_map(lambda leaf, rows=rows: leaf[rows], (before, half))
            result = one(draw._replace(W=draw.W[rows, rows]), its_before, its_half)
            mixed.append(result if isinstance(result, Participants) else mix(result, its_half))
        together: Participants = tree_map(lambda *leaves: torch.cat(leaves), *mixed)
        return together._replace(state=half.state)

    return rule


def with_noise(rule: MixingRule, senders: Sequence[int], seed: int) -> MixingRule:
    """The rule, after these participants have sent noise; drawn on the device, because they are hundreds."""

    def noisy(draw: Draw, before: Participants, half: Participants) -> Tensor | Participants:
        generator = torch.Generator(half.theta.device).manual_seed(seeds.derive(seed, "noise senders", draw.t))
        shape = (len(senders), half.theta.shape[1])
        noise = torch.randn(shape, generator=generator, device=half.theta.device)
        half.theta[torch.tensor(senders)] += NOISE**0.5 * noise
        return rule(draw, before, half)

    return noisy
