"""The worker's side of a run: holds the models of its stages, swaps them, and runs what it is told to.

One process is one host, with all devices of its group. A stage is built when it is first needed; what is not
to be kept is parked in host memory or dropped before, and the driver is asked whether the memory came back.
"""

import gc
import queue
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from evenload.executor.failure import is_memory_error
from evenload.pipeline.held import Held, timed, told
from evenload.pipeline.orders import ADOPT, LOAD, WAIT, HostSpec, Order, Outcome
from evenload.pipeline.plan import Fit
from evenload.pipeline.saving import Saver
from evenload.pipeline.stage import StageRunner

__all__ = ["StageHost", "run_folder_path"]

WORTH_COLLECTING_BYTES = 2 << 30  # in a smaller process a collection costs more than what it frees
LONGEST_WAIT_S = 0.25
MOST_LEFT_BYTES = 256 << 20  # of a model that was dropped


class StageHost:
    """Called with orders, one at a time; answers with the outcomes that are there by then."""

    def __init__(self, spec: HostSpec, device: Any):
        self._spec = spec
        self._device = device
        self._held: dict[int, Held] = {}
        self._free_before: dict[int, int | None] = {}
        self._fits: dict[int, Fit] = {}
        self._saver = Saver()
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
        for stage in tuple(self._held):
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
        must_replace = False
        try:
            for stage in tuple(self._held):
                is_wanted = stage == order.stage and self._fits[stage] == order.fit
                if stage not in order.keep and not is_wanted:
                    must_replace |= not self._drop(stage)
            if order.stage in self._held:  # from the job before
                return [timed(Outcome("loaded", order.stage, must_replace=must_replace), began_s)]
            free = _free_bytes()
            worker = self._spec.stages[order.stage]
            make = StageRunner if worker.python is None else _elsewhere()
            runner = make(worker, self._device, order.fit, self._spec.n_devices)
            self._held[order.stage] = Held(runner, order.stage, order.fit.in_flight, self._saver, self._over)
            self._free_before[order.stage], self._fits[order.stage] = free, order.fit
        except Exception as error:
            kind = "memory" if is_memory_error(error) else "refused"
            error.__traceback__ = None if kind == "memory" else error.__traceback__
            return [timed(Outcome(kind, order.stage, error=told(error)), began_s)]
        loaded = timed(Outcome("loaded", order.stage, must_replace=must_replace), began_s)
        if must_replace:
            self._saver.close()  # whoever replaces this process need not do again what is computed
        return [*self._there(), loaded] if must_replace else [loaded]

    def _adopt(self, spec: HostSpec | None) -> list[Outcome]:
        """Another job begins. Models that it needs in the same way stay, the others go."""
        assert spec is not None
        for stage, held in tuple(self._held.items()):
            if stage >= len(spec.stages) or not held.adopt(spec.stages[stage]):
                self._drop(stage)
        self._spec = spec
        return []

    def _drop(self, stage: int) -> bool:
        """Let go of a stage. Did the memory that it took come back?"""
        held, free = self._held.pop(stage), self._free_before.pop(stage)
        del self._fits[stage]
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


def _free_bytes() -> int | None:
    """Free memory of this host's first GPU, by its driver; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info()[0])


def run_folder_path(values: Mapping[str, Any], folder: Path, files: set[str]) -> dict[str, Any]:
    """``values`` with the outputs in ``files`` as absolute paths."""
    return {name: str(folder / value) if name in files else value for name, value in values.items()}
