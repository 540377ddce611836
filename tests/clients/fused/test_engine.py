"""Compiled steps are made once for all threads, and are the same steps in each."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.fused import engine, slots
from evenload.clients.fused.engine import CompiledSteps, longest_first
from evenload.clients.fused.speedups import PLAIN, find_speedups
from evenload.clients.load.load import ClientInputs, DatasetReader, load_tasks
from evenload.clients.spread.client_worker import ClientWorker
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_traits import find_traits
from evenload.clients.values.strategy import Strategy

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
def test_four_threads_compile_once_and_get_one_threads_bits(compiled):
    """Each has a queue of its own, so that it steps the same rows as the one thread."""
    model, steps, n_threads = with_keyed_dropout(net()), CompiledSteps(), 4
    data = clients((30, 17, 22, 9))
    n = len(data)
    wanted = ClientInputs(data, [RECIPE] * n, range(n), [model.state_dict()] * n, [None] * n, [None] * n)
    tasks = load_tasks(DatasetReader(model), wanted, 0, 0).tasks
    traits, strategy = find_traits(model, tasks[0]), Strategy("inline", "fused-compiled", 2)
    start = threading.Barrier(n_threads)

    def train(worker):
        batches = worker.train_queue(strategy, traits, tasks, longest_first(tasks))
        return {result.client: result for batch in batches for result in batch}

    def work(worker):
        start.wait(PATIENCE_S)
        return [train(worker) for _ in range(10)]

    workers = [ClientWorker(model, compiled=steps) for _ in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        runs = [run for found in pool.map(work, workers) for run in found]
    assert compiled == [2]
    truth = train(ClientWorker(model, compiled=steps))
    for run in runs:
        for client, result in run.items():
            assert difference(truth[client].state, result.state) == 0
            assert truth[client].losses.tolist() == result.losses.tolist()


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
    model = nn.PReLU(3)  # whose step is one kernel
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


@pytest.mark.parametrize("batch", [3, 300_000])
def test_weights_of_rows_need_no_square_of_the_batch(batch):
    """A batch of all rows is usual in federated learning, and its size far above that of a small client."""
    counts = np.array([1, 3, 2, batch])
    weights = slots._row_weights(counts, batch, torch.float64)
    assert weights.shape == (4, batch)
    for line, n in zip(weights, counts.tolist(), strict=True):
        assert (line[:n] == 1 / n).all()
        assert not line[n:].any()
