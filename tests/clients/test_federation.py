"""Rounds: who failed is told, ties hold, resuming knows the same run again, noise cannot be taken off."""

from fractions import Fraction

import pytest
import torch
from clients import zoo
from torch import nn

from evenload.clients import SGD, Cohort, Recipe, federate, train
from evenload.clients.algorithms import FedAvgM, FedBuff, PrivateFedAvg
from evenload.clients.values.keys import NOISE, key
from evenload.errors import ConfigError, FormatError

RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4)


def clients(n=4, rows=6):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(rows, 3, generator=g), torch.randint(0, 2, (rows,), generator=g)) for _ in range(n)]


def run(model, data, algorithm=None, rounds=2, recipe=RECIPE, **kwargs):
    return federate(model, data, recipe, algorithm, rounds=rounds, strategy="serial", **kwargs)


def test_who_failed_is_told_with_the_reason():
    data = clients()
    data[1] = (data[1][0], data[1][1] + 7)
    found = run(nn.Linear(3, 2), data, rounds=1)
    assert found.history[0].returned == (0, 2, 3)
    assert list(found.history[0].failed) == [1]
    assert "is out of range" in found.history[0].failed[1]


def test_tied_parameters_stay_tied_through_the_server():
    found = run(zoo.tied, [zoo.tensors(n) for n in (6, 9)], FedAvgM(lr=0.1, momentum=0.9))
    assert torch.equal(found.state["0.weight"], found.state["2.weight"])


def noisy(x, draws):
    return x + 0.1 * draws.uniform(*x.shape)


def test_a_run_with_functions_in_its_recipe_is_known_again(tmp_path):
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, augment=noisy)
    saved = tmp_path / "c.pt"
    run(nn.Linear(3, 2), clients(), recipe=recipe, rounds=1, checkpoint=saved)
    page = torch.load(saved, weights_only=True)
    assert "0x" not in page["mark"]
    assert "test_federation.noisy" in page["mark"]
    assert (
        len(run(nn.Linear(3, 2), clients(), recipe=recipe, rounds=2, checkpoint=saved, resume=True).history)
        == 2
    )


def test_buffers_of_clients_that_all_fail_are_cleared():
    """Two fast clients always fail: they land again and again, but not for ever."""
    data = clients(6)
    for bad in (1, 2):
        data[bad] = (data[bad][0], data[bad][1] + 7)
    rule = Cohort(speeds={0: 1.0, 1: 0.1, 2: 0.1, 3: 1.0, 4: 1.0, 5: 1.0})
    found = run(nn.Linear(3, 2), data, FedBuff(buffer=2, concurrency=6), rounds=40, cohort=rule)
    assert any(r.returned for r in found.history)
    assert len({r.cohort for r in found.history}) > 1


def test_noise_does_not_follow_from_what_is_public():
    private = PrivateFedAvg(clip=1.0, noise=1.0)
    a, b = (run(nn.Linear(3, 2), clients(), private, rounds=1, seed=0) for _ in range(2))
    start = {name: t for name, t in a.state.items() if not torch.equal(t, b.state[name])}
    assert set(start) == set(a.state)
    known = PrivateFedAvg(clip=1.0, noise=1.0, noise_seed=5)
    c, d = (run(lambda: nn.Linear(3, 2), clients(), known, rounds=1, seed=0) for _ in range(2))
    assert all(torch.equal(c.state[name], d.state[name]) for name in c.state)
    assert c.server.memory["noise_seed"] == 5
    assert key(NOISE, 5, 0) != key(NOISE, 6, 0)


def test_what_would_break_a_promise_of_privacy_is_refused():
    with pytest.raises(ConfigError, match="dividing by it would tell who came"):
        run(nn.Linear(3, 2), clients(), PrivateFedAvg(), cohort=Cohort(size=0.5, poisson=True))
    with pytest.raises(ConfigError, match="noise=nan"):
        PrivateFedAvg(noise=float("nan"))
    with pytest.raises(ConfigError, match="running_mean"):
        run(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), clients(), PrivateFedAvg())


def spread_clients():
    """Clients of unequal sizes, so that they end in another order on other workers."""
    g = torch.Generator().manual_seed(1)
    sizes = [3 + 7 * (k % 5) for k in range(12)]
    return [(torch.randn(n, 3, generator=g), torch.randint(0, 2, (n,), generator=g)) for n in sizes]


def test_an_exact_federation_is_the_same_bits_on_any_workers():
    """Oracle: a loop over clients trained one by one, whose states are averaged as exact fractions."""
    data, net, n_rounds = spread_clients(), nn.Linear(3, 2), 3
    state = {name: t.clone() for name, t in net.state_dict().items()}
    n_rows = [len(x) for x, _ in data]
    for at in range(n_rounds):
        trained = train(net, data, RECIPE, strategy="serial", start=state, round=at * 8)
        for name, old in state.items():
            columns = zip(*(r.state[name].flatten().tolist() for r in trained), strict=True)
            sums = [sum(Fraction(x) * n for x, n in zip(one, n_rows, strict=True)) for one in columns]
            mean = torch.tensor([float(one) for one in sums], dtype=torch.float64) / sum(n_rows)
            state[name] = mean.to(old.dtype).view_as(old)
    for strategy in ("serial", "threads*2/eager", "threads*5/eager", "processes*2/eager"):
        found = federate(net, data, RECIPE, rounds=n_rounds, strategy=strategy, exact=True)
        assert all(torch.equal(found.state[name], t) for name, t in state.items()), strategy


def test_a_strategy_whose_bits_go_by_the_workers_is_not_exact(tmp_path):
    for strategy in ("auto", "fused:4", "threads*2/rules:4"):
        with pytest.raises(ConfigError, match="exact=True with strategy"):
            federate(nn.Linear(3, 2), clients(), RECIPE, rounds=1, strategy=strategy, exact=True)
    saved = tmp_path / "c.pt"
    run(nn.Linear(3, 2), clients(), rounds=1, checkpoint=saved)
    with pytest.raises(FormatError, match="another run"):
        run(nn.Linear(3, 2), clients(), checkpoint=saved, resume=True, exact=True)
