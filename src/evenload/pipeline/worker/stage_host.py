"""The worker's side of a run: holds the models of its stages, swaps them, and runs what it is told to.

One process is one host, with all devices of its group. A stage is built when it is first needed; what is not
to be kept is parked in host memory or dropped before, and the driver is asked whether the memory came back.
"""

import gc
import queue
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from evenload.executor.task.failure import is_memory_error
from evenload.pipeline.dispatch.worker_protocol import ADOPT, LOAD, WAIT, HostSpec, Order, Outcome
from evenload.pipeline.plan import Fit
from evenload.pipeline.stage import StageRunner
from evenload.pipeline.worker.file_saver import FileSaver
from evenload.pipeline.worker.host_memory import HostCopy
from evenload.pipeline.worker.loaded_stage import LoadedStage, described_error, timed
from evenload.pipeline.worker.parking import ParkableModel, stages_to_park, unpark_s

__all__ = ["StageHost", "run_folder_path"]

WORTH_COLLECTING_BYTES = 2 << 30  # in a smaller process a collection costs more than what it frees
LONGEST_WAIT_S = 0.25
LEAST_ROOM_BYTES = 1 << 30  # of host memory, that a model which comes may need beside what is parked
MOST_LEFT_BYTES = 256 << 20  # of a model that was dropped


class StageHost:
    """Called with orders, one at a time; answers with the outcomes that are there by then."""

    def __init__(self, spec: HostSpec, device: Any):
        self._spec = spec
        self._device = device
        self._held: dict[int, LoadedStage] = {}
        self._parked: dict[int, LoadedStage] = {}
        self._seen: dict[int, _Seen] = {}
        self._saver = FileSaver()
        self._over: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def __call__(self, order: Order) -> list[Outcome]:
        if order.kind == LOAD:
            outcomes = self._load(order)
        elif order.kind == ADOPT:
            outcomes = self._adopt(order.spec)
        elif order.kind == WAIT:
            outcomes = self._next()
        else:
            outcomes = self._held[order.stage].run(order.jobs)
        return [*outcomes, *self._there()]

    def close(self) -> None:
        for stage in (*self._held, *self._parked):
            self._drop(stage)
        self._saver.close()

    def _next(self) -> list[Outcome]:
        """What is over next; nothing if that takes long: there may be something new to do meanwhile."""
        try:
            return [self._over.get(timeout=LONGEST_WAIT_S)]
        except queue.Empty:
            return []

    def _there(self) -> list[Outcome]:
        outcomes = []
        while not self._over.empty():
            outcomes.append(self._over.get())
        return outcomes

    def _load(self, order: Order) -> list[Outcome]:
        began_s = time.monotonic()
        must_replace, how = False, "read"
        try:
            must_replace = self._make_room(order)
            if order.stage in self._held:  # from the job before
                how = "kept"
            elif order.stage in self._parked:
                how = "unparked"
                self._held[order.stage] = self._parked.pop(order.stage)
                self._seen[order.stage].copy.unpark()
            else:
                self._build(order)
                self._seen[order.stage].load_s = time.monotonic() - began_s
        except Exception as error:
            kind = "memory" if is_memory_error(error) else "refused"
            error.__traceback__ = None if kind == "memory" else error.__traceback__
            return [timed(Outcome(kind, order.stage, error=described_error(error)), began_s)]
        loaded = timed(Outcome("loaded", order.stage, must_replace=must_replace, how=how), began_s)
        loaded.parked = {stage: unpark_s(self._model(stage)) for stage in self._parked}
        if must_replace:
            self._saver.close()  # whoever replaces this process need not do again what is computed
        return [*self._there(), loaded] if must_replace else [loaded]

    def _build(self, order: Order) -> None:
        free, taken = _free_bytes(), _taken_bytes()
        worker = self._spec.stages[order.stage]
        make = StageRunner if worker.python is None else _elsewhere()
        runner = make(worker, self._device, order.fit, self._spec.n_devices)
        self._held[order.stage] = LoadedStage(
            runner, order.stage, order.fit.in_flight, self._saver, self._over
        )
        copy = HostCopy(getattr(runner, "stage", None))
        n_bytes = max(copy.n_bytes, _taken_bytes() - taken)
        self._seen[order.stage] = _Seen(order.fit, free, n_bytes, copy)

    def _make_room(self, order: Order) -> bool:
        """Park or drop what may not stay. Must this process be replaced, as memory did not come back?"""
        must_replace = False
        if order.stage in self._seen and self._seen[order.stage].fit != order.fit:
            must_replace = not self._drop(order.stage)
        leaving = [stage for stage in self._held if stage not in order.keep and stage != order.stage]
        models = [self._model(stage) for stage in (*leaving, *self._parked) if self._may_park(stage)]
        room = psutil.virtual_memory().available - self._needed_of_host(order)
        stay = stages_to_park(models, order.later, self._spec.park_bytes, room)
        for stage in tuple(self._parked):
            if stage not in stay and stage != order.stage:
                self._drop(stage)
        for stage in leaving:
            must_replace |= not (self._park(stage) if stage in stay else self._drop(stage))
        return must_replace

    def _model(self, stage: int) -> ParkableModel:
        seen, is_moved = self._seen[stage], self._device.torch != "cpu"
        return ParkableModel(stage, seen.n_bytes, seen.load_s, stage in self._parked, is_moved)

    def _may_park(self, stage: int) -> bool:
        """Weights that are whole on the CPU or on one GPU, whose driver says what came back."""
        kind = str(self._device.torch).partition(":")[0]
        is_whole = self._seen[stage].fit.name == "whole" and self._spec.n_devices == 1
        return is_whole and kind in ("cpu", "cuda") and self._spec.stages[stage].python is None

    def _needed_of_host(self, order: Order) -> int:
        """Host memory that the model that comes takes: all of it on the CPU, else what passes through."""
        needed = order.fit.device2bytes[0] if order.fit.device2bytes else 0
        known = self._seen.get(order.stage)
        return max(needed, known.n_bytes if known is not None else 0, LEAST_ROOM_BYTES)

    def _park(self, stage: int) -> bool:
        """Into host memory, if that frees the device's; else it is dropped. Did the memory come back?"""
        held, seen = self._held[stage], self._seen[stage]
        if self._device.torch != "cpu" and not seen.copy.park():
            return self._drop(stage)
        self._parked[stage] = self._held.pop(stage)
        del held
        return self._came_back(seen) or self._drop(stage)

    def _adopt(self, spec: HostSpec | None) -> list[Outcome]:
        """Another job begins. Models that it needs in the same way stay, the others go."""
        assert spec is not None
        for stage, held in (*self._held.items(), *self._parked.items()):
            if stage >= len(spec.stages) or not held.adopt(spec.stages[stage]):
                self._drop(stage)
        self._spec = spec
        return []

    def _drop(self, stage: int) -> bool:
        """Let go of a stage. Did the memory that it took come back?"""
        held = self._held.pop(stage, None) or self._parked.pop(stage)
        seen = self._seen.pop(stage)
        del seen.copy
        held.close()
        del held
        return self._came_back(seen)

    def _came_back(self, seen: "_Seen") -> bool:
        """By the driver: is as much free as before the stage was built?"""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            if psutil.Process().memory_info().rss > WORTH_COLLECTING_BYTES:
                gc.collect()
            return True
        gc.collect()
        torch.cuda.empty_cache()
        free, after = seen.free_before, _free_bytes()
        there = sum(self._seen[stage].n_bytes for stage in self._held)
        is_ours = torch.cuda.memory_allocated() > there + MOST_LEFT_BYTES  # not another tenant's
        return free is None or after is None or after >= free - MOST_LEFT_BYTES or not is_ours


@dataclass(slots=True)
class _Seen:
    """Of a stage that was built: what was free before, what it takes, and how long it took."""

    fit: Fit
    free_before: int | None
    n_bytes: int
    copy: HostCopy
    load_s: float = 0.0


def _elsewhere() -> Any:
    from evenload.pipeline.worker.foreign_python import ForeignStageRunner

    return ForeignStageRunner


def _free_bytes() -> int | None:
    """Free memory of this host's first GPU, by its driver; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info()[0])


def _taken_bytes() -> int:
    """Memory that this process has: of the GPU, if it uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.memory_allocated())
    return int(psutil.Process().memory_info().rss)


def run_folder_path(values: Mapping[str, Any], folder: Path, files: set[str]) -> dict[str, Any]:
    """``values`` with the outputs in ``files`` as absolute paths."""
    return {name: str(folder / value) if name in files else value for name, value in values.items()}
