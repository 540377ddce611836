"""Clients in CUDA streams: the order of what is asked of CUDA, with a stand-in for it; and on a GPU."""

import threading
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.spread.dispatch_clients import gpu_of, why_no_streams
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.values.strategy import Strategy, n_workers

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2, metrics=("accuracy",))
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
    found = train(precise_net, clients(torch.float64), RECIPE, strategy=f"streams*3/{inner}")
    assert found.plan.strategy == Strategy.parse(f"streams*3/{inner}"), found.plan.explain()
    assert apart(found, train(precise_net, clients(torch.float64), RECIPE, strategy="serial")) <= most
    assert [what for what, thread in calls if thread is threading.main_thread()] == ["make"] * 3
    workers = {thread for _, thread in calls} - {threading.main_thread()}
    assert len(workers) == 3
    for worker in workers:
        of_one = [what for what, thread in calls if thread is worker]
        assert of_one == ["wait", "enter", "leave", "synchronize"]


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
def test_without_a_gpu_the_plan_says_so_and_threads_train():
    assert why_no_streams() is not None
    found = train(net, clients(), RECIPE, strategy="streams*2/eager")
    assert str(found.plan.strategy) == "threads*2/eager"
    assert why_no_streams() in found.plan.explain()
    assert apart(found, train(net, clients(), RECIPE, strategy="serial")) == 0


def test_which_gpu_and_how_many_streams():
    assert gpu_of("cuda:3,1") == "cuda:3"
    assert n_workers(Strategy("streams", workers=7)) == 7
    assert n_workers(Strategy("streams")) == 4
    assert Strategy("streams").grade == "close"  # a GPU rounds in its own way


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA GPU")
@pytest.mark.parametrize("inner", ["eager", "fused:3"])
def test_streams_of_a_gpu_give_the_serial_result(inner):
    found = train(net, clients(n=20), RECIPE, strategy=f"streams*3/{inner}")
    assert found.plan.strategy.outer == "streams", found.plan.explain()
    assert not found.plan.reasons, found.plan.explain()
    assert apart(found, train(net, clients(n=20), RECIPE, strategy="serial")) < 1e-4
