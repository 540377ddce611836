"""Compiled steps: narrow products turned round give the same numbers, and threads do not meet in tracing."""

import threading
import time

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from evenload.clients import compiled
from evenload.clients.compiled import _turn_narrow_products, compile_step
from evenload.clients.fuse import Lane, StepOutput


def flattened(a, b):
    product = torch.bmm(a, b)
    return torch.relu(product).view(len(a), -1)  # of a turned product there is no such view


def summed(a, b):
    return torch.bmm(a, b).sum(1)


@pytest.mark.parametrize("step", [flattened, summed])
@pytest.mark.parametrize("columns", [1, 5, 15, 16])
def test_a_turned_product_may_be_used_as_before(step, columns):
    generator = torch.Generator().manual_seed(0)
    example = [torch.randn(3, 20, 6, generator=generator), torch.randn(3, 6, columns, generator=generator)]
    graph = _turn_narrow_products(make_fx(step)(*example), example)
    names = [str(node.target) for node in graph.graph.nodes]
    assert ("aten.transpose.int" in names) == (columns < 16)
    assert ("aten.clone.default" in names) == (step is flattened and 1 < columns < 16)
    torch.testing.assert_close(graph(*example), step(*example))


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
