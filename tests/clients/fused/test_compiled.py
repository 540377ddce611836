"""Compiled steps: threads do not meet in tracing, and a short way that leads elsewhere is not taken."""

import threading
import time

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from evenload.clients.fused import compiled
from evenload.clients.fused.compiled import compile_step
from evenload.clients.step.fuse import Lane, StepOutput


def test_one_thread_traces_at_a_time(monkeypatch):
    monkeypatch.setattr(compiled, "_compile", lambda graph, example: graph)
    inside, most, steps = [], [], []
    start, net = threading.Barrier(3), nn.Linear(2, 2)

    def traced(lane, draw, x, y, w, s):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)  # for the others to come in, if they can
        out = net(x)
        inside.pop()
        return StepOutput(out.sum(1), {})

    def work():
        alive, x = torch.ones(2, dtype=torch.bool), torch.ones(2, 2)
        start.wait()
        steps.append(compile_step(traced, Lane({}, {}, {}, {}, {}, {}, alive), x, x, x, x, {}))

    before = nn.Module.__call__, nn.Module.__getattr__
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(steps) == 3
    assert most == [1] * 3
    assert (nn.Module.__call__, nn.Module.__getattr__) == before


def doubled(t):
    t.add_(t)
    return [t.sum()]


@pytest.mark.parametrize(
    ("core", "is_same"),
    [
        (doubled, True),
        (lambda t: [(2 * t).sum()], False),  # leaves its argument as it was
        (lambda t: [t.add_(t).sum() + 1], False),
        (lambda t: [t.add_(t).sum(), t], False),
        (lambda t: 1 / 0, False),
    ],
)
def test_the_short_way_is_taken_only_where_it_leads_to_the_same(core, is_same, monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", lambda graph, example, options: (doubled, core))
    example = torch.ones(3)
    run = compiled._compile(None, [example])
    assert (run.__closure__[0].cell_contents is core) == is_same
    assert example.tolist() == [1, 1, 1]
    assert run(example)[0] == 6
    assert example.tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_there_is_a_short_way_in_this_torch():
    def step(a, b):
        return [torch.relu(a.add_(b)).sum(1)]

    example = [torch.randn(3, 5), torch.randn(5)]
    whole, core = compiled._compiled(make_fx(step)(*example), example, None)
    assert core is not None
    assert core is not whole
    assert compiled._is_same(core, whole, example)
