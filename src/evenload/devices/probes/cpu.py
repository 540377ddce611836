"""The probe of the CPU: the cores and memory that this process may use, not the machine's."""

import math
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from evenload.devices.device import Device
from evenload.devices.probe import ProbeReport, Reading

# v1 writes "no limit" as the largest multiple of the page size that fits.
UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits of this process; None is no limit. ``cpus`` may be fractional, ``memory_used`` is a file."""

    cpus: float | None = None
    memory_bytes: int | None = None
    memory_used: Path | None = None


def cgroup_limits(proc: Path = Path("/proc/self")) -> CgroupLimits:
    """Read the tightest limits of this process's group and its parents; none without groups."""
    try:
        groups = os.fsdecode((proc / "cgroup").read_bytes())  # folders may have any bytes in their names
        mounts = os.fsdecode((proc / "mountinfo").read_bytes())
    except OSError:
        return CgroupLimits()
    cpu, memory = _folders(groups, mounts, "cpu"), _folders(groups, mounts, "memory")
    quotas = [quota for folder in cpu if (quota := _cpu_quota(folder)) is not None]
    limits = [(limit, folder) for folder in memory if (limit := _memory_limit(folder)) is not None]
    memory_bytes, folder = min(limits, default=(None, None))
    used = next(
        (f for n in ("memory.current", "memory.usage_in_bytes") if folder and (f := folder / n).exists()),
        None,
    )
    return CgroupLimits(cpus=min(quotas, default=None), memory_bytes=memory_bytes, memory_used=used)


def _folders(groups: str, mounts: str, controller: str) -> list[Path]:
    """List the folders that limit this process for ``controller``, innermost first."""
    found: list[Path] = []
    for line in groups.split("\n"):  # the only byte that no name has
        hierarchy, _, rest = line.partition(":")
        controllers, has_path, path = rest.partition(":")
        if not has_path:
            continue
        is_v2 = hierarchy == "0" and not controllers
        if not is_v2 and controller not in controllers.split(","):
            continue
        for root, mount in _mount_points(mounts, controller, is_v2):
            inside = os.path.relpath(path, root)
            # A path outside the mounted part is the host's: the mounted folder is this process's group.
            innermost = mount if inside.startswith("..") else mount / inside
            found += [f for f in (innermost, *innermost.parents) if f == mount or mount in f.parents]
    return found


def _mount_points(mounts: str, controller: str, is_v2: bool) -> list[tuple[str, Path]]:
    """List (root inside the hierarchy, mount point) of the file systems that have ``controller``."""
    points = []
    for line in mounts.split("\n"):
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" if is_v2 else kind[0] == "cgroup" and controller in kind[2].split(","):
            points.append((_unescaped(fields[3]), Path(_unescaped(fields[4]))))
    return points


def _unescaped(field: str) -> str:
    """Put back what proc(5) writes as octal digits: spaces, tabs, line ends and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _cpu_quota(folder: Path) -> float | None:
    """Read the CPUs per period: v2 ``cpu.max``, v1 ``cpu.cfs_*_us``; None without a limit."""
    words = _words(folder / "cpu.max") or [
        *_words(folder / "cpu.cfs_quota_us"),
        *_words(folder / "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or words[0] in ("max", "-1"):
        return None
    return int(words[0]) / int(words[1])


def _memory_limit(folder: Path) -> int | None:
    words = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
    if not words or words[0] == "max" or int(words[0]) >= UNLIMITED_BYTES:
        return None
    return int(words[0])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


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
