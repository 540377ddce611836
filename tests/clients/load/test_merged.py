"""Merged training is another computation, and refuses what it would leave out."""

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Cosine, Recipe, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError

RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4)


def pair(n=9, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g), torch.randint(0, classes, (n,), generator=g)


def model():
    return nn.Linear(5, 3)


def test_merged_is_another_computation_and_says_so():
    data = [pair(8, seed=1), pair(12, seed=2)]
    merged = train(model, data, RECIPE, strategy="merged")
    assert merged.plan.strategy.grade == "approximate"
    assert "not training clients" in merged.plan.why
    assert difference(merged[0].state, merged[1].state) == 0
    assert difference(merged[0].state, train(model, data, RECIPE, strategy="serial")[0].state) > 1e-3


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"clip": 1.0, "prox": 0.1}, "without clip, prox"),
        ({"schedule": Cosine()}, "without schedule"),
        ({"augment": lambda x, draws: x, "precision": "bfloat16"}, "without augment, precision"),
        ({"metrics": ("accuracy",)}, "without metrics"),
        ({"step": lambda net, optimizer, x, y: 0.0}, "without step"),
    ],
)
def test_merged_refuses_what_it_would_leave_out(kwargs, named):
    with pytest.raises(ConfigError, match=named):
        train(model, [pair(), pair()], Recipe(batch_size=4, **kwargs), strategy="merged")


def test_merged_refuses_what_only_a_client_can_have():
    zeros = {name: torch.zeros_like(t) for name, t in model().named_parameters()}
    with pytest.raises(ConfigError, match="without corrections"):
        train(model, [pair(), pair()], RECIPE, strategy="merged", corrections=[zeros, zeros])
