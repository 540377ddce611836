"""A module that a model uses more than once is replaced everywhere, and stays one module."""

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.fused.rules import RecurrentRule, with_rules
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.step.dropout import KeyedDropout, keyed_layers, with_keyed_dropout
from evenload.clients.step.norm import MaskedBatchNorm, with_masked_norm


class Shared(nn.Module):
    """One dropout and one normalisation under two names, and in a block of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.first = self.second = nn.Dropout(0.5)
        self.norm = self.again = nn.BatchNorm1d(6)
        self.block = nn.Sequential(self.first, self.norm)

    def forward(self, x):
        x = self.second(torch.tanh(self.a(self.norm(self.first(x)))))
        return self.out(self.block(self.again(self.b(x))))


def test_one_module_under_many_names_has_one_replacement():
    net = with_masked_norm(with_keyed_dropout(Shared()))
    assert isinstance(net.first, KeyedDropout)
    assert net.first is net.second is net.block[0]
    assert isinstance(net.norm, MaskedBatchNorm)
    assert net.norm is net.again is net.block[1]
    assert net.state_dict().keys() == Shared().state_dict().keys()
    cell = nn.GRU(4, 4)
    twice = with_rules(nn.ModuleList([cell, nn.Identity(), cell]))
    assert isinstance(twice[0], RecurrentRule)
    assert twice[0] is twice[2]


def test_two_calls_of_one_dropout_have_masks_of_their_own():
    net = with_keyed_dropout(Shared())
    (layer,) = keyed_layers(net).values()
    x = torch.ones(40, 6)
    assert not torch.equal(net.first(x), net.second(x))
    layer.n_calls = 0
    first = net.second(x)
    layer.n_calls = 0
    assert torch.equal(first, net.first(x))


@pytest.mark.parametrize("strategy", ["fused:3", "rules:2", "threads*2/eager"])
def test_shared_modules_are_trained_as_serially(strategy):
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (8, 11, 10)]
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4)
    serial, other = (train(Shared, data, recipe, strategy=s, seed=1) for s in ("serial", strategy))
    assert str(other.plan.strategy).endswith(strategy), other.plan.explain()
    assert max(difference(a.state, b.state) for a, b in zip(serial, other, strict=True)) <= 1e-6
