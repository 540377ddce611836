"""Which devices ``add`` and ``drain`` mean, by all the names that a device has."""

import re

import pytest

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, UnknownName
from evenload.executor import Executor


def gpu(index: int) -> Device:
    return Device(f"cuda:{index}", "discrete", "cuda", "a GPU", uuid=f"GPU-{index}")


@pytest.mark.parametrize(
    "spec",
    [
        "cpu:0", " CPU:1", "cpu:1,0", "cpu", "all", ["cpu:0", "cpu:1"], "cpu:2,cpu:0",
        Device("cpu:0", "cpu", "cpu", "another", threads=1),
        [Device("cpu:1", "cpu", "cpu", "another", threads=1)],
        DevicePool([Device("cpu:9", "cpu", "cpu", "x"), Device("cpu:1", "cpu", "cpu", "x")]),
    ],
)  # fmt: skip
def test_a_device_that_takes_part_is_refused_by_whichever_name(spec: object) -> None:
    with Executor("cpu*3", backend="inline") as executor:
        executor.drain("cpu:2")
        with pytest.raises(ConfigError, match=r"cpu:[01](, cpu:[01])? takes? part already"):
            executor.add(spec)
        assert executor.devices.ids == ("cpu:0", "cpu:1"), "all or none"


@pytest.mark.parametrize(
    "spec",
    ["cpu*0.5", "cpu:0.5", 0.5, "0.5", "1.5", float("nan"), True, None, b"cpu", "", ",", [], [3.0], "cpu*-1",
     "cpu:-1", 0, -1, "cpu*0", "gpux", "cpu:7", "cpu:1e3", "cpu:²", "x" * 5000, {"cpu": 1}, "cpu*99999"],
)  # fmt: skip
def test_names_that_are_none_are_refused_in_few_words(spec: object) -> None:
    with Executor("cpu*2", backend="inline") as executor:
        with pytest.raises(ConfigError) as caught:
            executor.add(spec)  # type: ignore[arg-type]
        assert len(caught.value.message) < 400
        assert executor.devices.ids == ("cpu:0", "cpu:1")
        with pytest.raises(UnknownName):
            executor.drain(spec)  # type: ignore[arg-type]
        assert list(executor.map(abs, [-1])) == [1]


def test_what_was_drained_comes_back_and_counts_make_new_slots() -> None:
    with Executor("cpu*3", backend="inline") as executor:
        first = executor.devices.device("cpu:1")
        executor.drain("cpu:1", "cpu:2")
        assert executor.add("cpu*2") == ("cpu:3", "cpu:4"), "the old numbers are kept for those that had them"
        assert executor.add("CPU:1, 2") == ("cpu:1", "cpu:2")
        assert executor.devices.device("cpu:1") is first
        executor.drain("cpu:1", "cpu:3")
        assert executor.add(1) == ("cpu:5",)
        assert executor.add("cpu:3,cpu*1") == ("cpu:3", "cpu:6")
        with pytest.raises(ConfigError, match=r"same id|twice"):
            executor.add("cpu:1,cpu:1")
        assert executor.add(first) == ("cpu:1",)
        assert set(executor.map(abs, range(50))) == set(range(50))


def test_gpus_are_refused_by_all_their_names() -> None:
    cpu = Device("cpu:0", "cpu", "cpu", "a CPU", threads=2)
    with Executor(DevicePool([gpu(0), gpu(1), cpu]), backend="inline") as executor:
        executor.drain("cuda:1")
        for spec in ("cuda:0", "cuda:1,0", "cuda:0,1", gpu(0), [gpu(1), gpu(0)], DevicePool([gpu(0)])):
            with pytest.raises(ConfigError, match=re.escape("cuda:0 takes part already")):
                executor.add(spec)
        assert executor.add("cuda:1") == ("cuda:1",)
