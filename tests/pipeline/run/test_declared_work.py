"""What stages say of their work, and data sheets of devices, goes into a run's first event."""

import pytest

from evenload.pipeline.job.spec_stage import StageSpec
from evenload.pipeline.planning.estimates.hardware import HARDWARE, peak_rates
from evenload.pipeline.run.run_events import declared_work, peak_rates_of


def stage(name, **estimate):
    return StageSpec.model_validate({"name": name, "target": "x.py:X", "estimate": estimate})


def test_only_what_is_said_is_told():
    stages = [stage("a", flop=2e12), stage("b"), stage("c", flop=1e9, bytes=1e6)]
    assert declared_work(stages) == {"a": {"flop": 2e12}, "c": {"flop": 1e9, "bytes": 1e6}}


def test_a_device_is_known_by_its_data_sheet():
    assert peak_rates("NVIDIA H200")["bytes_per_s"] == pytest.approx(4.8e12)
    assert peak_rates_of({"name": "NVIDIA A100-SXM4-80GB", "kind": "discrete"})["flop_per_s"] == 312e12
    assert peak_rates_of({"name": "a h100 of a name", "kind": "cpu"}) == {}
    assert peak_rates_of({"name": "Some other GPU", "kind": "discrete"}) == {}


@pytest.mark.parametrize("name", HARDWARE)
def test_no_data_sheet_has_its_columns_mixed_up(name):
    """Memory is between ten and a thousand times as fast as the bus, and gives 1 to 1000 bytes per kflop."""
    one = HARDWARE[name]
    assert 4 < one.memory_bytes_s / one.bus_bytes_s < 1000
    assert 1e-3 < one.memory_bytes_s / (one.tflops * 1e12) < 1.0
