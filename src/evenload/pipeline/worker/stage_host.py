"""The worker's side of a run: load models, swap them, and run items.

A worker process has one host for all devices of its group. A stage is built when it is first needed. Models
that are not to be kept are parked in host memory or dropped before; the GPU's driver says whether their
memory came back.
"""

import gc
import queue
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import psutil

from evenload.errors import ConfigError, printable
from evenload.executor.task.failure import is_memory_error
from evenload.pipeline.dispatch.worker_protocol import (
    ADOPT,
    GIVE,
    KEYS,
    LOAD,
    LOOK,
    WAIT,
    HostSpec,
    Order,
    OrderOutcome,
)
from evenload.pipeline.plan import Fit
from evenload.pipeline.stage_runner import StageRunner, is_final, pause_s
from evenload.pipeline.worker.file_saver import FileSaver, PieceSender
from evenload.pipeline.worker.loaded_stage import (
    LoadedStage,
    described_error,
    free_cached_memory,
    timed,
    used_cuda,
)
from evenload.pipeline.worker.parking import HostCopy, ParkableModel, stages_to_park, unpark_s
from evenload.pipeline.worker.site import Site

WORTH_COLLECTING_BYTES = 2 << 30  # if stages took less, a collection costs more than what it frees
LONGEST_WAIT_S = 0.25  # for an outcome, before the driver may send something new
LOAD_RETRIES, MORE_PAUSE = 2, 2  # of a constructor, after longer pauses than those of an item
LEAST_ROOM_BYTES = 1 << 30  # of host memory, that a model may need while it is loaded
MOST_LEFT_BYTES = 256 << 20  # that a dropped model may leave behind


class StageHost:
    """The stages of one worker; called with one order at a time, it returns the outcomes so far."""

    def __init__(self, spec: HostSpec, device: Any):
        self._spec = spec
        self._device = device
        self._first_bytes = _host_bytes()  # without a stage; inline, it is all that the user's program has
        self._loaded: dict[int, LoadedStage] = {}
        self._parked: dict[int, LoadedStage] = {}
        self._built: dict[int, _BuiltStage] = {}
        self._saver: FileSaver | PieceSender = FileSaver()
        self._site: Site | None = None  # None: it is the machine of the run, with all its folders
        self._over: queue.SimpleQueue[OrderOutcome] = queue.SimpleQueue()

    def __call__(self, order: Order) -> list[OrderOutcome]:
        if order.kind == LOAD:
            outcomes = self._load(order)
        elif order.kind == ADOPT:
            outcomes = self._adopt(order.spec)
        elif order.kind == WAIT:
            outcomes = self._wait()
        elif order.kind in (LOOK, GIVE):
            outcomes = [self._look(order)]
        else:
            outcomes = self._run(order)
        pieces = self._saver.take() if isinstance(self._saver, PieceSender) else []
        outcomes += [OrderOutcome("piece", piece.task.stage, piece=piece) for piece in pieces]
        return self._told([*outcomes, *self._outcomes_so_far()])

    def close(self) -> None:
        for stage in (*self._loaded, *self._parked):
            self._drop(stage)
        if isinstance(self._saver, FileSaver):
            self._saver.close()
        if self._site is not None:
            self._site.close()

    def _run(self, order: Order) -> list[OrderOutcome]:
        """Run the tasks whose files are there, or say their keys."""
        placed = [(one, one if self._site is None else self._site.with_files(one)) for one in order.inputs]
        outcomes = [OrderOutcome("lacks", order.stage, one.task) for one, here in placed if here is None]
        there = tuple(here for _, here in placed if here is not None)
        loaded = self._loaded[order.stage]
        if order.kind == KEYS:
            return [*outcomes, *map(loaded.key_of, there)]
        return [*outcomes, *(loaded.run(there, order.key) if there else [])]

    def _look(self, order: Order) -> OrderOutcome:
        """Look at what this machine has, or take what it lacks; stages get their folders here."""
        if self._site is None:
            assert order.check is not None
            self._site = Site(self._spec.stages, order.check)
            if not self._site.has_run_folder:
                self._saver = PieceSender()
        self._site.take(order.files)
        report = self._site.report()
        if report.has_job_files:
            self._spec = replace(self._spec, stages=self._site.stages())
        return OrderOutcome("site", order.stage, site=report)

    def _told(self, outcomes: list[OrderOutcome]) -> list[OrderOutcome]:
        """Say when this was answered, and let go of what the tasks were given that are computed."""
        now = time.monotonic()
        for outcome in outcomes:
            outcome.told_s = now
            if self._site is not None and outcome.task is not None:
                self._site.forget(outcome.task)
        return outcomes

    def _wait(self) -> list[OrderOutcome]:
        """Wait for the next outcome, but not long: there may be something new to do."""
        if isinstance(self._saver, PieceSender) and not self._saver.is_empty:
            return []
        try:
            return [self._over.get(timeout=LONGEST_WAIT_S)]
        except queue.Empty:
            return []

    def _outcomes_so_far(self) -> list[OrderOutcome]:
        """Return the outcomes of lanes and of saved files that are there already, and of what is given up."""
        outcomes = [one for loaded in self._loaded.values() for one in loaded.given_up()]
        while not self._over.empty():
            outcomes.append(self._over.get())
        return outcomes

    def _load(self, order: Order) -> list[OrderOutcome]:
        """Have the order's stage on the device: kept, brought back from host memory, or built."""
        began_s = time.monotonic()
        must_replace, how = False, "read"
        try:
            must_replace = self._make_room(order)
            if order.stage in self._loaded:  # from the job before
                how = "kept"
            elif order.stage in self._parked:
                how = "unparked"
                self._loaded[order.stage] = self._parked.pop(order.stage)
                self._built[order.stage].copy.unpark()
            else:
                self._build_at_last(order)
                self._built[order.stage].load_s = time.monotonic() - began_s
        except Exception as error:
            kind = "memory" if is_memory_error(error) else "refused"
            error.__traceback__ = None if kind == "memory" else error.__traceback__
            return [timed(OrderOutcome(kind, order.stage, error=described_error(error)), began_s)]
        loaded = timed(OrderOutcome("loaded", order.stage, must_replace=must_replace, how=how), began_s)
        runner = self._loaded[order.stage].runner
        loaded.can_batch, loaded.gives_keys = runner.can_batch, runner.gives_keys
        loaded.n_lanes = self._loaded[order.stage].n_lanes
        loaded.parked = {stage: unpark_s(self._model(stage)) for stage in self._parked}
        if must_replace and isinstance(self._saver, FileSaver):
            self._saver.close()  # so that nothing computed is lost when this process is replaced
        return [*self._outcomes_so_far(), loaded] if must_replace else [loaded]

    def _build_at_last(self, order: Order) -> None:
        """Build the order's stage; a constructor that raises is called again, for what it lacks may come."""
        for attempt in range(LOAD_RETRIES):
            try:
                return self._build(order)
            except Exception as error:
                if is_final(error) or isinstance(error, ConfigError | ImportError):
                    raise
                name = self._spec.stages[order.stage].stage
                text = f"{name}: loading raised {type(error).__name__}: {error}; it is tried again"
                sys.stderr.write(printable(text) + "\n")
            time.sleep(pause_s(attempt + MORE_PAUSE))
        return self._build(order)

    def _build(self, order: Order) -> None:
        free, taken = _free_bytes(), _used_bytes()
        setup = self._spec.stages[order.stage]
        make: Any = StageRunner
        if setup.python is not None:
            from evenload.pipeline.worker.foreign_python import ForeignStageRunner as make
        runner = make(setup, self._device, order.fit, self._spec.n_devices)
        self._loaded[order.stage] = LoadedStage(
            runner, order.stage, order.fit.in_flight, self._saver, self._over
        )
        copy = HostCopy(getattr(runner, "stage", None))
        n_bytes = max(copy.n_bytes, _used_bytes() - taken)
        self._built[order.stage] = _BuiltStage(order.fit, free, n_bytes, copy)

    def _make_room(self, order: Order) -> bool:
        """Park or drop the models that may not stay; returns whether memory did not come back.

        Then this process must be replaced.
        """
        must_replace = False
        if order.stage in self._built and self._built[order.stage].fit != order.fit:
            must_replace = not self._drop(order.stage)
        leaving = [stage for stage in self._loaded if stage not in order.keep and stage != order.stage]
        models = [self._model(stage) for stage in (*leaving, *self._parked) if self._may_park(stage)]
        free_bytes = psutil.virtual_memory().available - self._needed_host_bytes(order)
        stay = stages_to_park(models, order.later, self._spec.park_bytes, free_bytes)
        for stage in tuple(self._parked):
            if stage not in stay and stage != order.stage:
                self._drop(stage)
        for stage in leaving:
            must_replace |= not (self._park(stage) if stage in stay else self._drop(stage))
        return must_replace

    def _model(self, stage: int) -> ParkableModel:
        built, is_moved = self._built[stage], self._device.torch != "cpu"
        return ParkableModel(stage, built.n_bytes, built.load_s, stage in self._parked, is_moved)

    def _may_park(self, stage: int) -> bool:
        """Return whether the weights are whole on the CPU, or on one GPU whose driver says what came back."""
        kind = str(self._device.torch).partition(":")[0]
        is_whole = self._built[stage].fit.name == "whole" and self._spec.n_devices == 1
        return is_whole and kind in ("cpu", "cuda") and self._spec.stages[stage].python is None

    def _needed_host_bytes(self, order: Order) -> int:
        """Return the host memory that loading the order's model takes."""
        needed = order.fit.device2bytes[0] if order.fit.device2bytes else 0
        known = self._built.get(order.stage)
        return max(needed, known.n_bytes if known is not None else 0, LEAST_ROOM_BYTES)

    def _park(self, stage: int) -> bool:
        """Park a model in host memory, or drop it if that frees nothing; returns whether memory came back."""
        built = self._built[stage]
        if self._device.torch != "cpu" and not built.copy.park():
            return self._drop(stage)
        self._parked[stage] = self._loaded.pop(stage)
        return self._came_back(built) or self._drop(stage)

    def _adopt(self, spec: HostSpec | None) -> list[OrderOutcome]:
        """Begin another job: keep the models that it needs in the same way, drop the others."""
        assert spec is not None
        for stage, loaded in (*self._loaded.items(), *self._parked.items()):
            if stage >= len(spec.stages) or not loaded.adopt(spec.stages[stage]):
                self._drop(stage)
        self._spec = spec
        return []

    def _drop(self, stage: int) -> bool:
        """Drop a stage; returns whether the memory that it took came back."""
        loaded = self._loaded.pop(stage, None) or self._parked.pop(stage)
        built = self._built.pop(stage)
        del built.copy
        loaded.close()
        del loaded  # its tensors must be gone before memory is looked at
        return self._came_back(built)

    def _came_back(self, built: "_BuiltStage") -> bool:
        """Return whether as much is free as before the stage was built, by the GPU's driver."""
        cuda = used_cuda()
        if cuda is None:
            if _host_bytes() - self._first_bytes > WORTH_COLLECTING_BYTES:
                gc.collect()
            return True
        free_cached_memory()
        free, after = built.free_before, _free_bytes()
        there = sum(self._built[stage].n_bytes for stage in self._loaded)
        is_ours = cuda.memory_allocated() > there + MOST_LEFT_BYTES  # and not another process's
        return free is None or after is None or after >= free - MOST_LEFT_BYTES or not is_ours


@dataclass(slots=True)
class _BuiltStage:
    """What building a stage took: memory free before, bytes of the model, seconds to load."""

    fit: Fit
    free_before: int | None
    n_bytes: int
    copy: HostCopy
    load_s: float = 0.0


def _free_bytes() -> int | None:
    """Return the free memory of this worker's first GPU, by its driver; None without one."""
    cuda = used_cuda()
    return None if cuda is None else int(cuda.mem_get_info()[0])


def _used_bytes() -> int:
    """Return the memory that this process takes: of the GPU, if it uses one."""
    cuda = used_cuda()
    return _host_bytes() if cuda is None else int(cuda.memory_allocated())


def _host_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
