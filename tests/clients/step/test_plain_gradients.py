"""Gradients taken outside of vmap: only where each is the derivative of what was computed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Recipe, Trainer
from evenload.clients.spread.equivalence_check import difference


class Reversed(torch.autograd.Function):
    """A function whose gradient is not its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


class Net(nn.Module):
    def __init__(self, what="plain", padding=None):
        super().__init__()
        self.what, self.embed = what, nn.Embedding(5, 6, padding_idx=padding)
        self.mid, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = F.gelu(self.mid(self.embed(x).mean(1)))
        if self.what == "reversed":
            h = Reversed.apply(h)
        if self.what == "hooked" and h.requires_grad:
            h.register_hook(lambda grad: 0.5 * grad)
        if self.what == "detached":
            h = h + self.mid(h).detach()
        return self.out(h)


def trained(net, strategy):
    g = torch.Generator().manual_seed(1)
    data = [
        (torch.randint(0, 5, (n, 4), generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (9, 6, 8)
    ]
    recipe = Recipe(optimizer=SGD(0.3, momentum=0.9), batch_size=4, epochs=3)
    with Trainer(net, strategy=strategy) as trainer:
        results = trainer.train(data, recipe)
        return results, next(iter(trainer._selector._checks._traits.values()), None)


@pytest.mark.parametrize(
    ("net", "is_plain"),
    [
        (Net(), True),
        (Net("detached"), True),
        (Net(padding=0), False),
        (Net("reversed"), False),
        (Net("hooked"), False),
    ],
    ids=["plain", "detached", "padding", "reversed", "hooked"],
)
def test_what_is_no_derivative_is_taken_per_client(net, is_plain):
    """In float64, so that a wrong gradient in one row of many is not taken for rounding."""
    serial, _ = trained(net.double(), "serial")
    fused, traits = trained(net, "fused:3")
    assert traits.has_plain_gradients == is_plain
    assert fused.plan.strategy.is_fused or net.what == "hooked", fused.plan.explain()
    for a, b in zip(serial, fused, strict=True):
        assert difference(a.state, b.state) < 1e-12
