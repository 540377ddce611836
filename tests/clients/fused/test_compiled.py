"""Compiled steps: threads do not meet in tracing."""

import dataclasses
import threading
import time

import torch
from torch import nn

from evenload.clients.fused import compiled
from evenload.clients.fused.compiled import compile_step
from evenload.clients.fused.speedups import PLAIN
from evenload.clients.step.fuse import StackedClients, StepArguments, StepOutput


def test_one_thread_traces_at_a_time(monkeypatch):
    uncompiled = dataclasses.replace(PLAIN, compile=lambda graph, *_: graph)
    monkeypatch.setattr(compiled, "find_speedups", lambda: uncompiled)
    inside, most, steps = [], [], []
    start, net = threading.Barrier(3), nn.Linear(2, 2)

    def traced(clients, given):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)  # for the others to come in, if they can
        out = net(given.x)
        inside.pop()
        return StepOutput(out.sum(1), {})

    def work():
        alive, x = torch.ones(2, dtype=torch.bool), torch.ones(2, 2)
        start.wait(timeout=500)
        clients = StackedClients({}, {}, {}, {}, {}, {}, alive)
        steps.append(compile_step(traced, clients, StepArguments(x, x, x, x, {})))

    before = nn.Module.__call__, nn.Module.__getattr__
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert len(steps) == 3
    assert most == [1] * 3
    assert (nn.Module.__call__, nn.Module.__getattr__) == before
