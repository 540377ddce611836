"""What an item may change of its worker process, put back before the next item runs.

Working folder, environment, umask, signal handlers, blocked signals, timers; ``sys.path``, recursion limit,
garbage collection; standard streams and their descriptors; default numbers of threads.

Each item finds what was there when the task had been built. To compare all of it takes longer than tiny items
do. So the functions of ``os`` and ``signal`` that change it are watched: they are wrapped, and the wrapper
notes that it was called. What can change without them (a descriptor that C code closes, numbers of threads)
is compared before an item that begins two milliseconds or more after the last comparison.
"""

import contextlib
import functools
import gc
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from evenload.executor.worker.threads import default_count, thread_counters

STANDARD = (0, 1, 2)
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class ProcessState:
    """The state of this process that every item finds as it was when ``keep`` was called last.

    There is one in a process: it has the functions watched.
    """

    def __init__(self) -> None:
        self._is_touched = False
        self._set_limit, self._set_umask = sys.setrecursionlimit, os.umask
        for name in ("chdir", "fchdir", "putenv", "unsetenv", "umask"):
            self._watch(os, name)
        for name in ("signal", "pthread_sigmask", "setitimer", "alarm"):
            self._watch(signal, name)
        self._watch(sys, "setrecursionlimit")
        for name in ("disable", "enable"):
            self._watch(gc, name)
        self._watched: set[str] = set()
        self._watch(os, "close", lambda fd: fd in STANDARD)
        self._watch(os, "dup2", lambda fd, fd2, inheritable=True: fd2 in STANDARD)
        self._saved_fds: list[int] = []
        self.keep()

    def keep(self) -> None:
        """Take the present state for what items should find."""
        for fd in self._saved_fds:
            os.close(fd)
        self._saved_fds = [_copy_of(fd) for fd in STANDARD]
        self._files = [_file(fd) for fd in STANDARD]
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._watch_libraries()
        self._kept = {name: read() for name, (read, _) in _PIECES.items()}
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._path_list, self._path = sys.path, list(sys.path)
        self._environ = os.environ
        self._limit, self._collects = sys.getrecursionlimit(), gc.isenabled()
        self._is_touched = False

    def is_untouched(self) -> bool:
        """Whether nothing seems to have been changed: fast, and not certain."""
        stdin, stdout, stderr = self._streams
        try:
            return (
                not self._is_touched
                and sys.stdout is stdout
                and sys.stderr is stderr
                and sys.stdin is stdin
                and os.environ is self._environ
                and sys.path is self._path_list
                and sys.path == self._path
            )
        except (Exception, SystemExit):  # one was deleted, or a path is an object that cannot be compared
            return False

    def restore(self) -> None:
        """Put back what was changed, as far as that is possible. Never raises: the next item would pay."""
        for put_back in (
            self._restore_interpreter,  # first: its recursion limit is needed here
            self._restore_pieces,
            self._restore_umask,
            self._restore_descriptors,
            self._watch_libraries,
        ):
            with contextlib.suppress(Exception, SystemExit):
                put_back()
        self._is_touched = False

    def _restore_pieces(self) -> None:
        for name, (read, write) in _PIECES.items():
            if self._is_touched or name in _UNWATCHED:
                with contextlib.suppress(Exception, SystemExit):  # what cannot be put back stays
                    now, kept = read(), self._kept[name]
                    if now != kept:
                        write(now, kept)

    def _restore_umask(self) -> None:
        if self._is_touched:  # only then: between asking and setting, threads would make files with another
            self._set_umask(self._umask)

    def _restore_descriptors(self) -> None:
        for fd, saved, file in zip(STANDARD, self._saved_fds, self._files, strict=True):
            if saved >= 0 and _file(fd) != file:
                os.dup2(saved, fd)

    def _restore_interpreter(self) -> None:
        if self.is_untouched():
            return
        self._set_limit(self._limit)
        os.environ = self._environ  # noqa: B003  it may have been replaced; what it holds is put back later
        self._path_list[:] = self._path
        sys.path = self._path_list
        sys.stdin, sys.stdout, sys.stderr = self._streams
        for name, fd in (("stdout", 1), ("stderr", 2)):
            if getattr(sys, name).closed:  # with a wrapper of the item's around what is below
                setattr(sys, name, open_stream(fd))
        self._streams = sys.stdin, sys.stdout, sys.stderr
        (gc.enable if self._collects else gc.disable)()

    def _watch_libraries(self) -> None:
        for name in ("torch", "numba"):
            module = sys.modules.get(name)
            if name not in self._watched and hasattr(module, "set_num_threads"):
                self._watched.add(name)
                self._watch(module, "set_num_threads")

    def _watch(self, module: Any, name: str, concerns: Callable[..., bool] | None = None) -> None:
        """Note calls of a function; ``concerns``: whether one with these arguments matters."""
        function = getattr(module, name)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if concerns is None:
                self._is_touched = True
            elif not self._is_touched:
                with contextlib.suppress(TypeError):  # wrong arguments, which the function itself refuses
                    self._is_touched = concerns(*args, **kwargs)
            return function(*args, **kwargs)

        setattr(module, name, watched)
        home = sys.modules.get(function.__module__)  # by whose name it is pickled
        if getattr(home, name, None) is function:
            setattr(home, name, watched)


class _Stream(io.TextIOWrapper):
    """A text stream that outlives those who close it."""

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.flush()


def open_stream(fd: int) -> io.TextIOWrapper:
    """Make the text stream of a standard descriptor; to close it leaves the descriptor open."""
    writer = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return _Stream(writer, "utf-8", errors="backslashreplace", line_buffering=True)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _enter(now: str | None, kept: str | None) -> None:
    try:
        os.chdir(kept or "/")
    except OSError:  # it was deleted, or is closed to us now
        os.chdir("/")


def _set_environment(now: dict[str, str], kept: dict[str, str]) -> None:
    for name in now.keys() - kept.keys():
        del os.environ[name]
    for name, value in kept.items():
        if now.get(name) != value:
            os.environ[name] = value


def _set_handlers(now: list[Any], kept: list[Any]) -> None:
    for number, is_now, was in zip(SIGNALS, now, kept, strict=True):
        if is_now != was and was is not None:  # None: set by C code, and lost
            signal.signal(number, was)


def _set_blocked(now: set[int], kept: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, kept)


def _stop_timers(now: list[bool], kept: list[bool]) -> None:
    for timer, is_now, was in zip(TIMERS, now, kept, strict=True):
        if is_now and not was:
            signal.setitimer(timer, 0)


def _thread_counts() -> dict[str, int]:
    return {name: getter() for name, (getter, _) in thread_counters().items()}


def _set_thread_counts(now: dict[Any, int], kept: dict[Any, int]) -> None:
    for name, (_, setter) in thread_counters().items():
        was = kept.get(name) or default_count() or now[name]  # its library may have been loaded meanwhile
        if was != now[name]:
            setter(was)


def _copy_of(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError:  # it is closed, and may stay so
        return -1


def _file(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_PIECES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], None]]] = {
    # Timers first: their signal must not find its handler gone.
    "timers": (lambda: [any(signal.getitimer(timer)) for timer in TIMERS], _stop_timers),
    "handlers": (lambda: list(map(signal.getsignal, SIGNALS)), _set_handlers),
    "blocked signals": (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), _set_blocked),
    "environment": (lambda: dict(os.environ), _set_environment),
    "working folder": (_folder, _enter),
    "thread counts": (_thread_counts, _set_thread_counts),
}
_UNWATCHED = {"working folder", "thread counts"}
