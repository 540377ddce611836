"""Trouble in a worker costs no client what it finished, and no other client anything."""

import os
import signal
import threading
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from clients.linear_clients import RECIPE, model, own_loss, pair
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.spread.dispatch_clients import ClientDispatcher, gpu_of, why_no_streams
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.values.strategy import Strategy, n_workers
from evenload.errors import EvenloadError, WorkerLost


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
    healthy = train(model, data, recipe, strategy="serial")
    runs.clear()
    data[3] = (data[3][0], data[3][1] + 1000)  # a label that only the loss refuses
    found = train(model, data, recipe, strategy=strategy, on_error="return")
    assert [r.client for r in found.not_ok] == [3]
    assert "the other clients were trained serially" in found.plan.explain()
    assert (
        max(difference(a.state, b.state) for a, b in zip(found, healthy, strict=True) if a.client != 3)
        <= 1e-6
    )
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


LONG = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2, metrics=("accuracy",))
HAS_GPU = torch.cuda.is_available()


def net():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def precise_net():
    return net().double()


def clients(dtype=torch.float32, n=7):
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(m, 5, generator=g).to(dtype), torch.randint(0, 3, (m,), generator=g))
        for m in range(6, 6 + 2 * n, 2)
    ]


def apart(a, b):
    return max(difference(x.state, y.state) for x, y in zip(a, b, strict=True))


@pytest.fixture
def calls(monkeypatch):
    """What CUDA is asked for, in order, with the thread that asks; the "GPU" is the CPU."""
    made = []

    def note(what):
        made.append((what, threading.current_thread()))

    class Stream:
        def __init__(self, device):
            assert device == "cpu"
            note("make")

        def wait_stream(self, other):
            assert other == "default"
            note("wait")

        def synchronize(self):
            note("synchronize")

    @contextmanager
    def stream(own):
        assert isinstance(own, Stream)
        note("enter")
        yield
        note("leave")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.Stream", Stream)
    monkeypatch.setattr("torch.cuda.stream", stream)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: "default")
    monkeypatch.setattr("evenload.clients.spread.dispatch_clients.gpu_of", lambda devices: "cpu")
    return made


@pytest.mark.parametrize(("inner", "most"), [("eager", 0.0), ("fused:2", 1e-11)])
def test_each_worker_keeps_to_its_own_stream(calls, inner, most):
    """In float64: batches of two rows through BatchNorm make up to 1e-4 of float32's rounding."""
    found = train(precise_net, clients(torch.float64), LONG, strategy=f"streams*3/{inner}")
    assert found.plan.strategy == Strategy.parse(f"streams*3/{inner}"), found.plan.explain()
    assert apart(found, train(precise_net, clients(torch.float64), LONG, strategy="serial")) <= most
    assert [what for what, thread in calls if thread is threading.main_thread()] == ["make"] * 3
    workers = {thread for _, thread in calls} - {threading.main_thread()}
    assert len(workers) == 3
    for worker in workers:
        of_one = [what for what, thread in calls if thread is worker]
        assert of_one == ["wait", "enter", "leave", "synchronize"]


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
def test_without_a_gpu_the_plan_says_so_and_threads_train():
    assert why_no_streams() is not None
    found = train(net, clients(), LONG, strategy="streams*2/eager")
    assert str(found.plan.strategy) == "threads*2/eager"
    assert why_no_streams() in found.plan.explain()
    assert apart(found, train(net, clients(), LONG, strategy="serial")) == 0


def test_which_gpu_and_how_many_streams():
    assert gpu_of("cuda:3,1") == "cuda:3"
    assert n_workers(Strategy("streams", workers=7)) == 7
    assert n_workers(Strategy("streams")) == 4
    assert Strategy("streams").grade == "close"  # a GPU rounds in its own way


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA GPU")
@pytest.mark.parametrize("inner", ["eager", "fused:3"])
def test_streams_of_a_gpu_give_the_serial_result(inner):
    found = train(net, clients(n=20), LONG, strategy=f"streams*3/{inner}")
    assert found.plan.strategy.outer == "streams", found.plan.explain()
    assert not found.plan.reasons, found.plan.explain()
    assert apart(found, train(net, clients(n=20), LONG, strategy="serial")) < 1e-4
