"""What items need: declared, counted by torch, and seen in the factors of a map."""

import time

import pytest

from evenload import Executor
from evenload.devices import Device, DevicePool
from evenload.devices.rates import known
from evenload.errors import ConfigError
from evenload.events import EventLog
from evenload.executor import torch_work
from evenload.executor.mapping import map as map_items
from evenload.report.tally import summarise


def of(factors):
    return next(part for part in factors.parts if part.name == "device efficiency")


def test_a_map_that_says_what_an_item_needs_knows_how_well_devices_are_used(monkeypatch):
    def spin(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    events = []
    pool = DevicePool([Device("cpu:0", "cpu", "cpu", "a CPU")])
    measured = {"flop_per_s": 1e9, "bytes_per_s": 1e9, "rates_from": "measured"}
    monkeypatch.setattr(known, "_kept", lambda: {known._key(pool.device("cpu:0")): measured})
    work = {"flop": 1e6, "bytes": 5e6}  # 5 ms of the 20 and more that it takes
    results = map_items(
        spin, [0.02] * 4, devices=pool, backend="inline", work=work, events=EventLog(events.append)
    )
    assert len(list(results)) == 4
    for factors in (results.summary.factors, summarise(events).factors):
        assert 0 < of(factors).value <= 0.25
        assert factors.share <= 0.25
    with Executor(pool, backend="inline") as executor:
        results = executor.map(spin, [0.001])
        list(results)
    assert of(results.summary.factors).value is None


@pytest.mark.parametrize("work", [3, {}, {"flops": 1.0}, {"flop": 0}, {"flop": "1"}, {"bytes": float("inf")}])
def test_what_says_nothing_is_refused(work):
    with pytest.raises(ConfigError, match="work"):
        map_items(abs, [0.0], devices="cpu*1", backend="inline", work=work)


def test_torch_counts_products():
    torch = pytest.importorskip("torch")

    class Product:
        def __init__(self, side):
            self.weight, self.is_closed = torch.ones(side, side), False

        def __call__(self, n_rows):
            return torch.ones(n_rows, len(self.weight)) @ self.weight

        def close(self):
            assert not self.is_closed
            self.is_closed = True

    assert torch_work(Product, 8, side=16) == {"flop": 2 * 8 * 16 * 16}
    assert torch_work(torch.mm, torch.ones(2, 3), torch.ones(3, 4)) == {"flop": 2.0 * 2 * 3 * 4}
    with pytest.raises(ConfigError, match="counted no operation"):
        torch_work(abs, 0.0)
