"""The mixing rules that are compared, and how several of them run in one fleet."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice import seeds
from cascadice.engine import Draw, MixingRule, Network, Participants, mix
from cascadice.engine.exchange import robust
from cascadice.engine.exchange.cosine_trust import cosine_trust
from cascadice.engine.exchange.geometry import neighbours
from cascadice.influence.trust import proximal_trust, whole_run_trust
from cascadice_experiments.collaboration.settings import GROUPS, Setting

NOISE = 1e-3  # variance of what noise senders add


def rules_of(setting: Setting, together: Network, strangers: Sequence[int], every: int = 0) -> dict[str, MixingRule]:
    """The rules by name, for a fleet; robust rules are told the fraction of attackers.

    Whole-run trust costs many trainings; it is among them where `every`, the rounds between its sweeps, is not 0.
    """
    uniform: dict[str, MixingRule] = {"uniform": lambda draw, before, half: draw.W}
    by_trust: dict[str, MixingRule] = {}
    for name, make in (("cosine trust", cosine_trust), ("proximal trust", proximal_trust)):
        by_trust[f"{name}, own links"] = make(together, explore=False)
        by_trust[name] = make(together)
    if every:
        by_trust["whole-run trust"] = whole_run_trust(together, every=every)
    if setting.attack == GROUPS:
        group = torch.zeros(together.nodes, dtype=torch.int64).index_fill_(0, torch.tensor(strangers), 1)
        return {**uniform, "alone": robust.alone, **by_trust, "oracle": robust.within(group)}
    share = setting.fraction or 0.25
    by_statistics = {
        "trimmed mean": robust.trimmed_mean(share),
        "clipping": robust.clipping(share),
        "krum": robust.krum(share),
    }
    return {**uniform, **by_statistics, **by_trust, "oracle": robust.without(strangers)}


def side_by_side(rules: Sequence[MixingRule], size: int) -> MixingRule:
    """A rule that mixes the first `size` participants by the first rule, the next `size` by the second, and so on."""

    def rule(draw: Draw, before: Participants, half: Participants) -> Participants:
        mixed = []
        for i, one in enumerate(rules):
            rows = slice(i * size, (i + 1) * size)
            its_before, its_half = tree_map(lambda leaf, rows=rows: leaf[rows], (before, half))
            mixed.append(_mixed(one(_part_of(draw, rows), its_before, its_half), its_half))
        together: Participants = tree_map(lambda *leaves: torch.cat(leaves), *mixed)
        return together._replace(state=half.state)

    return rule


def _part_of(draw: Draw, rows: slice) -> Draw:
    """What was drawn for these participants."""
    lr = draw.lr[rows] if isinstance(draw.lr, Tensor) else draw.lr
    conduct = (draw.conduct[0][rows], draw.conduct[1][rows]) if draw.conduct else ()
    return draw._replace(W=draw.W[rows, rows], batch=draw.batch[rows], lr=lr, conduct=conduct)


def with_noise(rule: MixingRule, senders: Sequence[int], seed: int) -> MixingRule:
    """The rule, after these participants have sent noise; drawn on the device, because they are hundreds."""

    def noisy(draw: Draw, before: Participants, half: Participants) -> Tensor | Participants:
        generator = torch.Generator(half.theta.device).manual_seed(seeds.derive(seed, "noise senders", draw.t))
        shape = (len(senders), half.theta.shape[1])
        noise = torch.randn(shape, generator=generator, device=half.theta.device)
        rows = torch.tensor(senders, device=half.theta.device)
        sent = half._replace(theta=half.theta.index_add(0, rows, NOISE**0.5 * noise))
        return _mixed(rule(draw, before, sent), sent)

    return noisy


def with_mimicry(rule: MixingRule, mimics: Sequence[int]) -> MixingRule:
    """The rule, after these participants have hidden their updates in a copy of what their neighbours do.

    What they send is Δ' ∝ Δ/‖Δ‖ + m/‖m‖, with m the mean update of those they hear and Δ their own, of mirrored labels;
    twice as large as m, which is within the bound of every trust rule.
    """

    def mimicked(draw: Draw, before: Participants, half: Participants) -> Tensor | Participants:
        rows = torch.tensor(mimics, device=half.theta.device)
        update = half.theta - before.theta
        heard = neighbours(draw.W)[rows.cpu()].to(update)
        copied = heard @ update / heard.sum(1, keepdim=True).clamp(min=1)
        size = copied.norm(dim=1, keepdim=True)
        hidden = torch.nn.functional.normalize(update[rows]) + torch.nn.functional.normalize(copied)
        theta = half.theta.index_copy(0, rows, before.theta[rows] + 2 * size * torch.nn.functional.normalize(hidden))
        sent = half._replace(theta=theta)
        return _mixed(rule(draw, before, sent), sent)

    return mimicked


def _mixed(result: Tensor | Participants, sent: Participants) -> Participants:
    """What everybody has after a rule that returned a W or the mixture itself."""
    return result if isinstance(result, Participants) else mix(result, sent)
