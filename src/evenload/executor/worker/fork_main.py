"""The process of the fork server: forks workers on request and reaps them. See ``fork_server``."""

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from evenload.executor.worker import worker
from evenload.executor.worker.threads import set_threads

STATUS = Struct("<q")  # a worker's number, and later its exit code
MOST_BYTES = 4 * 1024 * 1024
MOST_FDS = 32
BOOT_WORKER = (
    "import sys; sys.path[:] = {path!a}; from evenload.executor.worker.worker import main; main({told})"
)


class WorkerStart(NamedTuple):
    """All that a worker is told as it starts, but its file descriptors.

    environment  of its process, whole
    path         of imports
    cell         of the arena that it writes to, in the budget; None without shared memory
    executor     the process with which it ends
    program      settings to take over
    flags        of its interpreter
    """

    device: str
    environment: Mapping[str, str]
    path: Sequence[str]
    cell: int | None
    executor: int
    program: bytes
    flags: Sequence[str]

    def told(self, fds: Sequence[int]) -> tuple:
        """Return the arguments of ``worker.main``."""
        arenas = (*fds[4:8], self.cell) if self.cell is not None else None
        return (*fds[:4], arenas, self.executor, self.program)

    def command(self, fds: Sequence[int]) -> list[str]:
        """Return the words that start the worker in a new interpreter."""
        boot = BOOT_WORKER.format(path=self.path, told=", ".join(map(ascii, self.told(fds))))
        return boot_command(self.flags, boot, "evenload-worker", self.device)


def boot_command(flags: Sequence[str], boot: str, *names: str) -> list[str]:
    """Return the words that run ``boot`` in an interpreter with these ``flags``.

    A file pickle.py in the current folder is not imported as the library's: the path is set before all else.
    """
    return [sys.executable, *flags, "-c", boot, *names]


def serve(fd: int, executor: int) -> None:
    """Serve requests until the other end of the socket closes, or the process ``executor`` ends.

    A child that the executor has forked keeps that end open.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=fd)
    try:
        end_fd = os.pidfd_open(executor)
    except ProcessLookupError:
        return
    news = select.poll()
    news.register(requests, select.POLLIN)
    news.register(end_fd, select.POLLIN)
    statuses: dict[int, int] = {}
    is_safe = True
    while not any(ready == end_fd for ready, _ in news.poll()):
        body, fds, _, _ = socket.recv_fds(requests, MOST_BYTES, MOST_FDS)
        if not body:
            os._exit(0)
        kind, argument = pickle.loads(body)
        if kind == "fork":
            _fork(argument, fds, (requests.fileno(), end_fd), statuses, is_safe)
        elif kind == "collect":
            _collect(argument, statuses)
        elif kind == "import":
            is_safe = _import(argument)


def _fork(
    start: WorkerStart, fds: list[int], ours: tuple[int, ...], statuses: dict[int, int], is_safe: bool
) -> None:
    """Fork a worker; one that must not go on in a fork of this process begins a new interpreter."""
    status_fd = fds.pop()
    gc.freeze()  # the collector leaves these objects alone, so their memory stays shared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which a new interpreter does not have
        pid = os.fork()
    if not pid:
        try:
            for other in (*ours, status_fd, *statuses.values()):
                os.close(other)
            (_become_worker if is_safe else _begin_anew)(start, fds)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    with contextlib.suppress(OSError):  # it has done so itself, or is gone already
        os.setpgid(pid, pid)
    for fd in fds:
        os.close(fd)
    statuses[pid] = status_fd
    with contextlib.suppress(OSError):  # the executor is gone
        os.write(status_fd, STATUS.pack(pid))


def _begin_anew(start: WorkerStart, fds: list[int]) -> None:
    theirs = _leave_server(fds)
    for fd in theirs:
        os.set_inheritable(fd, True)
    command = start.command(theirs)
    os.execve(command[0], command, start.environment)


def _become_worker(start: WorkerStart, fds: list[int]) -> None:
    theirs = _leave_server(fds)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[:] = start.path
    encoding = sys.stdout.encoding  # the old streams assume that they can seek
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding=encoding, closefd=False)
    set_threads()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    worker.main(*start.told(theirs))


def _leave_server(fds: list[int]) -> list[int]:
    """Take a group, folder and output of its own. Returns the file descriptors that the worker is told."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    log, folder, *theirs = fds
    with contextlib.suppress(OSError):
        os.fchdir(folder)
    os.close(folder)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, standard)
    os.close(null)
    os.close(log)
    return theirs


def _collect(pid: int, statuses: dict[int, int]) -> None:
    status_fd = statuses.pop(pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.write(status_fd, STATUS.pack(os.waitstatus_to_exitcode(status)))
    os.close(status_fd)


def _import(names: list[str]) -> bool:
    """Import modules for later workers. Failures are left to the workers, which import them again.

    Returns whether a worker may go on in a fork of this process.
    """
    for name in names:
        with contextlib.suppress(Exception):
            __import__(name)
    torch = sys.modules.get("torch")
    touches_device = torch is not None and torch.cuda.is_initialized()
    return len(os.listdir("/proc/self/task")) == 1 and not touches_device
