"""The worker's side of a run: holds the models of its stages, swaps them, and runs what it is told to.

One process is one host, with all devices of its group. A stage is built when it is first needed; what is not
to be kept is dropped before, and the driver is asked whether the memory came back.
"""

import gc
import queue
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from evenload.executor.failure import Failure, is_memory_error
from evenload.pipeline.course import Task
from evenload.pipeline.plan import Fit
from evenload.pipeline.stage import Item, StageRunner, StageWorker

__all__ = ["LOAD", "RUN", "WAIT", "HostSpec", "Order", "Outcome", "StageHost"]

LOAD, RUN, WAIT = "load", "run", "wait"
WORTH_COLLECTING_BYTES = 2 << 30  # in a smaller process a collection costs more than what it frees
MOST_LEFT_BYTES = 256 << 20  # of a model that was dropped


@dataclass(frozen=True, slots=True)
class HostSpec:
    """All that a worker must know; sent to it once."""

    stages: tuple[StageWorker, ...]
    n_devices: int = 1


class Order(NamedTuple):
    """``load`` a stage | ``run`` a task (with several lanes: begin it) | ``wait`` until a task is over."""

    kind: str
    stage: int = 0
    fit: Fit = Fit()
    keep: tuple[int, ...] = ()
    task: Task = Task(0, 0)
    values: Mapping[str, Any] = {}
    item: Item | None = None
    place: str = ""


@dataclass(slots=True)
class Outcome:
    """What became of an order. ``kind``: loaded | refused | done | failed | memory.

    outputs       small values as they are, files as paths relative to the run folder
    files         output -> [bytes, digest]
    start_s       by ``time.monotonic``, the same clock in all processes of a machine
    peak_bytes    most memory that was ever taken here: of the GPU, or of the process on the CPU
    must_replace  memory did not come back: this process should not go on
    """

    kind: str
    stage: int
    task: Task | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list] = field(default_factory=dict)
    error: tuple[str, str, str] = ("", "", "")
    start_s: float = 0.0
    stop_s: float = 0.0
    peak_bytes: int | None = None
    must_replace: bool = False


class StageHost:
    """Called with orders, one at a time; answers with the outcomes that are there by then."""

    def __init__(self, spec: HostSpec, device: Any):
        self._spec = spec
        self._device = device
        self._held: dict[int, _Held] = {}

    def __call__(self, order: Order) -> list[Outcome]:
        if order.kind == LOAD:
            return [self._load(order)]
        held = self._held[order.stage]
        if order.kind == WAIT:
            return held.wait()
        return held.run(order)

    def close(self) -> None:
        for stage in tuple(self._held):
            self._drop(stage)

    def _load(self, order: Order) -> Outcome:
        began_s = time.monotonic()
        must_replace = False
        try:
            for stage in tuple(self._held):
                if stage not in order.keep:
                    must_replace |= not self._drop(stage)
            free = _free_bytes()
            worker = self._spec.stages[order.stage]
            make = StageRunner if worker.python is None else _elsewhere()
            runner = make(worker, self._device, order.fit, self._spec.n_devices)
            self._held[order.stage] = _Held(runner, order.stage, order.fit.in_flight, free)
        except Exception as error:
            kind = "memory" if is_memory_error(error) else "refused"
            error.__traceback__ = None if kind == "memory" else error.__traceback__
            return _timed(Outcome(kind, order.stage, error=_told(error)), began_s)
        return _timed(Outcome("loaded", order.stage, must_replace=must_replace), began_s)

    def _drop(self, stage: int) -> bool:
        """Let go of a stage. Did the memory that it took come back?"""
        held = self._held.pop(stage)
        free = held.free_before
        held.close()
        del held
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            if psutil.Process().memory_info().rss > WORTH_COLLECTING_BYTES:
                gc.collect()
            return True
        gc.collect()
        torch.cuda.empty_cache()
        after = _free_bytes()
        is_ours = torch.cuda.memory_allocated() > MOST_LEFT_BYTES  # not another tenant's
        return free is None or after is None or after >= free - MOST_LEFT_BYTES or not is_ours


def _elsewhere() -> Any:
    from evenload.pipeline.elsewhere import ElsewhereRunner

    return ElsewhereRunner


class _Held:
    """A stage that is built. With several lanes, each has what remembers of its own, and a thread."""

    def __init__(self, runner: StageRunner, stage: int, n_lanes: int, free_before: int | None):
        self.free_before = free_before
        self._stage = stage
        self._first = runner
        self._over: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._lanes: queue.SimpleQueue[StageRunner] = queue.SimpleQueue()
        self._lanes.put(runner)
        self._has_lanes = False
        for _ in range(n_lanes - 1):
            lane = runner.lane()
            if lane is not None:
                self._has_lanes = True
                self._lanes.put(lane)

    def run(self, order: Order) -> list[Outcome]:
        if not self._has_lanes:
            return [_ran(self._first, self._stage, order)]
        threading.Thread(target=self._run_on_lane, args=(order,), daemon=True).start()
        return self._there()

    def wait(self) -> list[Outcome]:
        if not self._has_lanes:
            return []
        return [self._over.get(), *self._there()]

    def close(self) -> None:
        self._first.close()

    def _there(self) -> list[Outcome]:
        outcomes = []
        while not self._over.empty():
            outcomes.append(self._over.get())
        return outcomes

    def _run_on_lane(self, order: Order) -> None:
        lane = self._lanes.get()
        outcome = _ran(lane, self._stage, order)
        self._lanes.put(lane)
        self._over.put(outcome)


def _ran(runner: StageRunner, stage: int, order: Order) -> Outcome:
    began_s = time.monotonic()
    assert order.item is not None
    try:
        outputs, files = runner.run(order.values, order.item, order.place)
    except Exception as error:
        kind = "memory" if is_memory_error(error) else "failed"
        told = _told(error)
        error.__traceback__ = None  # its frames hold the tensors that did not fit
        if kind == "memory":
            _let_go()
        return _timed(Outcome(kind, stage, order.task, error=told), began_s)
    return _timed(Outcome("done", stage, order.task, outputs, files), began_s)


def _timed(outcome: Outcome, began_s: float) -> Outcome:
    outcome.start_s, outcome.stop_s = began_s, time.monotonic()
    outcome.peak_bytes = _peak_bytes()
    return outcome


def _told(error: Exception) -> tuple[str, str, str]:
    failure = Failure.of(error, travels=False)
    return failure.type_name, failure.message, failure.traceback


def _let_go() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _free_bytes() -> int | None:
    """Free memory of this host's first GPU, by its driver; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info()[0])


def _peak_bytes() -> int | None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return max(int(torch.cuda.max_memory_reserved(at)) for at in range(torch.cuda.device_count()))
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run_folder_path(values: Mapping[str, Any], folder: Path, files: set[str]) -> dict[str, Any]:
    """``values`` with the outputs in ``files`` as absolute paths."""
    return {name: str(folder / value) if name in files else value for name, value in values.items()}
