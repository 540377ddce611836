"""Pooling by rules gives torch's own bits: values, and gradients also where numbers are equal."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from evenload.clients.step.convolution import PoolingRule
from evenload.clients.step.image_kernels import layout
from evenload.clients.step.image_kernels.operations import KernelMaxPool


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def pooled_by(request, monkeypatch) -> str:
    """What pools: kernels, or torch where there are none (no llvmlite)."""
    if request.param == "kernels":
        pytest.importorskip("llvmlite")
    else:
        monkeypatch.setattr(layout, "has_kernels", lambda: False)
    return request.param


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (2, (3, 4, 5, 7, 9)),
        (3, (2, 3, 2, 9, 7)),
        (2, (2, 1, 1, 2, 2)),
        (2, (2, 9, 2, 3, 3)),  # one window, and rows left over
        (3, (2, 8, 1, 5, 11)),
        (4, (2, 3, 2, 11, 8)),
    ],
)
def test_the_bits_are_torchs_own_and_the_first_of_equals_gets_the_gradient(size, shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, shape, generator=generator).float()  # many are equal

    def pooled(x):
        return F.max_pool2d(x, size)

    values = vmap(pooled)(x)
    weights = torch.randn(values.shape, generator=generator)
    slopes = vmap(grad(lambda x, w: (pooled(x) * w).sum()))(x, weights)
    with PoolingRule():
        assert torch.equal(vmap(pooled)(x), values)
        assert torch.equal(vmap(grad(lambda x, w: (pooled(x) * w).sum()))(x, weights), slopes)


@pytest.mark.parametrize(
    ("pool", "is_ours"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((3, 3), 3), True),
        (nn.MaxPool2d(3, 2), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d((2, 1)), False),
        (nn.MaxPool2d(2, dilation=2), False),
    ],
)
def test_other_windows_are_left_to_torch(pool, is_ours, monkeypatch, pooled_by):
    taken, apply = [], KernelMaxPool.apply
    monkeypatch.setattr(KernelMaxPool, "apply", lambda *args: taken.append(args) or apply(*args))
    x = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(1))
    expected = pool(x)
    with PoolingRule():
        assert torch.equal(pool(x), expected)
        pool_1d = nn.MaxPool1d(2)(x[:, :, 0])
    assert bool(taken) == (is_ours and pooled_by == "kernels")
    assert torch.equal(pool_1d, nn.MaxPool1d(2)(x[:, :, 0]))
    with PoolingRule():
        values, places = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(places, F.max_pool2d(x, 2, return_indices=True)[1])
    assert torch.equal(values, F.max_pool2d(x, 2))
