"""The limits that a container or job scheduler set for this process: Linux control groups, v1 and v2."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

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
