"""Which rows of a Chrome trace are devices, and what their spans went into, by the tool that wrote it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.audit.recording import EXCHANGE, WORK

__all__ = ["FRAME", "RowRule", "is_window", "rule_of"]

GPU_WORK = ("kernel", "concurrent_kernel", "gpu_memset")
GPU_COPIES = ("gpu_memcpy",)
COLLECTIVES = ("nccl", "rccl", "gloo:", "c10d::", "mscclpp")
FRAME = 9  # a task with all of its parts: it gives its name to what ran in it
TASK_PARTS = {"task:execute": WORK, "task:deserialize_arguments": EXCHANGE, "task:store_outputs": EXCHANGE}
LAUNCH_GAP_NS = 100_000
TASK_GAP_NS = 10_000_000


@dataclass(frozen=True)
class RowRule:
    """A rule that says of a row's category whether its spans count, and which device the row belongs to.

    by  gpu | process | thread | worker
    """

    source: str
    by: str
    kinds: Mapping[str, int] | None
    gap_ns: int = LAUNCH_GAP_NS

    def kind(self, category: str, tid: Any) -> int | None:
        """What spans of a category are; None if they do not count."""
        if self.by == "worker":
            if not str(tid).startswith("worker:"):
                return None
            if category.startswith("task::"):
                return FRAME
        if self.kinds is None:
            return WORK
        return self.kinds.get(category)

    def key(self, pid: Any, tid: Any) -> Any:
        """What rows of one device have in common."""
        return pid if self.by in ("gpu", "process") else (pid, tid)

    def name(self, pid: Any, tid: Any, processes: Mapping[Any, str], threads: Mapping[Any, str]) -> str:
        """A name for a row's device, from what the trace calls its process and thread."""
        process = processes.get(pid, "")
        if self.by == "gpu":
            return f"gpu:{pid}"
        if self.by == "process":
            return f"{process} {pid}" if process and process != str(pid) else f"process {pid}"
        if self.by == "worker":
            return f"{pid} {str(tid)[:15]}"
        thread = threads.get((pid, tid), "") or f"thread {tid}"
        return f"{process or f'process {pid}'} / {thread}"

    def kind_by_name(self, kind: NDArray, name: NDArray, names: Sequence[str]) -> NDArray:
        """The kinds, with collectives told from other work by their names."""
        if self.by not in ("gpu", "process"):
            return kind
        is_collective = np.array([one.lower().startswith(COLLECTIVES) for one in names], bool)
        return np.where((kind == WORK) & is_collective[name], EXCHANGE, kind)

    def name_by_frame(
        self, start: NDArray, stop: NDArray, device: NDArray, kind: NDArray, name: NDArray
    ) -> NDArray:
        """The names, with that of the task for each span that ran in one; tasks turn into EXCHANGE.

        So of a task's time, what is not its execution is exchange.
        """
        if self.by != "worker":
            return name
        frames, parts = np.flatnonzero(kind == FRAME), np.flatnonzero(kind == WORK)
        frames = frames[np.lexsort((start[frames], device[frames]))]
        parts = parts[np.lexsort((start[parts], device[parts]))]
        name = name.copy()
        for one in np.unique(device[parts]):
            own, inside = frames[device[frames] == one], parts[device[parts] == one]
            at = np.searchsorted(start[own], start[inside], side="right") - 1
            known = at >= 0
            known[known] = stop[own[at[known]]] >= start[inside[known]]
            name[inside[known]] = name[own[at[known]]]
        kind[frames] = EXCHANGE
        return name


def is_window(row: tuple[Any, Any, str]) -> bool:
    """Whether a row's span is that from the start of torch's profiler to its end, which is no device's."""
    pid, _, category = row
    return (pid, category) == ("Spans", "Trace")


def rule_of(rows: Sequence[tuple[Any, Any, str]], by: str) -> RowRule:
    """The rule for a trace with these rows. ``by``: auto, thread or process."""
    categories = {category for _, _, category in rows}
    if categories & {*GPU_WORK, *GPU_COPIES}:
        kinds = {**dict.fromkeys(GPU_WORK, WORK), **dict.fromkeys(GPU_COPIES, EXCHANGE)}
        return RowRule("torch profiler", "gpu", kinds)
    if "cpu_op" in categories or any(is_window(row) for row in rows):
        return RowRule("torch profiler, CPU", "thread" if by == "thread" else "process", {"cpu_op": WORK})
    if any(category.startswith("task:") and str(tid).startswith("worker:") for _, tid, category in rows):
        return RowRule("Ray timeline", "worker", TASK_PARTS, TASK_GAP_NS)
    return RowRule("Chrome trace", "process" if by == "process" else "thread", None)
