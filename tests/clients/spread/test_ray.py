"""Clients on a Ray cluster: the serial bits, whichever worker trains them."""

import shutil
import signal
import tempfile
import warnings

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.spread.equivalence_check import difference

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster():
    """Ray on this machine; one that other tests of this process began is used as it is."""
    if ray.is_initialized():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    folder = tempfile.mkdtemp(prefix="el", dir="/tmp")  # a short path: Ray puts sockets there
    with warnings.catch_warnings(action="ignore"):
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=128 * 2**20,
            _temp_dir=folder,
        )
    for number, handler in handlers.items():  # Ray's own would be met by tests that know nothing of it
        signal.signal(number, handler)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def test_clients_on_ray_are_the_serial_bits(cluster):
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
