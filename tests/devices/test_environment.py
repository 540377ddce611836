import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenload.devices import (
    Device,
    DevicePool,
    Reading,
    as_current,
    current,
    thread_share,
    worker_environment,
)
from evenload.devices.environment import THREAD_VARIABLES

CPU = Device("cpu:0", "cpu", "cpu", "x", threads=16)
GPU0 = Device("cuda:0", "discrete", "cuda", "H200", uuid="GPU-aaa")
GPU1 = Device("cuda:1", "discrete", "cuda", "H200", uuid="GPU-bbb")
AMD = Device("cuda:1", "discrete", "rocm", "MI210")
WGPU = Device("wgpu:0", "integrated", "vulkan", "UHD", uuid="vulkan-8086-4680-0")
POOL = DevicePool([GPU0, GPU1, CPU, WGPU])


def environment(device, spec="all", inherited=None):
    pool = POOL.select(spec)
    return worker_environment(device, pool, inherited or {})


def test_a_cuda_worker_sees_its_gpu_by_uuid():
    told = environment(GPU1, "cuda")
    assert told["CUDA_VISIBLE_DEVICES"] == "GPU-bbb"
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert told["HIP_VISIBLE_DEVICES"] == "-1"
    assert told["EVENLOAD_DEVICE"] == "cuda:1"
    assert {told[name] for name in THREAD_VARIABLES} == {"8"}, "16 cores over two workers"


def test_without_a_uuid_the_entry_of_the_inherited_mask_is_used():
    nameless = Device("cuda:1", "discrete", "cuda", "?")
    pool = DevicePool([nameless])
    assert worker_environment(nameless, pool, {"CUDA_VISIBLE_DEVICES": "4, 6"})["CUDA_VISIBLE_DEVICES"] == "6"
    assert worker_environment(nameless, pool, {})["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("inherited", "entry"),
    [
        ({}, "1"),
        ({"HIP_VISIBLE_DEVICES": "3,5"}, "5"),
        ({"CUDA_VISIBLE_DEVICES": "2,7"}, "7"),
        ({"HIP_VISIBLE_DEVICES": "3,5", "CUDA_VISIBLE_DEVICES": "2,7"}, "5"),
        ({"ROCR_VISIBLE_DEVICES": "6,7"}, "1"),
    ],
)
def test_an_amd_worker_keeps_the_meaning_of_inherited_masks(inherited, entry):
    told = worker_environment(AMD, DevicePool([AMD]), inherited)
    assert told["HIP_VISIBLE_DEVICES"] == told["CUDA_VISIBLE_DEVICES"] == entry
    assert "ROCR_VISIBLE_DEVICES" not in told


@pytest.mark.parametrize("device", [CPU, WGPU])
def test_other_workers_see_no_cuda_gpu(device):
    told = worker_environment(device, POOL, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert told["CUDA_VISIBLE_DEVICES"] == ""
    assert told["HIP_VISIBLE_DEVICES"] == "-1"
    assert told["EVENLOAD_ADAPTER"] == (WGPU.uuid if device is WGPU else "")


def test_threads_are_shared_out():
    slots = POOL.select("cpu*3")
    assert [environment(slot, "cpu*3")["OMP_NUM_THREADS"] for slot in slots] == ["6", "5", "5"]
    mixed = POOL.select("cuda,cpu*2")
    assert [thread_share(device, mixed) for device in mixed] == [1, 1, 7, 7], "a core for each GPU's worker"


@pytest.mark.parametrize(
    ("inherited", "threads"),
    [("2", "2"), ("64", "16"), ("3,2", "3"), ("0", "16"), ("many", "16"), ("", "16")],
)
def test_an_inherited_thread_count_may_only_lower_the_share(inherited, threads):
    told = environment(CPU, "cpu", {"OMP_NUM_THREADS": inherited})
    assert told["OMP_NUM_THREADS"] == threads
    assert told["MKL_NUM_THREADS"] == "16"


def told_inside_a_worker(device, pool):
    code = (
        "import json, os, evenload.devices as d; c = d.current(); "
        "print(json.dumps([c.id, c.family, c.torch, c.threads, c.adapter]))"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    variables = {**inherited, **worker_environment(device, pool, inherited)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True, timeout=550
    )
    return json.loads(done.stdout)


def test_a_worker_knows_its_device():
    assert told_inside_a_worker(GPU1, POOL.select("cuda")) == ["cuda:1", "cuda", "cuda:0", 8, None]
    assert told_inside_a_worker(WGPU, POOL.select("wgpu")) == ["wgpu:0", "wgpu", "cpu", 16, WGPU.uuid]


def test_outside_a_worker_it_is_the_cpu(monkeypatch):
    for name in ("EVENLOAD_DEVICE", "EVENLOAD_THREADS", "EVENLOAD_ADAPTER"):
        monkeypatch.delenv(name, raising=False)
    here = current()
    assert (here.id, here.torch, here.adapter) == ("cpu:0", "cpu", None)
    assert here.threads >= 1


def test_in_this_very_process_gpus_keep_their_numbers():
    before = current()
    mac = Device("mps:0", "integrated", "mps", "M2")
    with as_current(GPU1, POOL) as view:
        assert current() is view
        assert (view.id, view.torch) == ("cuda:1", "cuda:1")
        with as_current(mac, POOL):
            assert current().torch == "mps"
        with as_current(WGPU, POOL):
            assert (current().torch, current().adapter) == ("cpu", WGPU.uuid)
        assert current() is view
    assert current() == before


INTERRUPTED = """
import contextvars, gc
from evenload.devices import Device, DevicePool, as_current, current_device

device = Device("cpu:0", "cpu", "cpu", "x", threads=2)
pool = DevicePool([device])
other = contextvars.ContextVar("other")
other.set(object())

class Unclosed:
    def __init__(self):
        self.me = self

    def __del__(self):
        gc.disable()
        if is_nested:
            with as_current(device, pool):
                assert current_device()
        other.set(object())

gc.disable()
for is_nested in (False, True):
    for n_allocations in range(1, 60):
        gc.collect()
        Unclosed()
        gc.set_threshold(n_allocations)
        gc.enable()
        with as_current(device, pool) as view:
            gc.disable()
            assert current_device() is view
        assert current_device() is None
"""


def test_the_garbage_collector_may_finalise_anything_at_any_moment():
    """What it finds may be an executor that nobody closed: its tasks end then, in this very thread."""
    variables = {**os.environ, "PYTHONMALLOC": "debug"}
    variables.pop("EVENLOAD_DEVICE", None)
    subprocess.run([sys.executable, "-c", INTERRUPTED], env=variables, check=True, timeout=550)


def test_threads_do_not_see_the_device_of_another():
    with as_current(GPU1, POOL), ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: as_current(GPU0, POOL).__enter__().id).result(timeout=500) == "cuda:0"
        assert current().id == "cuda:1"


def test_a_device_of_another_machine_has_its_family_and_number_and_no_driver_here() -> None:
    device = Device("node2/cuda:10", "discrete", "cuda", "GPU", uuid="GPU-10")
    assert (device.node, device.family, device.index) == ("node2", "cuda", 10)
    assert (Device("cpu:3", "cpu", "cpu", "CPU").node, Device("cpu:3", "cpu", "cpu", "CPU").index) == ("", 3)
    pool = DevicePool([device, Device("cpu:0", "cpu", "cpu", "CPU", threads=4)])
    environment = worker_environment(device, pool, {})
    assert environment["EVENLOAD_DEVICE"] == "node2/cuda:10"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-10"
    assert environment["OMP_NUM_THREADS"] == "2", "CPU slots elsewhere take none of its machine's cores"
    assert pool.load("node2/cuda:10").reading == Reading()
