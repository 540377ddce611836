"""Writes what a benchmark measured, with what it was measured on, to ``benchmarks/results/<name>.json``.

What was measured while other processes ran is written to ``<name>.disturbed.json``, which no table reads.
"""

import atexit
import contextlib
import datetime
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from result_files import MOST_OF_OTHERS, RESULTS, ROOT

from evenload.cli.bench.command import package_versions
from evenload.cli.bench.selections import table_of
from evenload.devices.probes.cpu import cpu_name
from evenload.errors import EvenloadError


def _own_group() -> Path | None:
    """Move into a new control group, which counts servers that Ray leaves behind, too; None if refused."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        (root,) = [mount[1] for mount in mounts if mount[2] == "cgroup2"]
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        (within,) = [line[3:] for line in groups if line.startswith("0::")]
        group = Path(root + within) / f"evenload-benchmark-{os.getpid()}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except (OSError, ValueError, IndexError):
        return None
    atexit.register(_leave, group, os.getpid())
    return group


def _leave(group: Path, pid: int) -> None:
    if os.getpid() == pid:  # not a forked child
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(pid))
            group.rmdir()


def _clocks() -> tuple[float, float, float]:
    """Seconds: of the wall; that the processors were busy; of these, by this process and its descendants."""
    times, spent = psutil.cpu_times(), os.times()
    own = spent.user + spent.system + spent.children_user + spent.children_system
    if GROUP:
        own = int((GROUP / "cpu.stat").read_text().split()[1]) / 1e6  # usage_usec
    return (
        time.monotonic(),
        sum(times[:3]) + sum(getattr(times, name, 0.0) for name in ("irq", "softirq", "steal")),
        own,
    )


GROUP = _own_group()
START, LOAD_BEFORE = _clocks(), os.getloadavg()


def record(name: str, rows: Sequence[Mapping[str, Any]], *, is_of_speed: bool = True, **extra: Any) -> Path:
    """Print ``rows`` as a table; write them, ``extra`` facts, machine, load, versions, date and command.

    What descendants take counts as this process's own; without control groups only once they have ended.
    Counts that do not depend on the machine's leisure are not ``is_of_speed``: others may run meanwhile.
    """
    print_table(rows)
    wall_s, busy_s, own_s = (now - then for now, then in zip(_clocks(), START, strict=True))
    others = max(0.0, busy_s - own_s) / max(1e-9, wall_s * (os.cpu_count() or 1))
    page = {
        "name": name,
        "rows": list(rows),
        **extra,
        "machine": {
            "cpu": cpu_name(),
            "flags": cpu_flags(),
            "kernels": kernels_here(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "load": {
            "before": round(LOAD_BEFORE[0], 2),
            "after": round(os.getloadavg()[0], 2),
            "share_of_others": round(others, 3),
        },
        "is_of_speed": is_of_speed,
        "versions": package_versions("evenload", "numpy", "click", "numba", "scipy", "torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", _below_root(sys.argv[0]), *sys.argv[1:]]),
    }
    RESULTS.mkdir(exist_ok=True)
    is_disturbed = is_of_speed and others > MOST_OF_OTHERS
    path = RESULTS / f"{name}{'.disturbed' if is_disturbed else ''}.json"
    if is_disturbed:
        print(
            f"other processes took {others:.0%} of the processors: written to {path.name}, out of all tables",
            file=sys.stderr,
        )
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _below_root(program: str) -> str:
    path = Path(program).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else f"benchmarks/{path.name}"


def cpu_flags() -> str:
    """Those instruction set extensions of the processor that kernels are chosen by, as Linux names them."""
    known = ("avx2", "bmi2", "adx", "sha_ni", "avx512f", "avx512bw", "avx512ifma", "asimd", "sha2", "sve")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    here = set(next(named, ()))
    return " ".join(flag for flag in known if flag in here)


def kernels_here() -> str:
    """The kind of processor whose kernels run here, and the extensions that kernels look for."""
    try:
        from evenload.native import machine

        found = [f"+{name}" for name in ("sha", "avx512ifma") if name in machine.host_features()]
        return "".join([next(iter(machine.baselines_here()), "plain"), *found])
    except EvenloadError:  # without llvmlite there are none
        return ""


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of equal keys, aligned."""
    print("\n".join(table_of(rows, 4)) if rows else "")
