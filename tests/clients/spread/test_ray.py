"""Clients on a Ray cluster: the serial bits, whichever worker trains them."""

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.spread.equivalence_check import difference

pytest.importorskip("ray")


@pytest.mark.slow
def test_clients_on_ray_are_the_serial_bits(ray_cluster):
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 5, generator=g), torch.randint(0, 3, (9,), generator=g)) for _ in range(5)]
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2)
    net = lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Linear(8, 3))  # noqa: E731
    serial = train(net, data, recipe, strategy="serial", seed=3)
    with Trainer(net, strategy="ray*2/eager", seed=3) as trainer:
        for _ in range(2):  # the second time, workers are warm
            found = trainer.train(data, recipe)
            assert str(found.plan.strategy) == "ray*2/eager"
            assert found.plan.strategy.grade == "bitwise"
            assert not found.plan.reasons, found.plan.explain()
            assert max(difference(a.state, b.state) for a, b in zip(serial, found, strict=True)) == 0
            assert [(r.client, r.examples) for r in found] == [(r.client, r.examples) for r in serial]
