"""A worker's device, given to it by environment variables that are set before it imports anything.

parent: worker_environment(device, pool) ──► the worker's environment ──► worker: current()
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evenload.devices.device import Device, family_of
from evenload.devices.pool import DevicePool

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# CUDA reads an empty mask as "no GPU". HIP reads it as "not set", and -1 as "no GPU".
NO_CUDA, NO_HIP = "", "-1"


@dataclass(frozen=True, slots=True)
class CurrentDevice:
    """The device of the current code, as a task sees it.

    id       the executor's name for it, such as "cuda:1"
    torch    the device for torch: "cuda:0" in a worker, which sees one GPU only; "mps"; else "cpu"
    threads  the number of threads that this worker may use
    adapter  ``uuid`` of the wgpu adapter to open, for a "wgpu" device
    """

    id: str
    torch: str
    threads: int
    adapter: str | None = None

    @property
    def family(self) -> str:
        return family_of(self.id)


class _Override(threading.local):
    """What ``as_current`` says in this thread.

    No context variable: until Python 3.12, setting one crashes if the garbage collector runs meanwhile and
    finalises something that sets another, as an executor that nobody closed.
    """

    view: CurrentDevice | None = None


_override = _Override()


def worker_environment(
    device: Device, pool: DevicePool, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Make the variables to add to ``inherited`` for a worker, before its first import.

    GPUs are masked by UUID where there is one, else by the entry of the mask that this process inherited: a
    job scheduler's mask keeps its meaning. Everything but a CUDA or ROCm worker sees no such GPU at all.
    Thread counts are the worker's share, or less if the inherited variable says less.
    """
    threads = thread_share(device, pool)
    environment = {name: str(_at_most(inherited.get(name), threads)) for name in THREAD_VARIABLES}
    environment["EVENLOAD_DEVICE"] = device.id
    environment["EVENLOAD_THREADS"] = str(threads)
    environment["EVENLOAD_ADAPTER"] = (device.uuid or "") if device.family == "wgpu" else ""
    environment |= {"CUDA_VISIBLE_DEVICES": NO_CUDA, "HIP_VISIBLE_DEVICES": NO_HIP}
    if device.backend == "cuda":
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = device.uuid or _entry(
            inherited, device.index, "CUDA_VISIBLE_DEVICES"
        )
    elif device.backend == "rocm":
        # HIP reads both, and they must agree; ROCR_VISIBLE_DEVICES is of the layer below and stays.
        entry = _entry(inherited, device.index, "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        environment |= {"HIP_VISIBLE_DEVICES": entry, "CUDA_VISIBLE_DEVICES": entry}
    return environment


def thread_share(device: Device, pool: DevicePool) -> int:
    """Return the threads that a worker on ``device`` may use while every device of ``pool`` has a worker.

    A CPU slot has its own. An accelerator's worker has one beside CPU slots, else an equal part of all.
    """
    if device.family == "cpu":
        return max(1, device.threads or 1)
    if any(other.family == "cpu" and other.node == device.node for other in pool):
        return 1
    return max(1, pool.n_cores // max(1, len(pool)))


def current() -> CurrentDevice:
    """Return the device set by ``as_current`` or by the worker's environment; else the CPU."""
    if _override.view is not None:
        return _override.view
    device_id = os.environ.get("EVENLOAD_DEVICE", "cpu:0")
    threads = os.environ.get("EVENLOAD_THREADS", "")
    return CurrentDevice(
        id=device_id,
        torch=_torch_name(device_id, 0),
        threads=int(threads) if threads.isdigit() else os.cpu_count() or 1,
        adapter=os.environ.get("EVENLOAD_ADAPTER") or None,
    )


def current_device() -> CurrentDevice | None:
    """Return the device of the task that calls this: ``id``, ``torch``, ``threads``. None outside of a task.

    The same in a map, a submitted call, a gang, a pipeline's stage, joblib, ``evenload.futures``, and on
    every backend. Threads and programs that a task starts are on its device, too; inline, its own thread is.
    """
    return current() if _override.view is not None or os.environ.get("EVENLOAD_DEVICE") else None


@contextmanager
def as_current(device: Device, pool: DevicePool) -> Iterator[CurrentDevice]:
    """Make ``current()`` return ``device`` inside the block, for work in this process without masks.

    It holds for the thread, whatever that turns to: it must not be held across ``await`` or ``yield``.
    """
    before = _override.view
    try:
        _override.view = view = _view_of(device, pool)
        yield view
    finally:
        _override.view = before


def call_on(device: Device, pool: DevicePool, function: Callable[[CurrentDevice], Any]) -> Any:
    """Return what ``function`` does where ``current()`` is ``device``, as in ``as_current``.

    Ctrl-C at any moment leaves nothing behind: it can come as a ``with`` is entered or left, but not between
    the statements here.
    """
    before = _override.view
    try:
        _override.view = view = _view_of(device, pool)
        return function(view)
    finally:
        _override.view = before


def _view_of(device: Device, pool: DevicePool) -> CurrentDevice:
    return CurrentDevice(
        id=device.id,
        torch=_torch_name(device.id, device.index),
        threads=thread_share(device, pool),
        adapter=device.uuid if device.family == "wgpu" else None,
    )


def _torch_name(device_id: str, cuda_index: int) -> str:
    return {"cuda": f"cuda:{cuda_index}", "mps": "mps"}.get(family_of(device_id), "cpu")


def _entry(inherited: Mapping[str, str], position: int, *masks: str) -> str:
    """Return the entry at ``position`` of the first mask that is set; without a mask the position."""
    for mask in masks:
        entries = [entry.strip() for entry in inherited.get(mask, "").split(",") if entry.strip()]
        if position < len(entries):
            return entries[position]
    return str(position)


def _at_most(inherited: str | None, threads: int) -> int:
    """Limit ``threads`` by an inherited variable; OpenMP allows a list, of which the first counts."""
    outer = (inherited or "").split(",")[0].strip()
    return min(int(outer), threads) if outer.isdigit() and int(outer) > 0 else threads
