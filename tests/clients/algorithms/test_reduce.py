"""A mean over stacked rows is that of the states; an exact one is the same in whatever order they come."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.result import ClientResult, StateRow
from evenload.errors import ConfigError


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


def states_of(seed, dtype):
    """Rows of a stack, or states alone, of unequal sizes; with what a BatchNorm counts."""
    drawn, made = random.Random(seed), torch.Generator().manual_seed(seed)
    n = drawn.randint(1, 30)
    spread = torch.pow(2.0, torch.randint(-40, 6, (n, 7), generator=made).double())
    stack = {
        "w": (torch.randn(n, 7, generator=made) * spread).to(dtype),
        "n": torch.randint(0, 90, (n,), generator=made),
    }
    names = {name: name for name in stack}
    rows = [drawn.randint(1, 1000) for _ in range(n)]
    is_stacked = drawn.random() < 0.5
    states = [
        StateRow(stack, k, names) if is_stacked else {one: t[k].clone() for one, t in stack.items()}
        for k in range(n)
    ]
    return [ClientResult(k, states[k], np.zeros(1), n_rows=rows[k]) for k in range(n)], stack, rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(8))
def test_an_exact_mean_is_that_of_whole_numbers_in_whatever_order_clients_end(seed, dtype):
    """Oracle: Python's whole numbers of steps of 2^-48, of which each client's weighted state is one."""
    results, stack, rows = states_of(seed, dtype)
    wholes = [
        sum(round(Fraction(x) * n * 2**48) for x, n in zip(column, rows, strict=True))
        for column in stack["w"].double().T.tolist()
    ]
    expected = torch.tensor([whole / 2**48 for whole in wholes], dtype=torch.float64) / sum(rows)
    counted = sum(n * k for n, k in zip(rows, stack["n"].tolist(), strict=True)) / sum(rows)
    drawn = random.Random(seed)
    for _ in range(3):
        mean, left = Mean().exactly(), drawn.sample(results, len(results))
        while left:
            n = drawn.randint(1, 8)
            mean.take(left[:n])
            left = left[n:]
        assert torch.equal(mean.value()["w"], expected.to(dtype))
        assert mean.value()["n"].item() == round(counted)


def test_an_exact_mean_says_what_is_too_large_for_it(monkeypatch):
    mean = Mean(exact=True)
    mean.take([ClientResult(0, {"w": torch.tensor([3e6])}, np.zeros(1), n_rows=1000)])
    with pytest.raises(ConfigError, match="might not be exact"):
        mean.value()
    monkeypatch.setattr("evenload.clients.algorithms.reduce.MOST_EXACT", 2)
    with pytest.raises(ConfigError, match="more than 2 clients"):
        Mean(exact=True).take(
            [ClientResult(k, {"w": torch.ones(1)}, np.zeros(1), n_rows=1) for k in range(3)]
        )
