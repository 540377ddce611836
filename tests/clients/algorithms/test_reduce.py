"""A mean over stacked rows is the mean over the states."""

import numpy as np
import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.result import ClientResult, StateRow


def make(dtype, freezes):
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    net[0].requires_grad_(not freezes)
    return net


def clients(sizes):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator))
        for n in sizes
    ]


def weighted(results, name):
    sizes = torch.tensor([r.n_rows for r in results], dtype=torch.float64)
    return torch.tensordot(sizes, torch.stack([r.state[name].double() for r in results]), 1) / sizes.sum()


@pytest.mark.parametrize("freezes", [False, True])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_the_mean_is_that_of_the_states(freezes, dtype, within):
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4)
    net, data = make(dtype, freezes), clients([5, 9, 3, 14, 9, 8, 1])
    kept, reduced = (train(net, data, recipe, strategy="fused:4", reduce=by) for by in (None, "mean"))
    assert reduced.plan.strategy.inner == "fused", reduced.plan.explain()
    for name, mean in reduced.reduced.items():
        torch.testing.assert_close(mean.double(), weighted(kept, name), rtol=within, atol=within / 100)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("n_rows", [257, 100_003])
def test_no_number_of_rows_is_rounded_or_too_large(dtype, n_rows):
    stack, names = {"w": torch.linspace(1, 2, 12).to(dtype).view(3, 4)}, {"w": "w"}
    results = [ClientResult(k, StateRow(stack, k, names), np.zeros(1), n_rows=n_rows) for k in range(3)]
    mean = Mean()
    mean.take(results)
    truth = stack["w"].double().mean(0).to(dtype)
    torch.testing.assert_close(mean.value()["w"], truth, rtol=torch.finfo(dtype).eps, atol=0)
