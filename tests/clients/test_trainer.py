"""A strategy that fails while it trains: no client that has ended is lost."""

import dataclasses
import gc
import weakref

import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.fused.slots import SlotRun
from evenload.clients.spread.dispatch_clients import ClientDispatcher

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


def test_a_chunk_that_found_no_memory_is_freed_before_the_next_is_tried(monkeypatch, tasks_of):
    real, failed = SlotRun._run_segment, []

    def small(self):
        assert all(run() is None for run in failed)
        if self.n_slots > 2 and len(self._clients.params["weight"]) == 8:
            failed.append(weakref.ref(self))
            raise MemoryError
        return real(self)

    monkeypatch.setattr(SlotRun, "_run_segment", small)
    net, (_, tasks) = nn.Linear(3, 2), tasks_of(16)
    gc.disable()
    try:
        run = train(net, [(t.rows.x, t.rows.y) for t in tasks], RECIPE, strategy="fused:8")
    finally:
        gc.enable()
    assert len(failed) == 1
    assert [r.client for r in run] == list(range(16))
    alone = train(net, [(tasks[0].rows.x, tasks[0].rows.y)], RECIPE, strategy="fused:2")
    assert float((run[0].state["weight"] - alone[0].state["weight"]).abs().max()) < 1e-6


def test_a_strategy_that_failed_is_not_tried_again(monkeypatch, linear_clients):
    calls = []

    def broken(self, *_):
        calls.append(1)
        raise RuntimeError("boom")
        yield

    monkeypatch.setattr(ClientDispatcher, "_in_threads", broken)
    serial = train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="serial", seed=1)
    with Trainer(nn.Linear(3, 2), strategy="threads*2/eager", seed=1) as trainer:
        first, second = (trainer.train(linear_clients(4), RECIPE, start=serial[0].state) for _ in "12")
    assert len(calls) == 1
    assert "it ended with RuntimeError: boom" in first.plan.explain()
    assert str(second.plan.strategy) == "inline/eager"
    assert "boom" in second.plan.why
    assert [r.status for r in first] == [r.status for r in second] == ["ok"] * 4


def test_what_is_a_clients_fault_is_not_held_against_the_strategy(linear_clients):
    """A label that only the loss refuses, of a client that the check does not see."""
    recipe = dataclasses.replace(
        RECIPE, loss=lambda out, y: F.cross_entropy(out, y, reduction="none"), steps=None, epochs=1
    )
    good = [linear_clients(1)[0] for _ in range(4)]
    bad = [good[0], (good[1][0], good[1][1] + 1000), *good[2:]]
    with Trainer(nn.Linear(3, 2), strategy="fused:4") as trainer:
        trainer.train(good, recipe)
        assert [r.status for r in trainer.train(bad, recipe, on_error="return")].count("failed") == 1
        assert str(trainer.train(good, recipe).plan.strategy) == "inline/fused:4"
