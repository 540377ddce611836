"""``StepClock``: the seconds that one rank computes in each step, without its waits for the others.

    resume ── compute ── pause ── wait for others ── resume ── compute ── ...

On GPUs, events are recorded in the stream and read when they are done: nothing waits for the GPU.
"""

import time
from collections import deque
from typing import Any

__all__ = ["StepClock"]


class StepClock:
    """A stopwatch of the steps of one rank. Not running at first."""

    def __init__(self) -> None:
        self._kind: Any = None  # of events; None: the time of the CPU
        self._device: Any = None
        self._began: Any = None
        self._pieces: list[tuple[Any, Any]] = []
        self._closed: deque[tuple[int, int, list[tuple[Any, Any]]]] = deque(maxlen=64)
        self._has_begun = False

    def use(self, device: Any) -> None:
        """Count the time of a torch device from now on."""
        import torch

        kind = None if device.type == "cpu" else getattr(getattr(torch, device.type, None), "Event", None)
        if kind is not self._kind or device != self._device:
            self._kind, self._device = kind, device
            self.forget()

    def begin(self) -> None:
        """Start with a step: all have ended the one before."""
        self._has_begun = True
        self.resume()

    def resume(self) -> None:
        """Go on, if a step has begun and it is not running."""
        if self._has_begun and self._began is None:
            self._began = self._now()

    def pause(self) -> None:
        """Stop, if it is running."""
        if self._began is not None:
            self._pieces.append((self._began, self._now()))
            self._began = None

    def forget(self) -> None:
        """Stop, and drop the step that has begun: it will not be measured."""
        self._has_begun, self._began, self._pieces = False, None, []

    def close(self, number: int, n_samples: int) -> None:
        """End step ``number``, which had ``n_samples``."""
        self.pause()
        if self._pieces:
            self._closed.append((number, n_samples, self._pieces))
        self._pieces = []

    def measured(self) -> tuple[int, int, float] | None:
        """Return number, samples and seconds of the newest step whose time is known by now; each once."""
        found = None
        while self._closed and self._is_done(self._closed[0][2]):
            number, n_samples, pieces = self._closed.popleft()
            found = number, n_samples, sum(self._seconds(*piece) for piece in pieces)
        return found

    def _now(self) -> Any:
        if self._kind is None:
            return time.perf_counter()
        import torch

        event = self._kind(enable_timing=True)
        event.record(getattr(torch, self._device.type).current_stream(self._device))
        return event

    def _is_done(self, pieces: list[tuple[Any, Any]]) -> bool:
        last = pieces[-1][1]
        return isinstance(last, float) or last.query()

    def _seconds(self, start: Any, stop: Any) -> float:
        return stop - start if isinstance(start, float) else start.elapsed_time(stop) / 1e3
