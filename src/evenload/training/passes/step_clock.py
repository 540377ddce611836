"""``StepClock``: the seconds that one rank computes in each step, without its waits for the others.

    resume ── compute ── pause ── wait for others ── resume ── compute ── ...

On GPUs, events are recorded in the stream and read when they are done: nothing waits for the GPU.
"""

import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
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


# --- when gradients are ready -----------------------------------------------------------------------------


class BackwardMarks:
    """A pair of marks in each backward pass: ``on_ready`` before the wait for others, ``on_done`` after.

        scaled loss ──► backward ──► own gradients are ready ──► wait for others (DDP, FSDP2) ──► all done

    Callbacks at the end of a backward pass are called in the order in which they were queued: this one's is
    queued with the first gradient, before those in which DDP and FSDP2 wait for the exchange; and one that it
    queues itself comes after them. No model has to be wrapped or changed.
    """

    def __init__(self, on_ready: Callable[[], None], on_done: Callable[[], None]):
        self._on_ready, self._on_done = on_ready, on_done
        self._is_queued = False

    def watch(self, loss: Any) -> None:
        """Have the backward pass of ``loss`` call both; once, if several losses are added up."""
        self._is_queued = False
        if loss.requires_grad:
            loss.register_hook(self._begin)

    def _begin(self, _: Any) -> None:
        if not self._is_queued:
            self._is_queued = True
            _queue(self._ready)

    def _ready(self) -> None:
        self._on_ready()
        _queue(self._done)

    def _done(self) -> None:
        self._is_queued = False
        self._on_done()


def _queue(callback: Callable[[], None]) -> None:
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(callback)


# --- waits in exchanges -----------------------------------------------------------------------------------


EXCHANGES = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather",
    "monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip
WAITS = ("synchronize", "wait")


_clocks: tuple[weakref.ref[Any], ...] = ()  # replaced as a whole: threads that wait read it


def leave_out_waits(clock: StepClock) -> None:
    """Have ``clock`` stand, for as long as it lives, while a thread that it counts is in an exchange.

    torch has no hook for this. So the few methods that every exchange of Python's goes through are wrapped,
    once in a process: those of groups, ``Work.wait``, DDP's broadcast of buffers, functional collectives. No
    model has to be known for it. What waits within C++ alone, or by other means than torch.distributed, is
    not seen.
    """
    global _clocks
    if not _clocks:
        _wrap_all()
    _clocks = (*(one for one in _clocks if one() is not None), weakref.ref(clock))


def _wrap_all() -> None:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    for owner, names in (
        (dist.ProcessGroup, EXCHANGES),
        (dist.Work, WAITS),
        (dist, ("_broadcast_coalesced",)),
        (functional, ("wait_tensor",)),
    ):
        for name in names:
            call = getattr(owner, name, None)
            if call is not None and not hasattr(call, "leaves_out_waits"):
                setattr(owner, name, _wrapped(call, name))


def _wrapped(call: Callable[..., Any], name: str) -> Any:
    """Return ``call`` with all clocks held meanwhile."""

    def waiting(first: Any, /, *args: Any, **kwargs: Any) -> Any:
        clocks = [clock for clock in (one() for one in _clocks) if clock is not None and clock.hold()]
        try:
            return call(first, *args, **kwargs)
        finally:
            for clock in clocks:
                clock.resume()

    # pybind11 takes a Python method for an override, unless the code that calls it has its name.
    waiting.__code__ = waiting.__code__.replace(co_name=name)
    waiting.__name__, waiting.__doc__ = name, call.__doc__
    if "torch._dynamo" in sys.modules:  # as DDP has it: the compiler is not to look into this
        import torch

        waiting = torch.compiler.disable(waiting)
    waiting.leaves_out_waits = True  # pyrefly: ignore
    return waiting


# --- waits that are not seen ------------------------------------------------------------------------------


N_STEPS = 6  # in a row
ALIKE = 0.1  # seconds of all ranks differ by no more than this share
BUSY, LAZY = 0.8, 0.6  # of its seconds the slow rank computes at least, the one that waits at most
SAYS = (
    "all ranks measure the same time, of which rank {rank} computes in {busy:.0%} only: it seems to wait for "
    "the others in an exchange that is not seen, and shares cannot follow the speeds. "
    "Put that exchange into `with even.waiting():`"
)


class HiddenWaits:
    """A judge of the steps of all ranks, which finds one that waits for others in the time that it measures.

    Where one rank's time has a wait for another, both measure the same, whatever their speeds, and shares
    stay equal. The processor tells them apart: it computes for the slow rank all the while, for the other in
    part. Ranks that observe the same find the same.

    unit  samples by which equal shares may differ
    """

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self._n_alike: dict[int, int] = {}  # of each rank that looked as if it waited, steps in a row
        self._is_told = False

    def observe(self, counts: Sequence[int], seconds: Sequence[float], busy_s: Sequence[float]) -> str:
        """Take in one step; returns a sentence that names the rank that waits, once, else "".

        counts, seconds  [ranks] as measured
        busy_s           [ranks] of these seconds those in which the processor computed, NaN if not known
        """
        is_equal = max(counts) - min(counts) <= self._unit
        if not is_equal or min(seconds) <= 0 or max(seconds) > (1 + ALIKE) * min(seconds):
            self._n_alike.clear()
            return ""
        busy = [one_s / of_s for one_s, of_s in zip(busy_s, seconds, strict=True)]
        lazy = [rank for rank, one in enumerate(busy) if one < LAZY] if max(busy) >= BUSY else []
        self._n_alike = {rank: self._n_alike.get(rank, 0) + 1 for rank in lazy}
        found = min((rank for rank, n in self._n_alike.items() if n >= N_STEPS), default=None)
        if found is None or self._is_told:
            return ""
        self._is_told = True
        return SAYS.format(rank=found, busy=busy[found])
