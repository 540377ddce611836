"""``StepClock``: the seconds that one rank computes in each step, without its waits for the others.

    resume ── compute ── pause ── wait for others ── resume ── compute ── ...

On GPUs, events are recorded in the stream and read when they are done: nothing waits for the GPU.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of one rank.

    seconds  without the waits for others that were seen
    busy_s   of these, in which the processor computed for the thread that trains; NaN on a GPU
    """

    number: int
    n_samples: int
    seconds: float
    busy_s: float


def now_of_cpu() -> tuple[float, int, float]:
    """Return seconds, the thread, and for how many seconds the processor has computed for it."""
    return time.perf_counter(), threading.get_ident(), time.thread_time()


class StepClock:
    """A stopwatch of the steps of one rank. Not running at first.

    now  is asked where no events of a GPU count: as ``now_of_cpu``
    """

    def __init__(self, now: Callable[[], tuple[float, int, float]] = now_of_cpu) -> None:
        self.now = now
        self._kind: Any = None  # of events; None: the time of the CPU
        self._device: Any = None
        self._stream: Any = None
        self._threads: set[int] = set()
        self._began: Any = None
        self._pieces: list[tuple[Any, Any]] = []
        self._closed: deque[tuple[int, int, list[tuple[Any, Any]]]] = deque(maxlen=64)
        self._has_begun = False

    def use(self, device: Any) -> None:
        """Count the time of a torch device from now on, in the stream and by the thread of the caller."""
        import torch

        self.count_thread()
        kind = None if device.type == "cpu" else getattr(getattr(torch, device.type, None), "Event", None)
        if kind is not self._kind or device != self._device:
            self._kind, self._device = kind, device
            self.forget()
        self._stream = self._current_stream()

    def count_thread(self) -> None:
        """Count what the caller's thread does: ``hold`` has no effect in others."""
        self._threads.add(threading.get_ident())

    def begin(self) -> None:
        """Start with a step: all have ended the one before."""
        self._has_begun = True
        self.resume()

    def resume(self) -> None:
        """Go on, if a step has begun and it is not running."""
        if self._has_begun and self._began is None:
            self._began = self._now()

    def pause(self) -> bool:
        """Stop, if it is running; returns whether it was."""
        if self._began is None:
            return False
        self._pieces.append((self._began, self._now()))
        self._began = None
        return True

    def hold(self) -> bool:
        """Stop for an exchange of the caller's thread and stream; returns whether it was running."""
        is_ours = threading.get_ident() in self._threads and self._current_stream() == self._stream
        return is_ours and self.pause()

    def forget(self) -> None:
        """Stop, and drop the step that has begun: it will not be measured."""
        self._has_begun, self._began, self._pieces = False, None, []

    def close(self, number: int, n_samples: int) -> None:
        """End step ``number``, which had ``n_samples``."""
        self.pause()
        if self._pieces:
            self._closed.append((number, n_samples, self._pieces))
        self._pieces = []

    def measured(self) -> MeasuredStep | None:
        """Return the newest step whose time is known by now; each once."""
        found = None
        while self._closed and self._is_done(self._closed[0][2]):
            number, n_samples, pieces = self._closed.popleft()
            spans = [_span(*piece) for piece in pieces]
            found = MeasuredStep(
                number, n_samples, sum(s for s, _ in spans), sum(busy_s for _, busy_s in spans)
            )
        return found

    def _current_stream(self) -> Any:
        if self._kind is None:
            return None
        import torch

        return getattr(torch, self._device.type).current_stream(self._device)

    def _now(self) -> Any:
        if self._kind is None:
            return self.now()
        event = self._kind(enable_timing=True)
        event.record(self._stream)
        return event

    def _is_done(self, pieces: list[tuple[Any, Any]]) -> bool:
        last = pieces[-1][1]
        return isinstance(last, tuple) or last.query()


def _span(start: Any, stop: Any) -> tuple[float, float]:
    """Seconds between two moments, and of them those of the processor; NaN if these are not known."""
    if not isinstance(start, tuple):
        return start.elapsed_time(stop) / 1e3, math.nan
    busy_s = stop[2] - start[2] if start[1] == stop[1] else math.nan
    return stop[0] - start[0], busy_s
