"""Compiled steps are made once for all threads, and are the same steps in each."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.fused import engine
from evenload.clients.fused.engine import CompiledSteps
from evenload.clients.fused.speedups import PLAIN, find_speedups
from evenload.clients.spread.equivalence_check import difference

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4)
PATIENCE_S = 60.0  # for what comes at once, on a machine that is not starved


def net():
    """A model whose step has few kernels: both tests that compile it share them."""
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh())


def clients(sizes):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 3, generator=g), torch.randint(0, 2, (n,), generator=g)) for n in sizes]


@pytest.fixture
def compiled(monkeypatch):
    """Numbers of rows that were compiled for, as it happens."""
    rows, real = [], engine.compile_step

    def counted(traced, clients, *args):
        rows.append(len(clients.alive))
        return real(traced, clients, *args)

    monkeypatch.setattr(engine, "compile_step", counted)
    return rows


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's compiler warns of torch
def test_the_threads_of_a_trainer_share_what_is_compiled_and_train_as_serially(compiled):
    model, data, runs = net(), clients([8] * 12), {}
    for strategy in ("serial", "threads*3/fused-compiled:2"):
        with Trainer(model, strategy=strategy, seed=1) as trainer:
            runs[strategy] = [trainer.train(data, RECIPE, round=round) for round in range(6)]
    assert len(compiled) == len(set(compiled)) > 0
    for theirs, ours in zip(*runs.values(), strict=True):
        assert max(difference(a.state, b.state) for a, b in zip(theirs, ours, strict=True)) <= 1e-6


@pytest.mark.usefixtures("compiler")
def test_without_the_room_of_speedups_steps_are_compiled_as_they_were_traced(monkeypatch):
    room = "evenload.clients.fused.inductor"
    for name in [name for name in sys.modules if name.startswith(room)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, room, None)
    assert find_speedups() is PLAIN
    model = net()
    runs = [train(model, clients([8, 8]), RECIPE, strategy=s) for s in ("serial", "fused-compiled:2")]
    assert runs[1].plan.strategy.inner == "fused-compiled", runs[1].plan.explain()
    assert max(difference(a.state, b.state) for a, b in zip(*runs, strict=True)) <= 1e-6


def test_who_needs_another_step_does_not_wait():
    steps, is_making, may_go_on = CompiledSteps(), threading.Event(), threading.Event()
    made = []

    def make(name, step):
        made.append(name)
        if name == "slow":
            is_making.set()
            assert may_go_on.wait(PATIENCE_S)
        return step

    with ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(steps.get, "slow", lambda at=at: make("slow", at)) for at in range(2)]
        assert is_making.wait(PATIENCE_S)
        assert steps.get("quick", lambda: make("quick", 5)) == 5
        assert not any(future.done() for future in slow)
        may_go_on.set()
        assert len({future.result(PATIENCE_S) for future in slow}) == 1
    assert sorted(made) == ["quick", "slow"]


def test_a_step_that_could_not_be_made_is_made_by_the_next():
    steps = CompiledSteps()

    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        steps.get("step", fail)
    assert steps.get("step", lambda: 3) == 3
