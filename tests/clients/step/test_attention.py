"""Attention in a fused step: each client's outputs and gradients are those that torch gives it alone."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from evenload.clients.step.functions import ReplacedFunctions

K, BATCH, HEADS, ROWS, WIDTH = 3, 4, 2, 7, 5
MASKS = {  # a mask, and where it has the clients
    "none": (None, None),
    "of all": ((ROWS, ROWS), None),
    "of each row of a batch": ((BATCH, 1, 1, ROWS), None),
    "of each client": ((K, BATCH, 1, ROWS, ROWS), 0),
    "of each client, one for its batch": ((K, 1, 1, ROWS, ROWS), 0),
}


def mask_of(shape):
    if shape is None:
        return None
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    kept[..., 0] = True  # each row sees something
    return kept


@pytest.fixture
def heads():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(K, BATCH, HEADS, ROWS, WIDTH, generator=g, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("is_inside", [True, False], ids=["gradients inside", "gradients outside"])
@pytest.mark.parametrize("shares_key", [True, False])
@pytest.mark.parametrize(("mask", "is_causal"), [*((name, False) for name in MASKS), ("none", True)], ids=str)
def test_gradients_are_those_of_each_client_alone(mask, is_causal, shares_key, is_inside, heads):
    query, key, value = heads
    shape, mask_dim = MASKS[mask]
    seen, key_dim = mask_of(shape), None if shares_key else 0
    key = key[0] if shares_key else key
    dims = (0, key_dim, 0, mask_dim)

    def loss(q, k, v, m):
        return (F.scaled_dot_product_attention(q, k, v, m, is_causal=is_causal) ** 2).sum()

    def replaced(q, k, v, m):
        with ReplacedFunctions():
            return loss(q, k, v, m)

    if is_inside:
        found = vmap(grad(replaced, (0, 2)), in_dims=dims)(query, key, value, seen)
    else:
        leaves = [query.clone().requires_grad_(), value.clone().requires_grad_()]
        total = vmap(replaced, in_dims=dims)(leaves[0], key, leaves[1], seen).sum()
        found = torch.autograd.grad(total, leaves)
    for i in range(K):
        own = (query[i], key if shares_key else key[i], value[i], seen if mask_dim is None else seen[i])
        alone = grad(loss, (0, 2))(*own)
        assert all(torch.allclose(t[i], a, atol=1e-12) for t, a in zip(found, alone, strict=True))
