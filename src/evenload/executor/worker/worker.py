"""The worker process: one device, one pipe in, one pipe out, one task at a time.

Started as ``python -c "... main()"`` with the device's environment (visible devices, thread counts) set.
It imports little, and no user code before the first ``LOAD``. It never outlives the executor: see
``leave_with``.
"""

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from operator import attrgetter
from types import ModuleType
from typing import Any

from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure, pack_apart, unpack_apart
from evenload.executor.task.task import Runner, load
from evenload.executor.transport.arena import Borrower, Lender, MemoryBudget
from evenload.executor.transport.pickling import mark_large, pack
from evenload.executor.transport.progress_cell import ProgressCell, seal_progress_file
from evenload.executor.transport.wire import Frame, Inbox, Outbox, unpack
from evenload.executor.worker import protocol
from evenload.executor.worker.process_state import ProcessState, open_stream
from evenload.executor.worker.program_settings import Filter, filter_warnings, take_over

_FIELDS = attrgetter(*Answer.__slots__)
F_SETSIG = 10  # Linux: which signal to send instead of SIGIO; not in the fcntl module
PARENT_CHECK_MS = 500


def main(
    inbox_fd: int,
    outbox_fd: int,
    life_fd: int,
    progress_fd: int,
    arenas: tuple[int, int, int, int, int] | None,
    executor: int,
    program: bytes,
) -> None:
    """Serve frames until STOP or the end of the process ``executor``, then leave the process.

    ``arenas``: file descriptors of the arena to read, the one to write, the common one and the budget, and
    the second one's cell in the budget; None without shared memory. ``program``: settings to take over.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the executor decides
    leave_with(executor, life_fd)
    faulthandler.enable(all_threads=False)
    # A forked worker's streams were made for what was open before, which may have been a file.
    sys.stdout, sys.stderr = open_stream(1), open_stream(2)
    sys.modules["__main__"] = ModuleType("__main__")  # the user's __main__ arrives by value
    borrower, lender, common_fd = None, None, -1
    if arenas is not None:
        borrowed_fd, lent_fd, common_fd, budget_fd, cell = arenas
        borrower, lender = Borrower(borrowed_fd), Lender(lent_fd, MemoryBudget(budget_fd), cell)
    progress = ProgressCell(progress_fd)
    seal_progress_file(progress_fd)
    late_filters = take_over(program)
    worker = WorkerProcess(Outbox(outbox_fd, lender), progress, ProcessState(), late_filters)
    inbox = Inbox(inbox_fd, borrower, common_fd)
    for fd in (inbox_fd, outbox_fd, life_fd, progress_fd, *(arenas[:4] if arenas is not None else ())):
        with contextlib.suppress(OSError):
            os.set_inheritable(fd, False)  # programs that tasks start have no use for it
    os.register_at_fork(after_in_child=worker.fall_silent)
    faulthandler.register(protocol.STACK_SIGNAL, os.dup(2), all_threads=True)
    worker.reply(protocol.UP)
    exit_code = _serve(worker, inbox)
    _flush()
    os._exit(exit_code)  # threads of the task must not keep the device


def _serve(worker: "WorkerProcess", inbox: Inbox) -> int:
    """Obey frames until there are no more. Returns the exit code."""
    try:
        while worker.is_serving:
            for frame in inbox.read() or ():
                worker.obey(frame)
    except (EOFError, BrokenPipeError):
        pass
    except BaseException:  # a task has closed our pipe, or has written into it or read from it
        traceback.print_exc()
        return 1
    return 0


class WorkerProcess:
    """The process's state: its tasks, built for its device, and the pipe for its replies."""

    def __init__(
        self, outbox: Outbox, progress: ProgressCell, state: ProcessState, late_filters: tuple[Filter, ...]
    ):
        self.is_serving = True
        self._late_filters = late_filters  # of warnings whose class is in a module that is not loaded yet
        self._outbox = outbox
        self._progress = progress
        self._runners: dict[int, Runner] = {}
        self._pid = os.getpid()
        self._state = state

    def fall_silent(self) -> None:
        """In a child that a task has forked: run no further item, and write nothing for the worker."""
        self._progress.disconnect()

    def _leave_if_forked(self) -> None:
        """End a child that a task has forked, when it comes out of the task."""
        if os.getpid() != self._pid:
            os._exit(1)

    def reply(
        self, kind: int, task: int = 0, chunk: int = 0, body: bytes = b"", buffers: list | None = None
    ) -> None:
        self._leave_if_forked()
        self._outbox.send(Frame(kind, task, chunk, body, buffers))
        self._progress.sent(self._outbox.n_frames)

    def obey(self, frame: Frame) -> None:
        """Do what ``frame`` asks, and reply."""
        if frame.kind == protocol.RUN:
            self._run(frame)
        elif frame.kind == protocol.SINGLY:
            self._run_singly(frame)
        elif frame.kind == protocol.LOAD:
            self._load(frame)
        elif frame.kind == protocol.UNLOAD:
            self._unload(frame.task)
        elif frame.kind == protocol.STOP:
            for task in tuple(self._runners):
                self._unload(task)
            self.is_serving = False
        self._leave_if_forked()

    def _load(self, frame: Frame) -> None:
        began_s = time.monotonic()
        try:
            task = load(bytes(frame.body), frame.buffers, frame.task)
            self._late_filters = filter_warnings(self._late_filters)
            self._runners[frame.task] = Runner(task, _device, state=self._state)
        except BaseException as error:
            self._state.restore()
            body, buffers = pack(Failure.of(error))
            self.reply(protocol.REFUSED, frame.task, body=body, buffers=buffers)
        else:
            self._state.keep()
            self.reply(protocol.LOADED, frame.task, body=pack(time.monotonic() - began_s)[0])

    def _unload(self, task: int) -> None:
        runner = self._runners.pop(task, None)
        try:
            if runner is not None:
                runner.close()
        except BaseException as error:
            print(Failure.of(error).traceback, file=sys.stderr)  # noqa: T201 - reaches the executor as a note

    def _run(self, frame: Frame) -> None:
        self._progress.begin(frame.chunk)
        task, chunk = frame.task, frame.chunk
        try:
            items = unpack(frame)
        except BaseException as error:
            body, _ = pack(Failure.of(error, "input"))
            return self.reply(protocol.SPOILT, task, chunk, body)
        frame.body, frame.buffers = b"", None
        runner = self._runners[task]
        answer = runner.run(items, self._progress)
        self._leave_if_forked()
        del items
        body, buffers = _pack_answer(answer)
        _flush()
        self.reply(protocol.DONE, task, chunk, body, buffers)
        runner.tidy()

    def _run_singly(self, frame: Frame) -> None:
        self._progress.begin(frame.chunk)
        items = self._one_by_one(unpack(frame))
        runner = self._runners[frame.task]
        answer = runner.run(items, self._progress, singly=True)
        self._leave_if_forked()
        answer.values = pack_apart(answer.values, "result")
        body, buffers = pack(_fields(answer))
        _flush()
        self.reply(protocol.DONE_SINGLY, frame.task, frame.chunk, body, buffers)
        runner.tidy()

    def _one_by_one(self, packed: Sequence[Any]) -> Iterator[Any]:
        """Unpickle each item when it is due: one that ends this process then is known by its position."""
        for position, one in enumerate(packed):
            self._leave_if_forked()
            self._progress.at(position)
            yield from unpack_apart([one], "input")


def _pack_answer(answer: Answer) -> tuple[bytes, list]:
    """Pickle the answer; a result that cannot be pickled becomes its item's failure."""
    try:
        return pack(_fields(answer))
    except BaseException:
        pass  # find the results that cannot be pickled
    for position, value in enumerate(answer.values):
        try:
            pack(value)
        except BaseException as error:
            answer.values[position] = None
            answer.failures[position] = Failure.of(error, "result")
    return pack(_fields(answer))


def _fields(answer: Answer) -> tuple:
    answer.values = mark_large(answer.values)  # pyrefly: ignore
    return _FIELDS(answer)


def _flush() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        pass  # the task has closed or replaced them


def _device() -> Any:
    from evenload.devices import current

    return current()


def leave_with(executor: int, life_fd: int) -> None:
    """End this process group when the process ``executor`` ends, whatever the task does.

    Only the executor holds the other end of ``life_fd``. When that closes, the kernel kills this process
    group, even if the task holds the interpreter's lock for ever (Linux). A thread watches too: for systems
    without that signal, and for a forked child of the executor that keeps the pipe open. The end of the fork
    server is not looked at: it would take along workers whose items have done nothing.
    """
    assert os.getpgrp() == os.getpid(), "a worker must not share a process group: it is killed as a whole"
    if sys.platform == "linux":
        fcntl.fcntl(life_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life_fd, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(life_fd, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        try:
            poll.register(os.pidfd_open(executor), select.POLLIN)
        except ProcessLookupError:
            _end_group()
    arguments = (poll, None if hasattr(os, "pidfd_open") else executor)
    threading.Thread(target=_watch, args=arguments, name="evenload-life", daemon=True).start()


def _watch(poll: select.poll, parent: int | None) -> None:
    """End this process group when there is news, or, where that cannot tell all, ``parent`` is another."""
    while not poll.poll(PARENT_CHECK_MS) and parent in (None, os.getppid()):
        pass
    _end_group()


def _end_group() -> None:
    with contextlib.suppress(OSError):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
