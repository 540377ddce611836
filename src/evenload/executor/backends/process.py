"""One process per device, on this machine. The default.

Every worker has its own pipes and process group, and only the executor has the other ends. So a worker that
crashes, hangs or floods its output affects no other, killing it kills its children, and all of them end with
the executor (see ``worker.leave_with_parent``).
"""

import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from evenload._memory_sizes import limit_from
from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, UnknownName
from evenload.executor.backends import Backend, WorkerOptions
from evenload.executor.task.failure import pack_apart
from evenload.executor.task.messages import Loaded, Message
from evenload.executor.task.task import PreparedTask, dump
from evenload.executor.transport.pickling import mark_large, pack
from evenload.executor.transport.progress_cell import NOT_BEGUN
from evenload.executor.transport.wire import Frame
from evenload.executor.worker import protocol
from evenload.executor.worker.child import Child
from evenload.executor.worker.fork_main import WorkerStart
from evenload.executor.worker.fork_server import (
    ANSWER_S,
    ForkedWorker,
    ForkServer,
    SpawnedWorker,
    can_fork,
    imports_of,
)
from evenload.executor.worker.memory import SharedMemory, memory_limit_from
from evenload.executor.worker.program_settings import ProgramSettings
from evenload.executor.worker.replies import message_of
from evenload.executor.worker.threads import ONE_THREAD
from evenload.settings import resolve

MOST_SERVERS = 3
FREE_S = 5.0  # for a worker that has nothing to do, to free what its tasks hold
MEMORY_LOOK_S = 0.05  # how often the memory of workers is looked at that have a limit
DEATH_CHECK_S = 0.1  # where no file descriptor tells of a child's death


class FrameBackend(Backend):
    """A backend that speaks with its workers by frames, whichever way these go."""

    def forward(self, worker: int, frame: Frame) -> None:
        """Send a frame as it is, with the next ``poll``."""
        raise NotImplementedError

    def load(self, worker: int, task: PreparedTask) -> None:
        body, buffers = dump(task)
        self.forward(worker, Frame(protocol.LOAD, task.id, 0, body, buffers))

    def unload(self, worker: int, task: int) -> None:
        self.forward(worker, Frame(protocol.UNLOAD, task))

    def send(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int:
        body, buffers = pack(pack_apart(items, "input") if singly else mark_large(items), by_file=True)
        frame = Frame(protocol.SINGLY if singly else protocol.RUN, task, chunk, body, buffers)
        self.forward(worker, frame)
        return frame.n_bytes

    def stop(self, worker: int) -> None:
        self.forward(worker, Frame(protocol.STOP))


class ProcessBackend(FrameBackend):
    """A backend with one local process per worker.

    ``read`` makes a message of a worker's number, its process id and a frame that it has sent.
    """

    is_threaded = True

    def __init__(
        self, options: WorkerOptions | None = None, read: Callable[[int, int, Frame], Any] = message_of
    ) -> None:
        settings, given = resolve(), options or WorkerOptions()
        limit, most = given.shared_memory_limit, given.memory_limit
        self._forks = _is_fork(settings.start if given.start is None else given.start)
        self._imports = given.imports
        self._memory = SharedMemory(limit_from(settings.shared_memory_limit if limit is None else limit))
        self._memory_limit = None if most is None else memory_limit_from(most)
        self._looked_s = 0.0  # at the memory of the workers
        self._program = given.program or ProgramSettings.of_this_process()
        self._read = read
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}
        self._server: ForkServer | None = None
        self._n_servers = 0
        self._to_preload: list[str] = []
        self._unsent: list[Child] = []
        self._ended: list[Child] = []
        self._messages: list[Message] = []
        self._must_check = False
        self._wake_out, self._wake_in = socket.socketpair()  # closed by itself, unlike a pipe's numbers
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._on_wake)

    def expect(self) -> None:
        with contextlib.suppress(OSError):  # as whoever starts the first worker will say
            self._make_server_ready(_import_path())

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        begin = partial(self._start_process, device.id, environment)
        ours = (self._selector, self._messages, self._ended.append, self._memory)
        child = Child(worker, *ours, begin, self._read)
        self._children[worker] = child
        self._must_check = not child.can_tell_death

    def _start_process(
        self, device: str, environment: Mapping[str, str], fds: Sequence[int], log: int, cell: int | None
    ) -> SpawnedWorker | ForkedWorker:
        path, program = _import_path(), self._program
        whole = {**os.environ, **environment}
        start = WorkerStart(device, whole, path, cell, os.getpid(), program.pack(), program.flags)
        self._make_server_ready(path)
        if self._forks and self._server is not None:
            with contextlib.suppress(OSError):
                return self._server.fork(start, fds, log)
        return SpawnedWorker(start, fds, log)

    def _make_server_ready(self, path: list[str]) -> None:
        if self._forks and (self._server is None or not self._server.is_alive):
            self._renew_server(path)
        if self._forks and self._server is not None:
            self._server.preload(self._imports)

    def _renew_server(self, path: list[str]) -> None:
        """Start a new fork server, unless the last one never worked or several have ended already."""
        old, self._server = self._server, None
        if old is not None:
            old.close()
        if (old is not None and not old.has_forked) or self._n_servers == MOST_SERVERS:
            self._forks = False
        else:
            self._n_servers += 1
            self._server = ForkServer(path, {**os.environ, **ONE_THREAD}, self._program.flags)

    def load(self, worker: int, task: PreparedTask) -> None:
        if self._server is not None:
            self._to_preload = imports_of(task.fn)
        super().load(worker, task)

    def forward(self, worker: int, frame: Frame) -> None:
        child = self._children.get(worker)
        if child is None:
            return  # it has ended, which a message says that is not taken in yet; so below
        if not child.is_unsent:
            self._unsent.append(child)
        if frame.kind == protocol.LOAD and frame.buffers and child.has_arenas:
            frame.buffers = self._memory.share(frame.task, frame.buffers)
            frame.is_lent = False  # a constant outlives the task's writes through its descriptors
        child.send(frame)

    def drop(self, worker: int, chunk: int) -> None:
        if worker in self._children:
            self._children[worker].cell.drop(chunk)

    def position(self, worker: int) -> tuple[int, float]:
        return self._children[worker].position() if worker in self._children else (NOT_BEGUN, 0.0)

    def activity(self, worker: int) -> float | None:
        return self._children[worker].activity() if worker in self._children else 0.0

    def kill(self, worker: int) -> None:
        if worker in self._children:
            self._children[worker].kill()

    def show_stack(self, worker: int) -> None:
        if worker in self._children:
            self._children[worker].show_stack()

    def poll(self, timeout_s: float | None) -> list[Message]:
        for child in self._unsent:
            child.flush()
        self._unsent.clear()
        if self._messages:
            timeout_s = 0.0
        elif self._must_check:
            timeout_s = DEATH_CHECK_S if timeout_s is None else min(timeout_s, DEATH_CHECK_S)
        if self._memory_limit is not None and self._children:
            timeout_s = MEMORY_LOOK_S if timeout_s is None else min(timeout_s, MEMORY_LOOK_S)
        for key, _ in self._selector.select(timeout_s):
            key.data()
        if self._memory_limit is not None and time.monotonic() - self._looked_s >= MEMORY_LOOK_S:
            self._looked_s = time.monotonic()
            for child in self._children.values():
                child.limit_memory(self._memory_limit)
        if self._must_check:
            for child in self._children.values():
                child.check()
        while self._ended:
            child = self._ended.pop()
            if self._children.pop(child.worker, None) is not None:
                child.reap()
        messages = self._messages[:]
        self._messages.clear()
        if self._to_preload and self._server is not None and any(type(one) is Loaded for one in messages):
            self._server.preload(self._to_preload)  # when the worker is ready, as importing takes time
            self._to_preload = []
        return messages

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full of earlier wakes, or closed
            self._wake_in.send(b"!")

    def close(self, grace_s: float) -> list[Message]:
        for worker in self._children:
            self.forward(worker, Frame(protocol.STOP))
        messages: list[Message] = []
        waited_s, most_s = 0.0, max(grace_s, FREE_S) if grace_s else 0.0
        while self._children and waited_s < most_s:
            began_s = time.monotonic()
            messages += self.poll(DEATH_CHECK_S)
            waited_s += min(time.monotonic() - began_s, DEATH_CHECK_S)  # none while all is stopped
            for child in self._children.values() if waited_s >= grace_s else ():
                if not child.is_free:
                    child.kill()
        for child in self._children.values():
            child.kill()
        until = time.monotonic() + ANSWER_S
        while self._children:
            messages += self.poll(DEATH_CHECK_S)
            if self._server is not None and time.monotonic() > until:
                self._server.close()  # it is stopped; without it, who it did not start is known to be none
        self._selector.close()
        self._wake_out.close()
        self._wake_in.close()
        self._memory.close()
        if self._server is not None:
            self._server.close()
        return messages

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)


def _import_path() -> list[str]:
    """``sys.path`` as ``import`` reads it, with the working folder by its name, if it has one yet."""
    folder = ""
    with contextlib.suppress(OSError):  # it was deleted
        folder = os.getcwd()
    return [entry or folder for entry in sys.path if isinstance(entry, str) and (entry or folder)]


def _is_fork(start: str) -> bool:
    if start not in ("auto", "forkserver", "spawn"):
        raise UnknownName("start", start, ("auto", "forkserver", "spawn"))
    if start == "forkserver" and not can_fork():
        raise ConfigError("start='forkserver' needs Linux 5.3 or later", hint="use 'spawn'")
    return start != "spawn" and can_fork()
