"""Events of work that is done step by step: rounds of a training, proofs, trials of a benchmark."""

import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from evenload.events import EventLog, ItemFinished, RunFinished, RunStarted, Span, StageFinished, StageStarted


class Steps:
    """The record of a run made of steps: its start, each finished step with its figures, its end.

    log    where the events go
    name   of the run; ``stage``: what a step is, "round" or "proof"
    where  what the steps run on, one row of the timeline; None if an executor records the work already
    """

    def __init__(self, log: EventLog, name: str, stage: str, total: int | None, where: str | None):
        self._log, self._stage, self._where = log, stage, where
        devices = {where: {"name": "this process"}} if where else {}
        facts = {"stages": [stage], "pid": os.getpid()}
        log.emit(RunStarted(log.now(), name, time.time(), total, devices, facts))
        if where:
            log.emit(StageStarted(log.now(), stage, total))
        self._began_s = log.now()

    def done(self, index: int, name: str, numbers: Mapping[str, float]) -> None:
        """Record that step ``index`` has finished; it began when the step before it finished."""
        now = self._log.now()
        if self._where:
            self._log.emit(Span(self._stage, self._where, self._where, index, 1, self._began_s, now))
        self._log.emit(ItemFinished(now, self._stage, index, name, dict(numbers)))
        self._began_s = self._log.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "done" if kind is None else "interrupted" if kind is KeyboardInterrupt else "failed"
        if self._where:
            self._log.emit(StageFinished(self._log.now(), self._stage))
        self._log.emit(RunFinished(self._log.now(), status))
