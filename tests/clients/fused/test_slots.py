"""No finished client is stepped, however ragged the clients are."""

import dataclasses
import itertools
from collections import deque

import numpy as np
import pytest
import torch
from clients.linear_clients import tasks_of as loaded_tasks
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.fused.engine import longest_first
from evenload.clients.spread.client_worker import ClientWorker
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.fuse import StackedStep
from evenload.clients.step.model_traits import find_traits
from evenload.clients.step.serial import train_one
from evenload.clients.values.data import Rows
from evenload.clients.values.strategy import Strategy, halves

with torch.random.fork_rng():  # the same in every run: what diverges must
    torch.manual_seed(0)
    MODEL = with_keyed_dropout(nn.Linear(3, 2))


def tasks_of(sizes, shared=False):
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4)
    generator = torch.Generator().manual_seed(1)
    x, y = (
        torch.randn(sum(sizes), 3, generator=generator),
        torch.randint(0, 2, (sum(sizes),), generator=generator),
    )
    ends = np.cumsum(sizes)
    data = [(x[e - n : e], y[e - n : e]) for n, e in zip(sizes, ends, strict=True)]
    if not shared:
        data = [(a.clone(), b.clone()) for a, b in data]
    return loaded_tasks(MODEL, data, recipe)


def run(tasks, chunk, inner="fused"):
    worker = ClientWorker(MODEL)
    traits = find_traits(MODEL, tasks[0])
    engine = worker.engine(traits, Strategy("inline", inner, chunk), tasks)
    results = [r for batch in engine.train_slots(tasks, longest_first(tasks), chunk) for r in batch]
    return engine, {r.client: r for r in results}


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6), st.booleans())
def test_rows_stepped_are_client_steps_and_the_results_serial(sizes, chunk, shared):
    tasks = tasks_of(sizes, shared)
    engine, results = run(tasks, min(chunk, len(tasks)))
    assert engine.row_steps == engine.client_steps == sum(task.batches.n_steps for task in tasks)
    assert sorted(results) == list(range(len(sizes)))
    for task in tasks:
        truth = train_one(ClientWorker(MODEL).model, task)
        assert difference(truth.state, results[task.client].state) <= 1e-6
        assert results[task.client].losses == pytest.approx(truth.losses, abs=1e-5)


def test_weights_that_the_last_step_spoils_are_told_of():
    """A learning rate beyond all numbers: each loss was finite, and the weights after it are not."""
    good, bad = (Recipe(optimizer=SGD(lr), batch_size=4) for lr in (0.1, 3e38))
    tasks = tasks_of([4, 4, 4])
    tasks = [dataclasses.replace(t, recipe=r) for t, r in zip(tasks, (good, bad, good), strict=True)]
    x = tasks[1].rows.x * 1e6
    tasks[1] = dataclasses.replace(tasks[1], rows=dataclasses.replace(tasks[1].rows, x=x))
    _, results = run(tasks, 3)
    assert [results[c].status for c in range(3)] == ["ok", "diverged", "ok"]
    assert results[1].steps == 1


def test_clients_of_some_rows_and_of_all_rows_share_a_pool():
    x, y = torch.randn(30, 3, generator=torch.Generator().manual_seed(2)), torch.arange(30) % 2
    data = [Rows(x, y, np.array([7, 3, 29, 11, 5])), Rows(x, y), Rows(x, y, np.arange(20, 29))]
    tasks = loaded_tasks(MODEL, data, Recipe(optimizer=SGD(0.1), batch_size=4, epochs=2))
    _, results = run(tasks, 2)
    for task in tasks:
        truth = train_one(ClientWorker(MODEL).model, task)
        assert difference(truth.state, results[task.client].state) <= 1e-6


class Raced(deque):
    """Says that a client waits when none does any more: another thread was faster."""

    def __bool__(self):
        return True


def test_threads_may_take_the_last_client_from_one_another():
    tasks = tasks_of([4, 12, 8])
    engine = ClientWorker(MODEL).engine(find_traits(MODEL, tasks[0]), Strategy("inline", "fused", 2), tasks)
    results = [r for batch in engine.train_slots(tasks, Raced(longest_first(tasks)), 2) for r in batch]
    assert sorted(r.client for r in results) == [0, 1, 2]


def test_rows_beyond_the_live_ones_hold_a_live_clients_examples():
    """The first row of the pool may be a client's that was refused for its labels."""
    tasks = tasks_of([4, 12, 8], shared=True)
    tasks[0].rows.y[:] = 99
    engine = ClientWorker(MODEL).engine(find_traits(MODEL, tasks[1]), Strategy("inline", "fused", 4), tasks)
    results = [
        r for batch in engine.train_slots(tasks[1:], longest_first(tasks[1:]), 4, pads=True) for r in batch
    ]
    assert [r.status for r in results] == ["ok", "ok"]


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 4))
def test_compiled_steps_of_any_cohort_use_the_same_few_graphs(chunk, n_clients, n_workers):
    compiled, eager = (Strategy(inner=name, chunk=chunk) for name in ("fused-compiled", "fused"))
    assert all(b <= 2 * a for a, b in itertools.pairwise(halves(chunk)))
    rows = compiled.rows_for(n_clients, n_workers)
    assert set(halves(rows)) <= set(halves(chunk))
    assert eager.rows_for(n_clients, n_workers) <= rows <= chunk


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(35_000, 2, dtype=torch.float16))

    def forward(self, x):
        return x @ self.rows[:3]


def test_many_numbers_of_half_precision_are_finite_though_their_sum_is_not():
    data = [(torch.randn(4, 3).half(), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    found = train(Table, data, Recipe(batch_size=4), strategy="fused:2")
    assert found.plan.strategy.inner == "fused", found.plan.explain()
    assert [r.status for r in found] == ["ok", "ok"]


def test_what_clients_share_lies_in_order_whatever_the_memory_of_their_start(monkeypatch):
    """A compiled step takes tensors of one layout only, and may serve starts of any."""
    seen, step = [], StackedStep.__call__

    def noted(self, clients, *others):
        seen.append(clients.frozen["0.weight"].stride())
        return step(self, clients, *others)

    monkeypatch.setattr(StackedStep, "__call__", noted)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    turned = dict(model.state_dict(), **{"0.weight": model[0].weight.detach().t().contiguous().t()})
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    for start in (model.state_dict(), turned):
        train(model, data, Recipe(batch_size=4), strategy="fused:2", start=start)
    assert set(seen) == {(3, 1)}
