"""CPU time of a process with its living children, and of those that have ended."""

import contextlib
import resource
from pathlib import Path

import psutil


def process_tree_cpu_s() -> float:
    """CPU seconds of this process and its living children, to the nanosecond (Linux)."""
    total_ns = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        for thread in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it has just ended
                total_ns += int(thread.read_text().split()[0])
    return total_ns / 1e9


def ended_children_cpu_s() -> float:
    """CPU seconds of the children of this process that have ended, with theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
