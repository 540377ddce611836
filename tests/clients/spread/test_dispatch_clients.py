"""Trouble in a worker costs no client what it finished, and no other client anything."""

import os
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import EvenloadError, WorkerLost

RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4)


def pair(n=9, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g), torch.randint(0, classes, (n,), generator=g)


def model():
    return nn.Linear(5, 3)


def own_loss(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("said", ["MemoryError: ", "_ArrayMemoryError: Unable to allocate 3 GiB", "boom"])
def test_what_a_worker_says_of_its_memory_is_understood(monkeypatch, said):
    real = ClientDispatcher.dispatch

    def small(self, strategy, *args):
        if strategy.rows > 2:
            raise RuntimeError(said)
        yield from real(self, strategy, *args)

    monkeypatch.setattr(ClientDispatcher, "dispatch", small)
    run = train(model, [pair(seed=k) for k in range(5)], RECIPE, strategy="fused:4")
    assert [r.status for r in run] == ["ok"] * 5
    assert ("went on as inline/fused:2" in run.plan.explain()) == (said != "boom")


@pytest.mark.parametrize("strategy", ["fused:2", "threads*2/fused:2"])
def test_what_ends_a_whole_strategy_loses_no_client(strategy):
    """A label that only the loss refuses, of a client that the check does not see."""
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=own_loss)
    data = [pair(n, seed=n + i) for i, n in enumerate((12, 8, 8, 8, 8, 4))]
    healthy = train(model, data, recipe, strategy="serial")
    data[3] = (data[3][0], data[3][1] + 1000)
    run = train(model, data, recipe, strategy=strategy, on_error="return")
    assert [r.status for r in run] == ["ok", "ok", "ok", "failed", "ok", "ok"]
    assert "the other clients were trained serially" in run.plan.explain()
    assert max(difference(run[i].state, healthy[i].state) for i in (0, 1, 2, 4, 5)) <= 1e-6


@pytest.mark.parametrize(
    "strategy", ["threads*2/fused:2", pytest.param("processes*2/fused:2", marks=pytest.mark.slow)]
)
def test_one_workers_trouble_costs_no_other_worker_what_it_finished(monkeypatch, strategy):
    runs, real = [], ClientDispatcher.dispatch

    def run(self, strategy, traits, tasks, n_workers):
        runs.append((str(strategy), {task.client for task in tasks}))
        yield from real(self, strategy, traits, tasks, n_workers)

    monkeypatch.setattr(ClientDispatcher, "dispatch", run)
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=own_loss)
    data = [pair(n, seed=n + i) for i, n in enumerate((16, 8, 8, 8, 8, 8, 8, 8, 4))]
    data[3] = (data[3][0], data[3][1] + 1000)
    found = train(model, data, recipe, strategy=strategy, on_error="return")
    assert [r.client for r in found.not_ok] == [3]
    again = [clients for name, clients in runs if name == "inline/eager" and clients]
    in_one_group = 2 if strategy.startswith("threads") else 3  # the step's rows; what a group had left
    assert len(again) == 1
    assert 3 in again[0]
    assert len(again[0]) <= in_one_group


@pytest.mark.slow
def test_a_client_that_ends_its_process_fails_alone():
    """It must not be trained here either: that would end everything."""

    def step(net, optimizer, x, y):
        if float(x.max()) > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, step=step)
    data = [pair(8, seed=i) for i in range(7)]
    serial = train(model, data, recipe, strategy="serial")
    data[2] = (data[2][0] + 1000, data[2][1])
    found = train(model, data, recipe, strategy="processes*2/eager", on_error="return")
    assert [r.client for r in found.not_ok] == [2]
    assert isinstance(found[2].error, WorkerLost)
    assert not found.plan.reasons
    assert max(difference(found[i].state, serial[i].state) for i in (0, 1, 3, 4, 5, 6)) == 0


def test_devices_that_are_not_there_are_not_trained_around():
    with pytest.raises(EvenloadError, match="cuda:77"):
        train(model, [pair()], RECIPE, strategy="devices/eager", devices="cuda:77")


@pytest.mark.slow
def test_own_functions_reach_other_processes():
    recipe = Recipe(
        optimizer=SGD(0.1),
        batch_size=4,
        loss=lambda o, y: F.cross_entropy(o, y, reduction="none"),
        augment=lambda x, draws: x + 0.1 * draws.uniform(*x.shape),
    )
    data = [pair(8 + i, seed=i) for i in range(5)]
    serial, spread = (train(model, data, recipe, strategy=s) for s in ("serial", "processes*2/eager"))
    assert not spread.plan.reasons
    assert max(difference(a.state, b.state) for a, b in zip(serial, spread, strict=True)) == 0
