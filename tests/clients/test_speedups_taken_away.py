"""Tests that rooms of speed-only extras can be taken away: the plain path gives the same results."""

import subprocess

import pytest
import torch
import torch.nn.functional as F
from forked_workers import python_command
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.tune.engine_checks import why_not_compiled

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


CASES = {  # a room, and a training that asks for it
    "evenload.clients.fused.inductor": (Plain, "fused-compiled:2"),
    "evenload.clients.step.image_kernels": (Pictures, "rules:2"),
}
if why_not_compiled():
    del CASES["evenload.clients.fused.inductor"]
WITHOUT = """
import importlib.abc, os, sys
import torch

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        for room in rooms:
            if name == room or name.startswith(room + "."):
                refused.add(room)
                raise ImportError(name + " is taken away")

folder, path, *rooms = sys.argv[1:]
refused = set()
for name in [name for name in sys.modules if name.partition(".")[0] == "evenload"]:
    del sys.modules[name]  # where this is forked from a process with the rooms
sys.meta_path.insert(0, Refuse())
sys.path[:0] = [folder, os.path.dirname(folder)]
from test_speedups_taken_away import CASES, trained
torch.set_num_threads(1)
torch.save({room: trained(*CASES[room]) for room in rooms}, path)
assert refused == set(rooms), "nothing has asked for some"
"""


@pytest.fixture(scope="module")
def without(request, tmp_path_factory):
    """What is trained in a process without the rooms: one, since to import torch and its compiler is slow."""
    path = tmp_path_factory.mktemp("without") / "states.pt"
    command = [*python_command(), "-W", "ignore", "-c", WITHOUT, str(request.path.parent), str(path), *CASES]
    subprocess.run(command, check=True, timeout=1100)
    return torch.load(path, weights_only=True)


@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize("room", CASES)
def test_clients_are_trained_alike_without_the_room(room, without):
    """The oracle is serial training, as it is with the rooms: in test_engine and in test_convolution."""
    model, strategy = CASES[room]
    found, inner = without[room]
    assert inner == strategy.partition(":")[0]
    serial, _ = trained(model, "serial")
    for ours, truth in zip(found, serial, strict=True):
        assert difference(ours, truth) <= 1e-6
