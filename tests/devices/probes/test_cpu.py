import os

import pytest

from evenload.devices.probes import cpu
from evenload.devices.probes.cpu import CgroupLimits


def test_the_real_cpu():
    report = cpu.probe()
    (device,) = report.devices
    assert (device.id, device.kind, report.status) == ("cpu:0", "cpu", "ok")
    assert 1 <= device.compute_units == device.threads <= os.cpu_count()
    assert device.memory_bytes > 2**28
    assert device.name


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is a thing of Linux")
def test_affinity_counts(monkeypatch):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cpu.usable_cores() == 1
        if len(before) > 1:
            assert "affinity" in cpu.probe().notes[0]
    finally:
        os.sched_setaffinity(0, before)


def test_quotas_and_a_parents_share_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert cpu.usable_cores(CgroupLimits()) == 16
    assert cpu.usable_cores(CgroupLimits(cpus=4.0)) == 4
    assert cpu.usable_cores(CgroupLimits(cpus=1.5)) == 2, "a part of a core counts as one"
    assert cpu.usable_cores(CgroupLimits(cpus=0.1)) == 1
    assert cpu.usable_cores(CgroupLimits(cpus=64.0)) == 16
    monkeypatch.setenv("EVENLOAD_THREADS", "3")
    assert cpu.usable_cores(CgroupLimits(cpus=4.0)) == 3


def test_memory_of_a_container_is_its_limit(monkeypatch):
    monkeypatch.setattr(cpu, "cgroup_limits", lambda: CgroupLimits(memory_bytes=2**29))
    report = cpu.probe()
    assert report.devices[0].memory_bytes == 2**29
    assert "memory is limited by a control group" in report.notes


def test_readings_are_shares_and_bytes(tmp_path, monkeypatch):
    (device,) = cpu.probe().devices
    sampler = cpu.open_sampler()
    sum(i * i for i in range(300_000))  # some time must pass on our cores
    reading = sampler.read(device)
    assert reading.utilization is None or 0 <= reading.utilization <= 1
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes
    sampler.close()

    (tmp_path / "memory.current").write_text("4096\n")
    limits = CgroupLimits(memory_bytes=2**29, memory_used=tmp_path / "memory.current")
    monkeypatch.setattr(cpu, "cgroup_limits", lambda: limits)
    reading = cpu.open_sampler().read(device)
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (4096, 2**29)
