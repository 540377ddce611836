"""Where an item waits, told by ``waiting()``; what its process did while it ran, measured by ``Meter``."""

import contextlib
import os
import threading
import time
from types import TracebackType

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_clock, _processor_clock = time.monotonic, time.process_time
SHORTEST_S = 0.005  # of what is measured: looking takes some microseconds

# Threads that an item starts inherit no context of it, so that what is measured must be the process's own.
_meters: list["Meter"] = []
_thread = threading.local()  # when it was last looked how long this thread stood in line, and how long
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_meters.clear)


def waiting() -> "_Wait":
    """Say that an item waits: for a server, a disk, a lock. Use it as ``with evenload.waiting(): ...``.

    For use inside of a task: in its function or class, its threads and its coroutines; it may be nested. The
    report takes these seconds for a loss, "waiting", and not for work. Where other threads or coroutines of
    the item compute meanwhile, that is work. Outside of a worker it does nothing.
    """
    return _Wait()


class _Wait:
    """A stretch of waiting, from ``with`` to its end."""

    __slots__ = ("_meter",)

    def __enter__(self) -> None:
        self._meter = _meters[-1] if _meters else None
        if self._meter is not None:
            self._meter.wait_begins()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meter is not None:
            self._meter.wait_ends()


class Meter:
    """A measurement of what this process does while it runs a chunk: ``with Meter() as meter: ...``.

    waited_s  seconds in which something of it said that it waits, less what the process computed meanwhile
    cpu_s     seconds of processors that its threads took, and children that have ended, or for which the
              thread that measures stood in line (Linux); None where children that still run may have
              computed, the system does not tell, or next to no time has passed
    """

    __slots__ = ("_began_s", "_lock", "_n_waits", "_since", "cpu_s", "waited_s")

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.cpu_s: float | None = None
        self._lock, self._n_waits, self._since = threading.Lock(), 0, (0.0, 0.0)

    def __enter__(self) -> "Meter":
        _meters.append(self)
        _look()
        self._began_s = _processor_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ValueError):  # in a child that an item has forked
            _meters.remove(self)
        with self._lock:
            if self._n_waits:  # a thread that nobody has joined
                self._count()
        in_line_s = _look()
        if in_line_s is not None and not _has_children():
            self.cpu_s = max(0.0, _processor_s() - self._began_s + in_line_s)

    def wait_begins(self) -> None:
        with self._lock:
            if not self._n_waits:
                self._since = _clock(), _processor_clock()
            self._n_waits += 1

    def wait_ends(self) -> None:
        with self._lock:
            self._n_waits -= 1
            if not self._n_waits:
                self._count()

    def _count(self) -> None:
        since_s, computed_s = self._since
        self.waited_s += max(0.0, _clock() - since_s - (_processor_clock() - computed_s))


def _processor_s() -> float:
    """Seconds of processors that this process has taken so far, and its children that have ended."""
    if resource is None:
        return _processor_clock()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _processor_clock() + children.ru_utime + children.ru_stime


def _look() -> float | None:
    """Seconds that this thread stood in line since the last look; None where that was a moment ago."""
    now, before_s = _clock(), getattr(_thread, "looked_s", -SHORTEST_S)
    if now - before_s < SHORTEST_S:
        return None
    in_line_s, _thread.looked_s, _thread.queued_s = getattr(_thread, "queued_s", 0.0), now, _queued_s()
    return _thread.queued_s - in_line_s


def _queued_s() -> float:
    """Seconds that this thread was ready and others had the processor; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _has_children() -> bool:
    """Whether there are children of this process that have not ended, or whether that is not known."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except (OSError, AttributeError):  # not on Windows
        pass
    return True
