"""Tests that rooms of speed-only extras can be taken away: the plain path gives the same results."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.spread.equivalence_check import difference

RECIPE = Recipe(optimizer=SGD(lr=0.1), batch_size=8, epochs=2)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(27, 4)

    def forward(self, x):
        return self.out(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(36, 18), nn.Tanh(), nn.Linear(18, 4))


def clients():
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(16, 1, 6, 6, generator=generator), torch.randint(0, 4, (16,), generator=generator))
        for _ in range(2)
    ]


def trained(model, strategy):
    """States of the clients, and the inner strategy that was used."""
    run = train(model, clients(), RECIPE, strategy=strategy, seed=3)
    return [dict(result.state) for result in run], run.plan.strategy.inner


WITHOUT = """
import importlib.abc, sys
import torch

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {room!r} or name.startswith({room!r} + "."):
            refused.append(name)
            raise ImportError(name + " is taken away")

refused = []
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {folder!r})
from test_speedups_taken_away import {model}, trained
torch.set_num_threads(1)
torch.save(trained({model}, {strategy!r}), {path!r})
assert refused, "nothing has asked for it"
"""


@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize(
    ("room", "model", "strategy"),
    [
        ("evenload.clients.fused.inductor", Plain, "fused-compiled:2"),
        ("evenload.clients.step.image_kernels", Pictures, "rules:2"),
    ],
)
def test_clients_are_trained_alike_without_the_room(room, model, strategy, request, tmp_path):
    path = tmp_path / "states.pt"
    folder = str(request.path.parent)
    code = WITHOUT.format(room=room, folder=folder, model=model.__name__, strategy=strategy, path=str(path))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=1100)
    without, inner = torch.load(path, weights_only=True)
    assert inner == strategy.partition(":")[0]
    with_room, inner = trained(model, strategy)
    assert inner == strategy.partition(":")[0]
    serial, _ = trained(model, "serial")
    for ours, theirs, truth in zip(without, with_room, serial, strict=True):
        assert difference(ours, theirs) <= 1e-6
        assert difference(ours, truth) <= 1e-6
