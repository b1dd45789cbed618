"""Networks whose optimizers no setting can say: built again from what is saved with them."""

import pytest
import torch
from influence.own_loops import Loop, batch
from runs.test_saving import COMMANDS, _no_figures, commands, elsewhere, make, mine, own  # noqa: F401 - fixtures

import cascadice as cd
from cascadice.cli import main
from cascadice.runs.folder import read_config
from cascadice.runs.recording import build_recorded

pytestmark = pytest.mark.usefixtures("elsewhere")

WATCHED = {
    "sgd and adam": (None, [(torch.optim.SGD, {}), (torch.optim.Adam, {"betas": (0.8, 0.99)})]),
    "sgd and rmsprop": (0.1, [(torch.optim.SGD, {}), (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.5})]),
    "groups": (None, [(torch.optim.NAdam, {"betas": (0.8, 0.99)}), (torch.optim.SGD, {"momentum": 0.9})]),
}


def in_groups(model):
    """The biases at half the rate and without decay: runs of places in a row that take turns."""
    biases, weights = ([layer.bias for layer in (model[0], model[2])], [layer.weight for layer in (model[0], model[2])])
    return [{"params": biases, "lr": 0.005}, {"params": weights, "weight_decay": 0.1}]


@pytest.mark.parametrize(("clip", "ways"), WATCHED.values(), ids=WATCHED)
def test_a_watched_loop_of_several_optimizers_is_built_again(clip, ways, tmp_path, request):
    loop, W = Loop(own(mine()), lr=0.1, clip=clip), cd.topology.build("ring", 4)(0).float()
    groups = "groups" in request.node.name
    for k, model in enumerate(loop.models):
        kind, options = ways[k % 2]
        loop.optimizers[k] = kind(in_groups(model) if groups else model.parameters(), lr=0.01, **options)
    recorder = loop.recorder()
    for t in range(2):
        with recorder.round(W) as step:
            for k, size in ((0, 4), (0, 2), (1, 3), (2, 4), (3, 4)):  # 0 ends its epoch with a smaller batch
                x, y = (part[:size] for part in batch(loop, k, t))
                step(k, x, y, loop.local(k, x, y))
                for group in loop.optimizers[k].param_groups:
                    group["lr"] *= 0.9
            loop.gossip(W)
    cd.save(recorder.network, recorder.rounds, tmp_path / "run", model=make)
    again = build_recorded(tmp_path / "run", read_config(tmp_path / "run"))
    assert sorted(group.nodes for group in again.groups) == [(0, 2), (1, 3)]
    evaluations = [cd.influence.evaluate_on(each) for each in (recorder.network, again)]
    scores = [
        cd.influence.first_order(network, recorder.rounds, evaluation).total
        for network, evaluation in zip((recorder.network, again), evaluations, strict=True)
    ]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-7)
    assert set(commands(tmp_path / "run", (COMMANDS[2],)).values()) == {0}


def test_an_optimizer_that_nothing_can_build_again_is_said_with_a_remedy(tmp_path, capsys):
    signs = cd.optimizers.Optimizer(lambda theta: {}, lambda g, state, theta, lr: (-lr[..., None] * g.sign(), state))
    network = own(mine(), optimizer=["sgd", "sgd", signs, "sgd"])
    cd.save(network, cd.simulate(network, 1), tmp_path / "run")
    assert main(["detect", str(tmp_path / "run"), "--quiet"]) == 2
    assert "Use the process that saved the network (cd.score, cd.report), or train with one of" in (
        capsys.readouterr().err
    )
