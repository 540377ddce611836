"""Attention in a fused step: each client's outputs and gradients are those that torch gives it alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from evenload.clients import SGD, Recipe, Trainer
from evenload.clients.spread.equivalence_check import difference
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


class Attending(nn.Module):
    """Causal attention over a row of numbers, under a mask of its own or by order."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal, self.into, self.out = is_causal, nn.Linear(1, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.into(x[..., None]).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mask = None if self.is_causal else (x[:, None, None, :] > -1.0) | torch.eye(6, dtype=torch.bool)
        seen = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.is_causal)
        return self.out(seen.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_model_with_attention_ends_as_in_serial_training(is_causal, precision):
    torch.manual_seed(0)
    model, g = Attending(is_causal), torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (9, 1, 6)]
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, epochs=2, precision=precision)
    ends = {}
    for strategy in ("serial", "fused:3"):
        with Trainer(model, strategy=strategy) as trainer:
            ends[strategy] = trainer.train(data, recipe)
    assert ends["fused:3"].plan.strategy.inner == "fused", ends["fused:3"].plan.explain()
    worst = max(difference(a, b) for a, b in zip(*(end.states for end in ends.values()), strict=True))
    assert worst < (1e-6 if precision is None else 1e-2)
