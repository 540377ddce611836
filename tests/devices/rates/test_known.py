"""What a device does at most: by its data sheet, or as measured and kept."""

import json

import pytest

from evenload._user_folders import user_cache
from evenload.devices import Device, DevicePool
from evenload.devices.rates import known
from evenload.devices.rates.hardware import HARDWARE, peak_rates
from evenload.devices.rates.known import keep_rates, measure, rates_of

GPU = Device("cuda:0", "discrete", "cuda", "NVIDIA A100-SXM4-80GB")
CPU = Device("cpu:0", "cpu", "cpu", "a h100 of a name", threads=2)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known._kept.cache_clear()
    yield
    known._kept.cache_clear()


def test_a_device_is_known_by_its_data_sheet():
    assert peak_rates("NVIDIA H200")["bytes_per_s"] == pytest.approx(4.8e12)
    assert rates_of(GPU) == {"flop_per_s": 312e12, "bytes_per_s": 2.039e12, "rates_from": "data sheet"}
    assert rates_of(CPU) == {}
    assert rates_of(Device("cuda:0", "discrete", "cuda", "Some other GPU")) == {}


def test_what_was_measured_is_kept_for_devices_of_that_kind():
    keep_rates(CPU, {"flop_per_s": 5e10, "bytes_per_s": 2e10})
    keep_rates(GPU, {"flop_per_s": 2e14, "bytes_per_s": 1e12})
    again = rates_of(Device("cpu:1", "cpu", "cpu", CPU.name, threads=2))
    assert (again["flop_per_s"], again["rates_from"][:9]) == (5e10, "measured ")
    assert rates_of(GPU)["flop_per_s"] == 2e14  # measured wins over the data sheet
    assert rates_of(Device("cpu:0", "cpu", "cpu", CPU.name, threads=1)) == {}
    assert DevicePool([CPU]).facts()["cpu:0"]["bytes_per_s"] == 2e10


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"k": 3}', '{"k": {"flop_per_s": -1.0, "bytes_per_s": 1.0}}', "[" * 100_000]
)
def test_nothing_is_believed_that_makes_no_sense(content):
    key = known._key(CPU)
    path = user_cache() / "device_rates.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(content.replace('"k"', json.dumps(key)))
    path.chmod(0o600)
    assert rates_of(CPU) == {}
    keep_rates(CPU, {"flop_per_s": 5e10, "bytes_per_s": 2e10})
    assert rates_of(CPU)["flop_per_s"] == 5e10


def test_a_cpu_is_measured(monkeypatch):
    monkeypatch.setattr("evenload.devices.rates.known.LEAST_S", 0.0)
    found = measure("cpu")
    assert set(found) == {"flop_per_s", "bytes_per_s"}
    assert all(1e6 < one < 1e16 for one in found.values())


@pytest.mark.parametrize("name", HARDWARE)
def test_no_data_sheet_has_its_columns_mixed_up(name):
    """Memory is between ten and a thousand times as fast as the bus, and gives 1 to 1000 bytes per kflop."""
    one = HARDWARE[name]
    assert 4 < one.memory_bytes_s / one.bus_bytes_s < 1000
    assert 1e-3 < one.memory_bytes_s / (one.tflops * 1e12) < 1.0
