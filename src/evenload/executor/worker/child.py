"""A worker process as the executor sees it: its pipes, its output, its death."""

import contextlib
import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from evenload.executor.task.messages import OVER_MEMORY, Gone, Said, Warned
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING, ProgressCell, make_progress_file
from evenload.executor.transport.wire import Frame, Inbox, Outbox, ProtocolViolation
from evenload.executor.worker import protocol
from evenload.executor.worker.fork_server import ForkedWorker, SpawnedWorker
from evenload.executor.worker.memory import SharedMemory

MB = 10**6
LARGE_BYTES = 128 * 1024
PIPE_BYTES = 1024 * 1024  # asked for; the system may give less
MOST_LINE_BYTES = 64 * 1024
N_LAST_LINES = 30
MOST_LAST_READS = 64  # of what a dead worker has left; what it has started may write on for ever

Start = Callable[[Sequence[int], int, int | None], SpawnedWorker | ForkedWorker]
"""Starts a worker's process, given its file descriptors, its output, and its arena's cell."""


MIB = 2**20


def activity_of(pid: int) -> float:
    """Seconds of a processor, and MiB read and written (Linux), of process ``pid`` and its descendants.

    0.0 if there is no such process. Of no use but to see that it changes.
    """
    import psutil  # takes a while, and is needed only where a start takes long

    done = 0.0
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                done += sum(one.cpu_times()[:4])  # its own, and of children that have ended
                if hasattr(one, "io_counters"):
                    counted = one.io_counters()
                    done += (counted.read_chars + counted.write_chars) / MIB
    return done


def own_memory_of(pid: int) -> int:
    """Bytes of memory that process ``pid`` and its descendants have for themselves; 0 if there is none.

    Not counted is what others have, too, or the system can take back: shared memory, and pages of files. On
    other systems than Linux it is all resident memory of ``pid`` alone.
    """
    if sys.platform != "linux":
        import psutil

        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss
        return 0
    n_bytes, todo = 0, [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            with open(f"/proc/{one}/statm") as file:
                _, resident, shared, *_ = map(int, file.read().split())
            n_bytes += (resident - shared) * os.sysconf("SC_PAGE_SIZE")
            for thread in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{thread}/children") as file:
                    todo += map(int, file.read().split())
    return n_bytes


class Child:
    """A worker process, which the constructor starts.

    ``on_end(child)`` is called when the process has ended; ``reap`` has to be called then. A process that
    sends what it was not asked for, or bytes that are no frames, is killed.

    worker           its number
    read             makes a message of its number, its process id and a frame that it has sent
    chunks           the chunks that it holds, in the order in which they were sent
    is_unsent        ``flush`` has something to send
    has_arenas       it reads shared memory, that of all workers too; the system may have refused it
    can_tell_death   a file descriptor tells of its death; if not, ``check`` must be called now and then
    """

    def __init__(
        self,
        worker: int,
        selector: selectors.BaseSelector,
        messages: list[Any],
        on_end: "Callable[[Child], None]",
        memory: SharedMemory,
        start: Start,
        read: Callable[[int, int, Frame], Any],
    ):
        self.worker = worker
        self.chunks: deque[int] = deque()
        self._loading: deque[int] = deque()
        self._last_chunk = self._n_lines = 0
        self._is_up = self._is_read = False
        self._violation = ""
        self.can_tell_death = True
        self._selector = selector
        self._messages = messages
        self._on_end = on_end
        self._memory = memory
        self._read = read
        self.is_unsent = self.has_arenas = False
        self._is_doomed = False
        self._is_writing = False
        self._has_large_pipes = False
        self._last_lines: deque[str] = deque(maxlen=N_LAST_LINES)
        self._partial = b""
        self._fds: list[int] = []
        theirs: list[int] = []
        try:
            self._start(theirs, start)
        except BaseException:
            self._close_fds()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _start(self, theirs: list[int], start: Start) -> None:
        cell_fd = make_progress_file()
        theirs.append(cell_fd)
        self.cell = ProgressCell(cell_fd)
        their_in, self._out_fd = self._pipe(theirs, they_read=True)
        their_out, self._in_fd = self._pipe(theirs, they_read=False)
        their_log, self._log_fd = self._pipe(theirs, they_read=False)
        their_life, _ = self._pipe(theirs, they_read=True)
        passed = (their_in, their_out, their_life, cell_fd)
        arenas = self._memory.open(self._warn)
        self.has_arenas = arenas is not None
        if arenas is not None:
            theirs.extend(arenas.own)
        fds = (*passed, *(arenas.theirs[:4] if arenas is not None else ()))
        cell = arenas.theirs[4] if arenas is not None else None
        self._process = start(fds, their_log, cell)
        self._inbox = Inbox(self._in_fd, arenas.borrower if arenas is not None else None)
        self._outbox = Outbox(self._out_fd, arenas.lender if arenas is not None else None)
        self._selector.register(self._in_fd, selectors.EVENT_READ, self._on_frames)
        self._selector.register(self._log_fd, selectors.EVENT_READ, self._on_output)
        if sys.platform == "linux":  # tells when nobody can read what we write
            self._selector.register(self._out_fd, selectors.EVENT_READ, self._on_writable)
        if isinstance(self._process, ForkedWorker):
            self._fds.append(self._process.status_fd)
            self._selector.register(self._process.status_fd, selectors.EVENT_READ, self._on_status)
        else:
            self._watch_death()

    def _watch_death(self) -> None:
        death_fd = self._process.death_fd
        self.can_tell_death = death_fd is not None
        if death_fd is not None:
            self._fds.append(death_fd)
            self._selector.register(death_fd, selectors.EVENT_READ, self._on_death)

    def _on_status(self) -> None:
        """Learn the process id from the fork server, or that it could not fork."""
        assert isinstance(self._process, ForkedWorker)
        if self.pid is not None:
            return  # learned already: a frame came first, in the same poll
        self._unwatch(self._process.status_fd)
        if not self._process.learn():
            return self._on_end(self)
        self._watch_death()
        if self._is_doomed:
            self.kill()

    def _pipe(self, theirs: list[int], they_read: bool) -> tuple[int, int]:
        """Make a pipe; returns (the worker's end, our end). Ours does not block."""
        read, write = os.pipe()
        their, our = (read, write) if they_read else (write, read)
        theirs.append(their)
        self._fds.append(our)
        os.set_blocking(our, False)
        return their, our

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_free(self) -> bool:
        """Whether it is up and has answered all that it was sent."""
        return self._is_up and not self.chunks and not self._loading

    def _prepare_for(self, frame: Frame) -> None:
        """Enlarge the pipes at the first large message, for fewer and larger reads and writes."""
        if self._has_large_pipes or frame.n_bytes < LARGE_BYTES:
            return
        self._has_large_pipes = True
        if sys.platform == "linux":
            import fcntl

            for fd in (self._in_fd, self._out_fd):
                with contextlib.suppress(OSError):  # over the user's limit of pipe memory: slower, no more
                    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def send(self, frame: Frame) -> None:
        """Queue a frame for the next ``flush``."""
        self._prepare_for(frame)
        if frame.kind in protocol.CHUNKS:
            self.chunks.append(frame.chunk)
            self._last_chunk = max(frame.chunk, self._last_chunk)
        elif frame.kind == protocol.LOAD:
            self._loading.append(frame.task)
        self._outbox.add(frame)
        self.is_unsent = True
        if self._outbox.refused:
            self._outbox.refused = 0
            self._memory.warn_full(self._warn)

    def flush(self) -> None:
        """Send what is queued, the rest when the worker reads on."""
        self.is_unsent = False
        try:
            if not self._outbox.flush() and not self._is_writing:
                self._watch_pipe(selectors.EVENT_WRITE)
                self._is_writing = True
        except BrokenPipeError:
            self.kill()  # it is dying, or has closed its pipe and cannot be used

    def _watch_pipe(self, events: int) -> None:
        """Wait until the pipe to the worker takes more, or only until nobody can read it any more."""
        self._unwatch(self._out_fd)
        if events or sys.platform == "linux":
            self._selector.register(self._out_fd, events or selectors.EVENT_READ, self._on_writable)

    def _warn(self, text: str) -> None:
        self._messages.append(Warned(self.worker, text))

    def position(self) -> tuple[int, float]:
        """Return its position in the first chunk that it holds, and the seconds spent there."""
        first = self.chunks[0] if self.chunks else None
        self._check_that_all_came()
        if not self.chunks or self.chunks[0] != first:
            return NOT_BEGUN, 0.0  # whoever asks has not heard yet that the first is answered
        return self._place()

    def _place(self) -> tuple[int, float]:
        if not self.cell.is_readable(self._last_chunk):
            return PACKING, 0.0  # nobody knows; maybe it has run them all
        return self.cell.position_in(self.chunks[0])

    def activity(self) -> float:
        """What it has done so far; see ``StartWatch``. What it has started counts, too."""
        self._check_that_all_came()
        return self._n_lines + activity_of(self.pid or self._process.starter_pid)

    def _check_that_all_came(self) -> None:
        """Kill it if a frame that it has sent did not come whole: nothing more would come."""
        n_sent = self.cell.n_sent
        if n_sent <= self._inbox.n_whole or self._is_read:
            return
        while self._on_frames():
            pass
        if n_sent > self._inbox.n_whole and not self._is_read:
            self._end_for(ProtocolViolation("a frame is not whole"))

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.pid is None:
            self._is_doomed = True
            return self._process.doubt() if isinstance(self._process, ForkedWorker) else None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: only zombies are left
            os.killpg(self.pid, signal.SIGKILL)

    def limit_memory(self, limit: int) -> None:
        """Kill it if it and what it has started use more than ``limit`` bytes for themselves."""
        used = own_memory_of(self.pid) if self.pid is not None else 0
        if used > limit and not self._violation:
            self._violation = (
                f"{OVER_MEMORY} {used / MB:.0f} MB, more than its memory_limit of {limit / MB:.0f} MB"
            )
            self.kill()

    def show_stack(self) -> None:
        """Have the process print where its threads are, even if one holds the interpreter's lock."""
        if self.pid is not None and self._is_up:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, protocol.STACK_SIGNAL)

    def check(self) -> None:
        """Call ``on_end`` if the process has ended, where the system does not tell by itself."""
        if self._process.is_dead():
            self._on_end(self)

    def reap(self) -> None:
        """Read what an ended process has left, report its end, free its resources."""
        self.kill()  # its children
        for _ in range(MOST_LAST_READS):
            if not (self._on_frames() or self._on_output()):
                break
        if self._partial:
            self._say(self._partial)
        exit_code = self._process.wait()
        self._check_that_all_came()
        position = self._place()[0] if self.chunks else NOT_BEGUN
        last_words = "\n".join(self._last_lines)
        self._messages.append(Gone(self.worker, exit_code, position, last_words, self._violation))
        self._close_fds()
        self.cell.close()
        self._inbox.close()
        self._outbox.close()

    def _on_frames(self) -> bool:
        """Read once. Returns True if there may be more."""
        if self._is_read:
            return False
        try:
            frames = self._inbox.read()
            if frames is None:
                return False
            self._take(frames)
        except EOFError:
            return self._stop_reading()  # it is dying, or has closed its pipes and cannot be used
        except MemoryError:
            self._last_lines.append("evenload: these results do not fit into the executor's memory")
            return self._stop_reading()
        except ProtocolViolation as violation:
            return self._end_for(violation)
        if self._inbox.refused:
            self._inbox.refused = 0
            self._memory.warn_full(self._warn)
        return True

    def _take(self, frames: Sequence[Frame]) -> None:
        if self.pid is None and frames:  # its frame came before the fork server's answer
            self._on_status()
        for frame in frames:
            self._prepare_for(frame)
            self._messages.append(self._message(frame))

    def _end_for(self, violation: ProtocolViolation) -> bool:
        """Kill it, as nothing it sends from here on can be trusted; what came before is good."""
        try:
            self._take(violation.frames)
        except ProtocolViolation as earlier:
            violation = earlier
        self._violation = f"was killed as a task in it wrote into evenload's own pipe: {violation}"
        return self._stop_reading()

    def _stop_reading(self) -> bool:
        self._is_read = True
        self._unwatch(self._in_fd)
        self.kill()
        return False

    def _message(self, frame: Frame) -> Any:
        """Read a frame that is due as a message. Raises ProtocolViolation for any other."""
        awaited: deque[int] | None = None
        number = 0
        if frame.kind in protocol.CHUNK_ENDS:
            awaited, number = self.chunks, frame.chunk
        elif frame.kind in (protocol.LOADED, protocol.REFUSED):
            awaited, number = self._loading, frame.task
        if awaited is None:
            is_due = frame.kind == protocol.UP and not self._is_up
            self._is_up = True
        else:
            is_due = bool(awaited) and awaited[0] == number
        if not is_due or self.pid is None:
            raise ProtocolViolation("an answer that nobody waits for")
        message = self._read(self.worker, self.pid, frame)
        if awaited is not None:  # not before: what a chunk is that nobody can read, is known by its end
            awaited.popleft()
        return message

    def _on_output(self) -> bool:
        """Read once. Returns True if there may be more."""
        try:
            read = os.read(self._log_fd, MOST_LINE_BYTES)
        except BlockingIOError:
            return False
        if not read:
            self._unwatch(self._log_fd)
            return False
        *lines, self._partial = (self._partial + read).split(b"\n")
        if len(self._partial) > MOST_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self._say(line)
        return True

    def _say(self, line: bytes) -> None:
        # Of what a progress bar writes over itself, the last is what a terminal would show.
        text = line.decode(errors="backslashreplace").rstrip("\r").rpartition("\r")[2]
        self._last_lines.append(text)
        self._n_lines += 1
        self._messages.append(Said(self.worker, text))

    def _on_writable(self) -> None:
        if not self._is_writing:
            self._unwatch(self._out_fd)
            return self.kill()  # nobody can read what we write
        try:
            is_done = self._outbox.flush()
        except BrokenPipeError:
            self._unwatch(self._out_fd)
            return self.kill()
        if is_done:
            self._watch_pipe(0)
            self._is_writing = False

    def _on_death(self) -> None:
        self._on_end(self)

    def _unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _close_fds(self) -> None:
        for fd in self._fds:
            self._unwatch(fd)
            os.close(fd)
        self._fds.clear()
