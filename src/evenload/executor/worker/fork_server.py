"""Starting workers by fork from a small server process, instead of a new interpreter each.

    executor ──socket──► fork server ──fork──► worker ──pipes──► executor

The server imports what workers need and then only forks. It has one thread, runs no task and never uses a
device, so a fork is as good as a new interpreter and takes milliseconds. It also imports what tasks import
(torch, above all), once for all workers: before the first where that is known, else for those that replace
others. After an import that starts a thread or uses a device, workers are new interpreters. The server
belongs to one backend and ends with it, however that ends; its workers go on without it. Devices and thread
counts are set in the worker before anything can read them; see ``fork_main``.
"""

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from evenload.executor.worker.fork_main import STATUS, WorkerStart, boot_command

PRELOADABLE = ("numpy", "torch")  # whose import starts nothing that a fork would break
MAKES = {"torch.nn.parallel.distributed": "torch._dynamo"}  # a module, and what its classes import when made
ANSWER_S = 60.0  # for the server to fork or reap, perhaps after an import; else it hangs, or is stopped
SEND_BYTES = 1024 * 1024
BOOT_SERVER = (
    "import sys; sys.path[:] = {path!a}; "
    "from evenload.executor.worker.fork_main import serve; serve({fd}, {executor})"
)


def can_fork() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def imports_of(fn: Any) -> list[str]:
    """Return the preloadable packages that the module of ``fn`` uses, and what its classes will import.

    No names if that cannot be told: what is looked at is the user's, and any of it may raise.
    """
    try:
        inner = getattr(fn, "func", fn)
        module = sys.modules.get(getattr(inner, "__module__", None) or "")
        scope = dict(vars(module)) if module is not None else {}
        homes = {*map(_home, scope.values())}
    except Exception:
        return []
    used = {home.partition(".")[0] for home in homes}
    return [name for name in PRELOADABLE if name in used] + [MAKES[home] for home in MAKES if home in homes]


def _home(value: Any) -> str:
    """Return the module that ``value`` is or comes from; "" if it is no module, class or function."""
    is_plain = issubclass(type(value), type) or type(value) in (FunctionType, BuiltinFunctionType)
    home = value.__name__ if type(value) is ModuleType else value.__module__ if is_plain else None
    return home if type(home) is str else ""


class SpawnedWorker:
    """A worker in a new interpreter, as a child of this process.

    death_fd  readable when the process has ended; None if the system cannot tell
    """

    def __init__(self, start: WorkerStart, fds: Sequence[int], log: int):
        self._process = subprocess.Popen(
            start.command(fds),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=start.environment,
            pass_fds=fds,
            process_group=0,
        )
        self.pid: int | None = self._process.pid
        self.starter_pid = self.pid
        self.death_fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Return the exit code, negative for a signal. Call it only when the worker is dead or dying."""
        return self._process.wait()


class ForkedWorker:
    """A worker that the fork server was asked for. ``learn`` reads its ``pid``.

    status_fd    readable when ``learn`` has something to read
    starter_pid  the process that is at work for it before it has a pid
    """

    def __init__(self, server: "ForkServer", status_fd: int):
        self.pid: int | None = None
        self.status_fd = status_fd
        self.starter_pid = server.pid
        self.death_fd: int | None = None
        self._server = server
        self._asked_s = time.monotonic()

    def learn(self) -> bool:
        """Read the process id. Returns False if the server has ended without starting the worker."""
        read = os.read(self.status_fd, STATUS.size)
        if len(read) < STATUS.size:
            return False
        (pid,) = STATUS.unpack(read)
        self.pid = pid
        self._server.has_forked = True
        try:
            self.death_fd = os.pidfd_open(pid)
        except ProcessLookupError:  # the server is gone, and init has reaped the worker
            return False
        return True

    def is_dead(self) -> bool:
        return False  # its death is told by a file descriptor, always

    def wait(self) -> int | None:
        """Return the exit code, negative for a signal. Call it when the worker is dead.

        None if nobody knows: the server, who would be told, has ended before.
        """
        if self.pid is not None and self._server.send("collect", self.pid) and self._is_told():
            read = os.read(self.status_fd, STATUS.size)
            if len(read) == STATUS.size:
                return STATUS.unpack(read)[0]
        return None

    def doubt(self) -> None:
        """Note that a worker without a process id is to be killed: asked for long ago, the server hangs."""
        if time.monotonic() - self._asked_s > ANSWER_S:
            self._server.is_alive = False

    def _is_told(self) -> bool:
        """Whether the server says in time how it ended: one that is stopped must hold up nobody."""
        poll = select.poll()
        poll.register(self.status_fd, select.POLLIN)
        self._server.is_alive = bool(poll.poll(ANSWER_S * 1000))
        return self._server.is_alive


class ForkServer:
    """The server process, as the executor sees it; the constructor starts it.

    is_alive    no request has failed yet
    has_forked  it has started at least one worker
    pid         of its process
    """

    def __init__(self, path: Sequence[str], environment: Mapping[str, str], flags: Sequence[str]):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self.is_alive = True
        self.has_forked = False
        self._socket = ours
        self._imported: set[str] = set()
        boot = BOOT_SERVER.format(path=path, fd=theirs.fileno(), executor=os.getpid())
        try:
            self._process = subprocess.Popen(
                boot_command(flags, boot, "evenload-fork"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a spawned worker will report the same fault
                env=environment,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid

    def fork(self, start: WorkerStart, fds: Sequence[int], log: int) -> ForkedWorker:
        """Request a worker. Raises OSError if the server is gone."""
        status_fd, theirs = os.pipe()
        folder_fd = os.open(".", os.O_PATH)  # not by its name: it may be deleted, or be another one's by then
        try:
            if not self.send("fork", start, (log, folder_fd, *fds, theirs)):
                raise BrokenPipeError("the fork server has ended")
        except OSError:
            os.close(status_fd)
            raise
        finally:
            os.close(theirs)
            os.close(folder_fd)
        return ForkedWorker(self, status_fd)

    def preload(self, names: Sequence[str]) -> None:
        """Import these packages in the server, for later workers."""
        new = [name for name in names if name not in self._imported]
        if new:
            self._imported.update(new)
            self.send("import", new)

    def send(self, kind: str, argument: Any, fds: Sequence[int] = ()) -> bool:
        """Send a request. Returns False if the server is gone."""
        try:
            socket.send_fds(self._socket, [pickle.dumps((kind, argument))], fds)
        except OSError:
            self.is_alive = False
        return self.is_alive

    def close(self) -> None:
        """End the server; its workers go on."""
        self.is_alive = False
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
