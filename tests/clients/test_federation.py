"""Rounds: who failed is told, ties hold, resuming knows the same run again, noise cannot be taken off."""

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Cohort, Recipe, federate
from evenload.clients.algorithms import FedAvgM, FedBuff, PrivateFedAvg
from evenload.clients.values.keys import NOISE, key
from evenload.errors import ConfigError

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


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def test_tied_parameters_stay_tied_through_the_server():
    found = run(Tied, clients(), FedAvgM(lr=0.1, momentum=0.9))
    assert torch.equal(found.state["a.weight"], found.state["b.weight"])


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


def test_empty_poisson_cohorts_meet_a_deadline():
    rule = Cohort(size=1e-9, poisson=True, deadline_s=1.0)
    assert run(nn.Linear(3, 2), clients(), rounds=1, cohort=rule).history[0].cohort == ()
