"""The probe of the CPU: the cores and memory that this process may use, not the machine's."""

import math
import os
import platform
import sys
from pathlib import Path

from evenload.devices.cgroup import CgroupLimits, cgroup_limits
from evenload.devices.device import Device
from evenload.devices.probe import ProbeReport, Reading


def probe() -> ProbeReport:
    import psutil

    limits = cgroup_limits()
    cores, total = usable_cores(limits), os.cpu_count() or 1
    memory_bytes = psutil.virtual_memory().total
    notes = []
    if cores < total:
        notes.append(
            f"{cores} of {total} cores are this process's own (affinity, container limit or a parent's share)"
        )
    if limits.memory_bytes is not None and limits.memory_bytes < memory_bytes:
        memory_bytes = limits.memory_bytes
        notes.append("memory is limited by a control group")
    device = Device(
        id="cpu:0",
        kind="cpu",
        backend="cpu",
        name=cpu_name(),
        memory_bytes=memory_bytes,
        compute_units=cores,
        driver=f"{platform.system()} {platform.machine()}",
        threads=cores,
    )
    return ProbeReport("cpu", (device,), notes=tuple(notes))


def usable_cores(limits: CgroupLimits | None = None) -> int:
    """Count the cores that affinity, control groups and a parent evenload allow; parts count as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = (limits or cgroup_limits()).cpus
    share = os.environ.get("EVENLOAD_THREADS", "")
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    if share.isdigit():
        cores = min(cores, int(share))
    return max(1, cores)


def open_sampler() -> "CpuSampler":
    return CpuSampler()


class CpuSampler:
    """A reader of the load of this process's cores. Utilisation is known from the second on."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._limits = cgroup_limits()
        self._before = self._times()

    def read(self, device: Device) -> Reading:
        memory = self._psutil.virtual_memory()
        used, total = memory.total - memory.available, memory.total
        if self._limits.memory_bytes is not None and self._limits.memory_used is not None:
            used, total = int(self._limits.memory_used.read_text()), self._limits.memory_bytes
        return Reading(
            utilization=self._utilization(),
            memory_used_bytes=used,
            memory_total_bytes=total,
            temperature_c=self._temperature(),
        )

    def close(self) -> None:
        """Nothing is held open."""

    def _times(self) -> tuple[float, float]:
        """Return (idle, all) seconds of these cores since the machine was started."""
        per_core = self._psutil.cpu_times(percpu=True)
        if hasattr(os, "sched_getaffinity"):
            per_core = [t for core, t in enumerate(per_core) if core in os.sched_getaffinity(0)] or per_core
        idle = sum(t.idle + getattr(t, "iowait", 0.0) for t in per_core)
        # guest time is counted in user time already
        spent = sum(sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0) for t in per_core)
        return idle, spent

    def _utilization(self) -> float | None:
        idle, spent = self._times()
        idle_before, spent_before = self._before
        if spent - spent_before <= 0:
            return None
        self._before = (idle, spent)
        return min(1.0, max(0.0, 1.0 - (idle - idle_before) / (spent - spent_before)))

    def _temperature(self) -> float | None:
        sensors = getattr(self._psutil, "sensors_temperatures", dict)()
        chips = [
            sensors[chip] for chip in ("coretemp", "k10temp", "zenpower", "cpu_thermal") if chip in sensors
        ]
        return max((sensor.current for chip in chips for sensor in chip), default=None)


def cpu_name() -> str:
    """The processor's name, as the system has it."""
    if sys.platform.startswith("linux"):
        try:
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith(("model name", "Model\t", "Hardware")):
                    return line.partition(":")[2].strip()
        except OSError:
            pass  # no /proc: the general answer below will do
    if sys.platform == "darwin":
        from evenload.devices.probes.mps import ask

        return ask("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    return platform.processor() or platform.machine() or "CPU"
