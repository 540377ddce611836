"""Narrow products turned round give the same numbers, whatever is done with them."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from evenload.clients.fused.inductor.rewrite import turn_narrow


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
    graph = turn_narrow(make_fx(step)(*example), example)
    names = [str(node.target) for node in graph.graph.nodes]
    assert ("aten.transpose.int" in names) == (columns < 16)
    assert ("aten.clone.default" in names) == (step is flattened and 1 < columns < 16)
    torch.testing.assert_close(graph(*example), step(*example))
