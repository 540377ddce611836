"""The backend that runs all chunks in this process, one after the other: for debugging, and without pickling.

``breakpoint()`` works, exceptions are the original objects, nothing is copied. Devices take turns, so nothing
becomes faster; a task that crashes or hangs does so in the caller.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.devices.environment import call_on
from evenload.errors import ConfigError
from evenload.executor.backends import Backend, WorkerOptions
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Loaded, Message, Spoilt, TaskRefused, Up
from evenload.executor.task.task import PreparedTask, Runner
from evenload.executor.transport.progress_cell import NOT_BEGUN, ProgressCell

MOST_SLEEP_S = 0.01


@dataclass(slots=True)
class _InlineWorker:
    device: Device
    pool: DevicePool
    runners: dict[int, Runner] = field(default_factory=dict)


class InlineBackend(Backend):
    """A backend whose workers run in the caller's thread, within ``poll``: what hangs, hangs there."""

    is_threaded = False

    def __init__(self, options: WorkerOptions | None = None) -> None:
        if options is not None and options.memory_limit is not None:
            raise ConfigError(
                "memory_limit ends workers, and inline there are none", hint="use backend='process'"
            )
        self._workers: dict[int, _InlineWorker] = {}
        self._todo: deque[Callable[[], Message | None]] = deque()
        self._progress = ProgressCell()

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        self._workers[worker] = _InlineWorker(device, pool)
        self._todo.append(lambda: Up(worker))

    def load(self, worker: int, task: PreparedTask) -> None:
        self._ask(worker, lambda: self._load(worker, task))

    def unload(self, worker: int, task: int) -> None:
        self._ask(worker, lambda: self._unload(worker, task))

    def send(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> None:
        self._ask(worker, lambda: self._run(worker, task, chunk, items, singly))

    def stop(self, worker: int) -> None:
        self._ask(worker, lambda: self._stop(worker))

    def kill(self, worker: int) -> None:
        self._ask(worker, lambda: self._end(worker))

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Do the next thing that was asked for. Waits a moment if there is none."""
        messages: list[Message] = []
        if not self._todo:
            time.sleep(MOST_SLEEP_S if timeout_s is None else min(timeout_s, MOST_SLEEP_S))
        while self._todo and not messages:
            message = self._todo.popleft()()
            if message is not None:
                messages.append(message)
        return messages

    def close(self, grace_s: float) -> list[Message]:
        self._todo.clear()
        for worker, inline in self._workers.items():
            for task in tuple(inline.runners):
                self._unload(worker, task)
        self._workers.clear()
        return []

    def _ask(self, worker: int, do: Callable[[], Message | None]) -> None:
        """Have ``do`` called in its turn, unless the worker has ended by then."""
        self._todo.append(lambda: do() if worker in self._workers else None)

    def _load(self, worker: int, task: PreparedTask) -> Message:
        inline = self._workers[worker]
        try:
            inline.runners[task.id] = call_on(
                inline.device, inline.pool, lambda view: Runner(task, lambda: view, inline=True)
            )
        except Exception as error:
            return TaskRefused(worker, task.id, Failure.of(error, travels=False))
        return Loaded(worker, task.id, 0.0)

    def _unload(self, worker: int, task: int) -> None:
        inline = self._workers[worker]
        runner = inline.runners.pop(task, None)
        if runner is not None:
            call_on(inline.device, inline.pool, lambda _: runner.close())

    def _run(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> Message:
        inline = self._workers[worker]
        self._progress.begin(chunk)
        try:
            runner = inline.runners[task]
            answer = call_on(
                inline.device, inline.pool, lambda _: runner.run(items, self._progress, singly=singly)
            )
        except KeyboardInterrupt as error:
            spoilt = Spoilt(worker, chunk, Failure.of(error, travels=False), is_run=True)
            self._todo.appendleft(lambda: spoilt)
            raise
        return Answered(worker, chunk, answer)

    def _stop(self, worker: int) -> Message:
        for task in tuple(self._workers[worker].runners):
            self._unload(worker, task)
        return self._end(worker)

    def _end(self, worker: int) -> Message:
        del self._workers[worker]
        return Gone(worker, 0, NOT_BEGUN)
