"""A run of the real Flower, watched: the numbers are those of the same federated averaging in cascadice."""

import logging
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cascadice as cd
from cascadice import influence
from cascadice.data import Samples, from_tensors
from cascadice.influence.shares import mean_adjoint

pytest.importorskip("flwr", reason="flwr is not installed: make flower")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM

from cascadice.adapters import flower

CLIENTS, ROUNDS, STEPS, BATCH, LR = 4, 3, 2, 5, 0.3
HELD = torch.tensor([20.0, 10.0, 30.0, 40.0], dtype=torch.float64)  # the weights of FedAvg
CLOSE = {"rtol": 0, "atol": 1e-8}
logging.getLogger("flwr").setLevel(logging.ERROR)


def samples():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(120, 6, generator=draw, dtype=torch.float64)
    return x, (x[:, :3].sum(1) > 0).long()


def plan():
    """Which samples every client steps on, [rounds, clients, steps, batch]."""
    draw = torch.Generator().manual_seed(4)
    return torch.randint(100, (ROUNDS, CLIENTS, STEPS, BATCH), generator=draw)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def with_dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 2)).double()


def client_app(tells=True, momentum=0.0, last=BATCH):
    app, (x, y), batches = ClientApp(), samples(), plan()

    @app.train()
    def train(message, context):
        k, t = context.node_config["partition-id"], message.content["config"]["server-round"] - 1
        own, steps = model(), flower.Steps()
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(own.parameters(), lr=LR, momentum=momentum)
        for index in (*batches[t, k, :-1], batches[t, k, -1, :last]):
            optimizer.zero_grad()
            F.cross_entropy(own(x[index]), y[index]).backward()
            optimizer.step()
            steps.add(x[index], y[index], LR)
        records = {
            "arrays": ArrayRecord(own.state_dict()),
            "metrics": MetricRecord({"num-examples": float(HELD[k]), "votes": k + 1.0}),
        }
        return Message(RecordDict(records | ({"cascadice": steps.record(k)} if tells else {})), reply_to=message)

    return app


def watched(strategy=None, tells=True, rounds=ROUNDS, momentum=0.0, last=BATCH, **options):
    x, y = samples()
    fedavg = FedAvg(fraction_evaluate=0.0) if strategy is None else strategy
    wrapped = flower.Watched(fedavg, model(), F.cross_entropy, Samples(x[100:], y[100:]), **options)
    grid = flower.InProcess(client_app(tells, momentum, last), CLIENTS)
    result = wrapped.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds)
    return wrapped.watch, result


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


HELP = {True: {"optimizer": sgd, "verify": ROUNDS}, False: {}}


@pytest.fixture(scope="module")
def ours():
    """The same run in cascadice: the network, its rounds and its evaluation."""
    (x, y), batches = samples(), plan()
    data = from_tensors(x[:100], y[:100], x[100:], y[100:], classes=2)
    network = cd.network(
        model(), data, mixing=(HELD / HELD.sum()).expand(CLIENTS, -1), batches=lambda t: batches[t], lr=LR,
        init=[model() for _ in range(CLIENTS)], dtype="float64", strategy="loop",
    )  # fmt: skip
    return network, list(cd.simulate(network, ROUNDS)), influence.evaluate_on(network)


def test_without_help_one_hop_and_shares_are_those_of_the_same_run_in_cascadice(ours, one_thread):
    network, rounds, evaluation = ours
    watch, _ = watched(tells=False)
    left_out = torch.stack([influence.truth(network, [done], evaluation).value[1].sum(-1) for done in rounds])
    torch.testing.assert_close(watch.one_hop(), left_out, **CLOSE)
    parts = [mean_adjoint(network, [done], evaluation, 4, direct=False) for done in rounds]
    parts = torch.stack([influence.by_participant(*pair) for pair in zip(rounds, parts, strict=True)])
    torch.testing.assert_close(watch.shares(points=4), parts, **CLOSE)


def test_shares_sum_to_what_the_global_model_gained(one_thread):
    watch, result = watched(tells=False)
    (x, y), final = samples(), model()
    start = F.cross_entropy(final(x[100:]), y[100:]).item()
    final.load_state_dict(result.arrays.to_torch_state_dict())
    gain = F.cross_entropy(final(x[100:]), y[100:]).item() - start
    assert float(watch.shares(points=6).sum()) == pytest.approx(gain, abs=1e-8)


def test_with_help_every_estimator_works_as_on_the_same_run_in_cascadice(ours, one_thread):
    network, rounds, evaluation = ours
    watch, _ = watched(optimizer=sgd, verify=ROUNDS)
    theirs = influence.evaluate_on(watch.network)
    torch.testing.assert_close(watch.rounds[-1].after.theta, rounds[-1].after.theta, **CLOSE)
    for estimate in (influence.truth, influence.first_order):
        there, here = estimate(watch.network, watch.rounds, theirs), estimate(network, rounds, evaluation)
        torch.testing.assert_close(there.value, here.value, **CLOSE)
    there, here = (
        influence.whole_run(*run) for run in ((watch.network, watch.rounds, theirs), (network, rounds, evaluation))
    )
    torch.testing.assert_close(there.by_round, here.by_round, **CLOSE)
    torch.testing.assert_close(there.samples, here.samples, **CLOSE)
    scored = cd.score(watch.network, watch.rounds).participants
    torch.testing.assert_close(
        torch.tensor(scored["influence"]), here.participants.double()[scored["participant"]], **CLOSE
    )
    blind, _ = watched(tells=False)
    torch.testing.assert_close(watch.one_hop(), blind.one_hop(), **CLOSE)


def test_clients_may_step_on_a_smaller_last_batch(one_thread):
    told, blind = (watched(tells=tells, last=2, rounds=2, **more)[0] for tells, more in HELP.items())
    torch.testing.assert_close(told.one_hop(), blind.one_hop(), **CLOSE)
    assert (told.rounds[0].draw.batch >= 0).sum(2).tolist() == [[BATCH, 2]] * CLIENTS


@pytest.mark.parametrize("help_", [False, True])
def test_clients_that_are_not_sampled_have_no_influence(help_, one_thread):
    options = {"optimizer": sgd} if help_ else {}
    fedavg = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    watch, _ = watched(fedavg, tells=True, **options)
    assert ((watch.one_hop() != 0).sum(1) == 2).all()


def test_clients_may_join_later_if_they_are_announced(one_thread):
    (x, y), arrays = samples(), ArrayRecord(model().state_dict())
    for clients, refusal in (
        (CLIENTS, nullcontext()),
        (0, pytest.raises(ValueError, match=r"2 clients, and now there are 4.*min_available_nodes")),
    ):
        fedavg, test = FedAvg(fraction_evaluate=0.0), Samples(x[100:], y[100:])
        late = flower.Watched(fedavg, model(), F.cross_entropy, test, clients=clients)
        first = late.start(flower.InProcess(client_app(), 2), arrays, num_rounds=1)
        with refusal:
            late.start(flower.InProcess(client_app(), CLIENTS), first.arrays, num_rounds=1)
            assert ((late.watch.one_hop() != 0).sum(1) == torch.tensor([2, 4])).all()


def test_a_client_that_answers_with_an_error_has_no_influence_in_that_round(one_thread):
    (x, y), app = samples(), client_app()

    def failing(message, context):
        fails = (context.node_config["partition-id"], message.content["config"]["server-round"]) == (1, 2)
        return Message(Error(code=0, reason="out of memory"), reply_to=message) if fails else app(message, context)

    wrapped = flower.Watched(
        FedAvg(fraction_evaluate=0.0), model(), F.cross_entropy, Samples(x[100:], y[100:]), optimizer=sgd, verify=ROUNDS
    )
    wrapped.start(flower.InProcess(failing, CLIENTS), ArrayRecord(model().state_dict()), num_rounds=ROUNDS)
    assert (wrapped.watch.one_hop() == 0).nonzero().tolist() == [[1, 1]]
    assert wrapped.watch.rounds[1].W[0].tolist() == pytest.approx([20 / 90, 0, 30 / 90, 40 / 90])


def test_clients_weigh_as_the_strategy_says(one_thread):
    watch, _ = watched(FedAvg(fraction_evaluate=0.0, weighted_by_key="votes"), tells=True, rounds=1, optimizer=sgd)
    assert watch.rounds[0].W[2].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_momentum_needs_no_help_for_one_hop(one_thread):
    watch, _ = watched(tells=False, momentum=0.9, rounds=1)
    assert (watch.one_hop() != 0).all()


def test_dropout_is_followed_for_one_hop_only(monkeypatch, one_thread):
    monkeypatch.setitem(globals(), "model", with_dropout)
    watch, _ = watched(tells=False, rounds=1)
    assert (watch.one_hop() != 0).all()
    with pytest.raises(ValueError, match="must run where it is watched"):
        watched(optimizer=sgd, rounds=1)


def test_refusals(one_thread):
    watch, _ = watched(tells=False, rounds=1)
    with pytest.raises(ValueError, match="let clients report their steps"):
        _ = watch.network
    with pytest.raises(ValueError, match=r"client \d must report its steps"):
        watched(tells=False, optimizer=sgd)
    with pytest.raises(ValueError, match=r"must have no state.*this one keeps .*Use SGD without"):
        watched(optimizer=lambda parameters: torch.optim.Adam(parameters))
    with pytest.raises(ValueError, match="replaying the local work of participant 0 must give the same result"):
        watched(optimizer=sgd, momentum=0.9)
    for helping in (False, True):
        more = {"tells": helping, "optimizer": sgd if helping else None}
        with pytest.raises(ValueError, match=r"the new model must be the weighted mean of the clients. models"):
            watched(FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5), **more)
    fresh = flower.Watched(FedAvg(), model(), F.cross_entropy, Samples(*samples()))
    with pytest.raises(ValueError, match="no round has been watched yet"):
        fresh.watch.one_hop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_in_flowers_own_simulation(monkeypatch):
    pickling = pytest.importorskip("ray.cloudpickle", reason="ray is not installed: pip install 'flwr[simulation]'")
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pickling.register_pickle_by_value(sys.modules[__name__])
    (x, y), server = samples(), ServerApp()
    test = Samples(x[100:], y[100:])
    waiting = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS, min_train_nodes=CLIENTS)
    wrapped = flower.Watched(waiting, model(), F.cross_entropy, test, optimizer=sgd)

    @server.main()
    def main(grid, context):
        wrapped.start(grid, ArrayRecord(model().state_dict()), num_rounds=ROUNDS)

    ray = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(server, client_app(), num_supernodes=CLIENTS, backend_config=ray)
    here, _ = watched(optimizer=sgd)
    torch.testing.assert_close(wrapped.watch.one_hop(), here.one_hop(), **CLOSE)
    there, here = (
        influence.whole_run(each.network, each.rounds, influence.evaluate_on(each.network)).by_round
        for each in (wrapped.watch, here)
    )
    torch.testing.assert_close(there, here, **CLOSE)


def test_messages_can_be_pushed_and_pulled():
    grid = flower.InProcess(client_app(), CLIENTS)
    arrays = ArrayRecord(model().state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    keys = grid.push_messages([grid.create_message(content, "train", node, "1") for node in grid.get_node_ids()])
    replies = grid.pull_messages(keys)
    assert [reply.content["cascadice"]["client"] for reply in replies] == list(range(CLIENTS))
    assert grid.pull_messages(keys) == []
    grid.set_run("mine")
    assert grid.run == "mine"
