import os

import pytest

from evenload._optional import is_installed
from evenload.devices.device import Device
from evenload.devices.probes import cuda


def test_a_board_is_told_in_full(nvml):
    driver = nvml.Nvml(nvml.h200())
    (device,) = cuda.probe(driver, environ={}).devices
    assert device == Device(
        id="cuda:0",
        kind="discrete",
        backend="cuda",
        name="NVIDIA H200",
        memory_bytes=141 * 2**30,
        compute_units=132,
        driver="NVIDIA 575.57.08",
        uuid="GPU-02c4e6a8-0000",
        pci_id="10de:2335",
    )
    assert driver.sessions == 0, "the session is closed"


def test_what_an_old_board_does_not_say_is_none(nvml):
    (device,) = cuda.probe(nvml.Nvml(nvml.gtx1060()), environ={}).devices
    assert (device.compute_units, device.memory_bytes) == (None, 6 * 2**30)


def test_an_inherited_mask_is_kept_and_told(nvml):
    driver = nvml.Nvml(nvml.h200(), nvml.a100(1), nvml.gtx1060(2))
    report = cuda.probe(driver, environ={"CUDA_VISIBLE_DEVICES": "2,0"})
    assert [(d.id, d.uuid[:9]) for d in report.devices] == [("cuda:0", "GPU-21060"), ("cuda:1", "GPU-02c4e")]
    assert report.hidden_ids == ("10de:20b2",)
    assert report.notes == ("CUDA_VISIBLE_DEVICES='2,0' hides 1 of 3 GPUs",)


def test_a_mask_that_hides_all_is_a_reason(nvml):
    report = cuda.probe(nvml.Nvml(nvml.h200()), environ={"CUDA_VISIBLE_DEVICES": ""})
    assert (report.devices, report.status) == ((), "ok")
    assert "hidden" in report.reason


def test_each_mig_instance_is_a_device(nvml):
    split = nvml.a100(0, instances=[nvml.mig_instance(0), nvml.mig_instance(1)])
    report = cuda.probe(nvml.Nvml(split, nvml.a100(1)), environ={})
    assert [(d.id, d.kind, d.uuid) for d in report.devices] == [
        ("cuda:0", "virtual", "MIG-0f00d"),
        ("cuda:1", "virtual", "MIG-1f00d"),
        ("cuda:2", "discrete", "GPU-1a100a10-0000"),
    ]
    assert [d.compute_units for d in report.devices] == [14, 14, 108]
    assert report.notes == ("GPU 0: split by MIG, each instance is a device of its own",)


def test_mig_without_instances_is_noted(nvml):
    report = cuda.probe(nvml.Nvml(nvml.a100(0, instances=[])), environ={})
    assert report.devices == ()
    assert "no instance exists" in report.notes[0]


def test_a_share_of_a_board_is_virtual(nvml):
    (device,) = cuda.probe(nvml.Nvml(nvml.a100(virtualization=2)), environ={}).devices
    assert device.kind == "virtual"


def test_a_driver_that_fails_is_reported_and_the_session_of_a_fault_midway_is_closed(nvml, monkeypatch):
    report = cuda.probe(nvml.Nvml(fault=nvml.NVMLError("Driver/library version mismatch")), environ={})
    assert report.status == "failed"
    assert "version mismatch" in report.reason
    assert "nvidia-smi" in report.hint

    driver = nvml.Nvml(nvml.h200())
    monkeypatch.setattr(driver, "nvmlDeviceGetName", lambda gpu: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cuda.probe(driver, environ={})
    assert driver.sessions == 0


def test_torch_is_asked_where_nvml_is_out_of_reach():
    def amd():
        gpu = {"name": "AMD Instinct MI210", "memory_bytes": 64 * 2**30, "compute_units": 104}
        return {"cuda": None, "hip": "6.2", "gpus": [{**gpu, "is_integrated": False, "uuid": "ab"}]}

    report = cuda.probe(ask_torch=amd) if not cuda._has_nvml() else pytest.skip("NVML answers here")
    (device,) = report.devices
    assert (device.id, device.backend, device.driver, device.uuid) == ("cuda:0", "rocm", "ROCm 6.2", None)
    assert "found through torch" in report.notes[0]

    def nvidia():
        return {**amd(), "cuda": "12.8", "hip": None}

    assert cuda.probe(ask_torch=nvidia).devices[0].uuid == "GPU-ab"
    assert cuda.probe(ask_torch=lambda: {**amd(), "gpus": []}).devices == ()


@pytest.mark.skipif(any(map(os.path.exists, cuda.DRIVER_FILES)), reason="an NVIDIA driver is here")
def test_the_real_probe_on_a_machine_without_a_driver():
    report = cuda.probe()
    assert (report.devices, report.status, report.hint) == ((), "absent", "")
    assert report.reason == "no NVIDIA driver on this machine"


@pytest.mark.skipif(not is_installed("pynvml"), reason="needs nvidia-ml-py")
@pytest.mark.skipif(any(map(os.path.exists, cuda.DRIVER_FILES)), reason="an NVIDIA driver is here")
def test_the_real_binding_fails_as_the_probe_expects():
    import pynvml

    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlInit()
    assert cuda.probe(pynvml).status == "failed", "asked for by hand, a missing library is a fault"


def test_readings_are_shares_and_strangers_are_counted(nvml):
    driver = nvml.Nvml(nvml.h200(busy=37, used=2**30, celsius=61, pids=(os.getpid(), 1)))
    (device,) = cuda.probe(driver, environ={}).devices
    sampler = cuda.CudaSampler(driver)
    reading = sampler.read(device)
    assert (reading.utilization, reading.memory_used_bytes, reading.temperature_c) == (0.37, 2**30, 61)
    assert (reading.memory_total_bytes, reading.foreign_processes) == (141 * 2**30, 1)
    sampler.close()
    assert driver.sessions == 0


def test_readings_that_a_mig_instance_refuses_are_none(nvml):
    driver = nvml.Nvml(nvml.a100(instances=[nvml.mig_instance(0)]))
    (device,) = cuda.probe(driver, environ={}).devices
    reading = cuda.CudaSampler(driver).read(device)
    assert (reading.utilization, reading.temperature_c, reading.foreign_processes) == (None, None, 0)
    assert reading.memory_total_bytes == 10 * 2**30


@pytest.mark.gpu
@pytest.mark.skipif(
    not os.path.exists("/proc/driver/nvidia/version"), reason="no NVIDIA driver on this machine"
)
def test_a_real_board_has_a_uuid_and_a_load():
    report = cuda.probe()
    assert report.devices, report.reason
    assert all(device.uuid for device in report.devices)
    sampler = cuda.open_sampler()
    try:
        assert sampler.read(report.devices[0]).memory_total_bytes
    finally:
        sampler.close()
