"""Which rows of a Chrome trace are devices, by the tool that wrote it: one rule for each.

torch's profiler (Kineto)   CUDA, ROCm, XPU: kernels, copies and sets; a GPU's streams are one device
                            MTIA: what its engines execute; transfers are exchange
                            without any of these, operators: a process with its threads is one
torch's old profiler        "CUDA functions": a row is a GPU; without it, "CPU functions" is one device
JAX (XLA)                   "/device:GPU:0": its streams; "/device:TPU:0": its operations. Rows that XLA
                            derives from them (modules, steps, scopes) tell the same time again
Ascend (torch_npu, msprof)  streams of "Ascend Hardware"
Ray's timeline              tasks of its workers
anything else               threads, or processes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.audit.collective_names import operation_of
from evenload.audit.recording import EXCHANGE, WORK
from evenload.errors import FormatError, quoted

Row = tuple[Any, Any, str]  # process, thread, category

LAUNCH_GAP_NS = 100_000
TASK_GAP_NS = 10_000_000
FRAME = 9  # a task with all of its parts: it gives its name to what ran in it
NOTED = 8  # a span that counts if its name is a collective's
MTIA = 7  # a span that counts by its name

GPU_WORK = ("kernel", "concurrent_kernel", "gpu_memset", "Kernel", "Memset")
GPU_COPIES = ("gpu_memcpy", "Memcpy")
GPU_KINDS = {**dict.fromkeys(GPU_WORK, WORK), **dict.fromkeys(GPU_COPIES, EXCHANGE), "mtia_ccp_events": MTIA}
MTIA_KINDS = {"dma": EXCHANGE, "event": -1}  # by how the name begins; anything else is work
OPERATORS = ("cpu_op", "Operator")
TASK_PARTS = {"task:execute": WORK, "task:deserialize_arguments": EXCHANGE, "task:store_outputs": EXCHANGE}
OLD_GPU, OLD_CPU = "CUDA functions", "CPU functions"
HOST_CATEGORIES = (
    "", "Trace", "ac2g", "async_cpu_to_gpu", "cpu_instant_event", "fwdbwd", "forward_backward", "overhead",
    "user_annotation", "gpu_user_annotation", "python_function", "Runtime", "cuda_sync", "mtia_insight",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Labels:
    """The names that a trace has for its processes and threads, and whether it lists accelerators."""

    processes: Mapping[Any, str] = field(default_factory=dict)
    threads: Mapping[Any, str] = field(default_factory=dict)
    has_accelerators: bool = False


@dataclass(frozen=True)
class RowRule:
    """A rule that says of a row whether its spans count, what they are, and which device it belongs to.

    by       gpu | process | thread | worker
    kinds    category -> kind; None: spans of any
    threads  how the names of threads begin that count -> their kind; None: any
    """

    source: str
    by: str
    kinds: Mapping[str, int] | None = None
    gap_ns: int = LAUNCH_GAP_NS
    pids: frozenset[Any] | None = None
    threads: Mapping[str, int] | None = None

    @property
    def is_movable(self) -> bool:
        """Whether spans are tasks that could have run on another device, as kernels of a model could not."""
        return self.by == "worker" or self.source == "Chrome trace"

    def kind(self, row: Row, labels: Labels) -> int | None:
        """What spans of a row are; None if they do not count."""
        pid, tid, category = row
        if self.pids is not None and pid not in self.pids:
            return None
        if self.by == "worker":
            if not str(tid).startswith("worker:"):
                return None
            if category.startswith("task::"):
                return FRAME
        if self.threads is not None:
            name = labels.threads.get((pid, tid), "")
            found = [kind for begin, kind in self.threads.items() if name.startswith(begin)]
            return found[0] if found else None
        return WORK if self.kinds is None else self.kinds.get(category)

    def key(self, pid: Any, tid: Any) -> Any:
        """What rows of one device have in common."""
        return pid if self.by in ("gpu", "process") else (pid, tid)

    def name(self, pid: Any, tid: Any, labels: Labels) -> str:
        """A name for a row's device, from what the trace calls its process and thread."""
        process = labels.processes.get(pid, "")
        if pid == OLD_GPU:
            return f"gpu:{tid}"
        if self.by == "gpu":
            own = process.startswith("/device:")
            kind = "mtia" if process.startswith("MTIA") else "npu" if "Ascend" in process else "gpu"
            return process.removeprefix("/device:").lower() if own else f"{kind}:{pid}"
        if self.by == "process":
            return f"{process} {pid}" if process and process != str(pid) else f"process {pid}"
        if self.by == "worker":
            return f"{pid} {str(tid)[:15]}"
        thread = labels.threads.get((pid, tid), "") or f"thread {tid}"
        return f"{process or f'process {pid}'} / {thread}"

    def kind_by_name(
        self, kind: NDArray, name: NDArray, names: Sequence[str], more: Sequence[str]
    ) -> NDArray:
        """The kinds, with collectives told from other work by their names; ``more``: as ``operation_of``."""
        if self.kinds is None or self.by == "worker":
            return kind
        is_collective = np.array([bool(operation_of(one, more)) for one in names], bool)[name]
        kind = np.where((kind == WORK) & is_collective, EXCHANGE, kind)
        kind = np.where(kind == NOTED, np.where(is_collective, EXCHANGE, -1), kind)
        if (kind == MTIA).any():
            of_mtia = [MTIA_KINDS.get(one.partition("_")[0], WORK) for one in names]
            kind = np.where(kind == MTIA, np.array(of_mtia)[name], kind)
        return kind

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


def is_window(row: Row) -> bool:
    """Whether a row's span is that from the start of torch's profiler to its end, which is no device's."""
    pid, _, category = row
    return (pid, category) == ("Spans", "Trace")


def rule_of(rows: Sequence[Row], by: str, labels: Labels) -> RowRule:
    """The rule for a trace with these rows. ``by``: auto, thread or process.

    Raises FormatError for a trace of torch's profiler whose accelerator is of no known kind.
    """
    categories, pids = {category for _, _, category in rows}, {pid for pid, _, _ in rows}
    if categories & GPU_KINDS.keys():
        return RowRule("torch profiler", "gpu", GPU_KINDS)
    if OLD_GPU in pids:
        return RowRule("torch profiler", "thread", pids=frozenset((OLD_GPU,)))
    if devices := {pid for pid, name in labels.processes.items() if name.startswith("/device:")} & pids:
        return _rule_of_jax(devices, labels)
    if devices := {pid for pid, name in labels.processes.items() if "Ascend Hardware" in name} & pids:
        return RowRule("Ascend profiler", "gpu", pids=frozenset(devices), threads={"Stream": WORK})
    if categories & {*OPERATORS} or any(is_window(row) for row in rows) or OLD_CPU in pids:
        unknown = {one for one in categories - {*OPERATORS, *HOST_CATEGORIES} if not _is_host(one)}
        if unknown and labels.has_accelerators and by == "auto":
            raise FormatError(
                f"rows of torch's profiler of an unknown kind: {quoted(', '.join(sorted(unknown)), 200)}",
                hint="which of them a device did is not known; --rows process audits the program alone",
            )
        kinds = {**dict.fromkeys(OPERATORS, WORK), "user_annotation": NOTED}
        own = RowRule("torch profiler, CPU", "thread" if by == "thread" else "process", kinds)
        return own if OLD_CPU not in pids else RowRule(own.source, own.by, pids=frozenset((OLD_CPU,)))
    if any(category.startswith("task:") and str(tid).startswith("worker:") for _, tid, category in rows):
        return RowRule("Ray timeline", "worker", TASK_PARTS, TASK_GAP_NS)
    return RowRule("Chrome trace", "process" if by == "process" else "thread")


def _is_host(category: str) -> bool:
    return category.endswith(("_runtime", "_driver"))


def _rule_of_jax(devices: set[Any], labels: Labels) -> RowRule:
    """XLA's rows: a GPU's streams, or a TPU's operations."""
    names = {name for (pid, _), name in labels.threads.items() if pid in devices}
    own: Mapping[str, int] | None = None
    if any(name.startswith("Stream #") for name in names):
        copies = {name: EXCHANGE for name in names if name.startswith("Stream #") and "Memcpy" in name}
        own = {**copies, "Stream #": WORK}
    elif "XLA Ops" in names:
        own = {"XLA Ops": WORK}
    return RowRule("JAX profiler", "gpu", pids=frozenset(devices), threads=own)
