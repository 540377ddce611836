import os
import subprocess
import sys

import pytest

from evenload._optional import is_installed
from evenload.devices.probes import wgpu


def adapter(device, kind, backend, vendor=0, model=0, description=""):
    return {
        "device": device,
        "adapter_type": kind,
        "backend_type": backend,
        "vendor_id": vendor,
        "device_id": model,
        "description": description,
    }


RTX_VULKAN = adapter("NVIDIA GeForce RTX 4090", "DiscreteGPU", "Vulkan", 0x10DE, 0x2684, "575.57.08")
RTX_OPENGL = adapter("NVIDIA GeForce RTX 4090/PCIe/SSE2", "Unknown", "OpenGL", 0x10DE, 0)
INTEL = adapter("Intel(R) UHD Graphics 770 (ADL-S GT1)", "IntegratedGPU", "Vulkan", 0x8086, 0x4680)
LAVAPIPE = adapter("llvmpipe (LLVM 15.0.6, 256 bits)", "CPU", "Vulkan", 0x10005, 0)
LLVMPIPE = adapter("llvmpipe (LLVM 15.0.6, 256 bits)", "CPU", "OpenGL", 0x10005, 0)


def found(*adapters):
    return wgpu.probe(lambda: adapters)


def test_each_gpu_once_by_its_best_backend_and_software_last():
    devices = found(LLVMPIPE, RTX_OPENGL, LAVAPIPE, INTEL, RTX_VULKAN).devices
    assert [(d.id, d.kind, d.backend) for d in devices] == [
        ("wgpu:0", "integrated", "vulkan"),
        ("wgpu:1", "discrete", "vulkan"),
        ("wgpu:2", "cpu", "vulkan"),
    ]
    assert devices[1].pci_id == "10de:2684"
    assert devices[1].driver == "575.57.08"


def test_two_boards_of_a_kind_have_names_of_their_own():
    devices = found(RTX_VULKAN, RTX_VULKAN).devices
    assert [d.uuid for d in devices] == ["vulkan-10de-2684-0", "vulkan-10de-2684-1"]


def test_opengl_counts_where_nothing_better_reaches_the_vendor():
    (device,) = found(RTX_OPENGL).devices
    assert (device.kind, device.backend, device.pci_id) == ("virtual", "opengl", None)


def test_software_is_no_accelerator_and_says_so():
    report = found(LLVMPIPE)
    (device,) = report.devices
    assert not device.is_accelerator
    assert "in software" in report.notes[0]


def test_no_adapter_is_absent_with_advice():
    report = found()
    assert (report.status, report.devices) == ("absent", ())
    assert "mesa-vulkan-drivers" in report.hint


def test_without_the_package_the_install_line_is_told(monkeypatch):
    monkeypatch.setattr(wgpu.importlib.util, "find_spec", lambda name: None)
    report = wgpu.probe()
    assert (report.status, report.hint) == ("missing", "pip install 'evenload[zk]'")


@pytest.mark.skipif(not is_installed("wgpu"), reason="needs the wgpu package")
def test_the_real_probe_reports_quietly_and_leaves_this_process_alone(no_cache):
    code = "import sys, evenload.devices.probes.wgpu as p; print(p.probe().status, 'wgpu' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=550
    )
    assert done.stdout.split() in (["ok", "False"], ["absent", "False"])
    assert done.stderr == ""
    assert [path.name.partition("-")[0] for path in no_cache.iterdir()] == ["wgpu_child"]


@pytest.mark.skipif(not is_installed("wgpu"), reason="needs the wgpu package")
def test_a_found_adapter_can_be_opened_by_its_uuid(no_cache):
    devices = wgpu.probe().devices
    if not devices:
        pytest.skip("no adapter here, not even in software")
    # in a process of its own: a driver that is loaded stays loaded
    code = (
        "import os, sys; from evenload.devices.probes import wgpu\n"
        "print(wgpu.open_adapter(sys.argv[1]).info['device'])\n"
        "try: wgpu.open_adapter('vulkan-none')\n"
        "except LookupError as error: print(error)\n"
        "sys.stdout.flush(); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, devices[0].uuid or ""], capture_output=True, text=True, timeout=550
    )
    assert done.stdout.splitlines() == [devices[0].name, "no wgpu adapter 'vulkan-none'"], done.stderr
    assert os.environ.get("EVENLOAD_ADAPTER") is None


COMPILERS = ("adapters", "triton", "llvmlite.binding")
"""In this order and the reverse, each comes before and after each other one."""


@pytest.mark.parametrize("order", [COMPILERS, COMPILERS[::-1]], ids="-".join)
@pytest.mark.skipif(not all(map(is_installed, ("wgpu", "triton", "llvmlite"))), reason="needs all three")
def test_all_that_have_a_compiler_inside_live_in_one_process(order):
    code = (
        "import importlib, os, sys; from evenload.devices.probes import wgpu\n"
        "for name in sys.argv[1:]:\n"
        "    wgpu.adapters_here() if name == 'adapters' else importlib.import_module(name)\n"
        "    print(name, flush=True)\n"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", code, *order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert (tuple(done.stdout.split()), done.returncode) == (order, 0), done.stderr
