"""Files that workers on other machines have made, on their way into the run folder.

    pieces ──► a file beside its place ──► size and digest are checked ──► fsync, rename ──► the task is done

Nothing that a worker says names a path: where a file belongs follows from its task.
"""

import contextlib
import hashlib
import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenload._memory_sizes import gib_text, size_text
from evenload.errors import FormatError, quoted, reason_of
from evenload.pipeline.artifacts import UNWRITABLE, is_unwritable
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import FilePiece, OrderOutcome
from evenload.pipeline.job.remote_files import MOST_FILE_BYTES

N_THREADS = 4  # that wait for the disk

Place = Callable[[StageTask, str], str | None]


@dataclass(slots=True)
class _Arriving:
    """A file that is arriving: ``partial`` is renamed to ``path`` when it is whole."""

    path: Path
    partial: Path
    n_bytes: int
    n_there: int = 0
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


@dataclass(slots=True)
class _FilesOfTask:
    """What is arriving of a task, by output; ``fault``: what was wrong with the first piece that was."""

    files: dict[str, _Arriving] = field(default_factory=dict)
    fault: Exception | None = None

    def drop(self) -> None:
        for arrived in self.files.values():
            with contextlib.suppress(OSError):  # then the end of the run removes it, or the next one
                arrived.partial.unlink(missing_ok=True)


class FetchedFiles:
    """The files that are arriving, by worker and task, of outcomes and pieces that ``OutcomeCheck`` let pass.

    place_of  where a task's output belongs, relative to the run folder; None if that is no file of its stage
    wake      is called from a thread when a task's files are on disk: ``done`` has it then
    most_bytes  of one file; a longer one fails with its item
    """

    def __init__(
        self, run_folder: Path, place_of: Place, wake: Callable[[], None], most_bytes: int = MOST_FILE_BYTES
    ):
        self._run_folder, self._place_of, self._wake = run_folder, place_of, wake
        self._most_bytes = most_bytes
        self._arriving: dict[tuple[int, StageTask], _FilesOfTask] = {}
        self._closing: dict[tuple[int, StageTask], _FilesOfTask] = {}
        self._done: queue.SimpleQueue[tuple[int, _FilesOfTask, OrderOutcome]] = queue.SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    def take(self, worker: int, piece: FilePiece) -> None:
        """Write a piece that has come; what is wrong with it is told with the task's outcome."""
        there = self._arriving.setdefault((worker, piece.task), _FilesOfTask())
        try:
            self._write(worker, piece, there.files)
        except (OSError, FormatError) as error:
            there.fault = there.fault or error

    def finish(self, worker: int, outcome: OrderOutcome) -> None:
        """Check what has come of a task that is done, and have it on disk; ``done`` returns it then."""
        assert outcome.task is not None
        key = worker, outcome.task
        self._closing[key] = there = self._arriving.pop(key, _FilesOfTask())
        if self._pool is None:
            self._pool = ThreadPoolExecutor(N_THREADS, "evenload-fetch")
        self._pool.submit(self._settle, worker, outcome, there)

    def done(self) -> list[tuple[int, OrderOutcome]]:
        """Return the tasks that are over now, with the numbers of their workers."""
        found = []
        while not self._done.empty():
            worker, there, outcome = self._done.get()
            assert outcome.task is not None
            if self._closing.get((worker, outcome.task)) is there:
                del self._closing[worker, outcome.task]
                found.append((worker, outcome))
        return found

    def forget(self, worker: int) -> None:
        """Drop what has not arrived whole of a worker that is gone."""
        for key in [key for key in self._arriving if key[0] == worker]:
            self._arriving.pop(key).drop()
        for key in [key for key in self._closing if key[0] == worker]:
            del self._closing[key]

    def close(self) -> None:
        """Wait for the disk, and drop what is not whole."""
        if self._pool is not None:
            self._pool.shutdown()
        for there in self._arriving.values():
            there.drop()

    def _write(self, worker: int, piece: FilePiece, files: dict[str, _Arriving]) -> None:
        content = piece.content
        is_array = isinstance(content, np.ndarray) and content.dtype == np.uint8 and content.ndim == 1
        if not is_array or not content.flags.c_contiguous:
            raise FormatError("a piece of a file is no bytes")
        if piece.start == 0:
            files[piece.output] = self._begin(piece, worker)
        arriving = files.get(piece.output)
        if arriving is None or piece.start != arriving.n_there:
            raise FormatError(f"a piece of {piece.output} is missing")
        if arriving.n_there + len(content) > arriving.n_bytes:
            raise FormatError(f"{piece.output} is larger than was said")
        with open(arriving.partial, "ab") as file:
            file.write(content.data)
        arriving.digest.update(content.data)
        arriving.n_there += len(content)

    def _begin(self, piece: FilePiece, worker: int) -> _Arriving:
        place = self._place_of(piece.task, piece.output)
        if place is None:
            raise FormatError(f"{quoted(piece.output)} is no file that the stage makes")
        if piece.n_bytes > self._most_bytes:
            raise FormatError(
                f"{piece.output} has {gib_text(piece.n_bytes)}, more than is fetched of one file",
                hint=f"backend.file_limit is {size_text(self._most_bytes)}; raise it, or share the folder",
            )
        path = self._run_folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}-{worker}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        os.close(os.open(partial, flags, 0o644))
        return _Arriving(path, partial, piece.n_bytes)

    def _settle(self, worker: int, outcome: OrderOutcome, there: _FilesOfTask) -> None:
        try:
            if there.fault is not None:
                raise there.fault
            self._check(outcome, there.files)
            for arrived in there.files.values():
                with open(arrived.partial, "rb+") as file:
                    os.fsync(file.fileno())
                arrived.partial.replace(arrived.path)
        except (OSError, FormatError) as error:
            there.drop()
            said = UNWRITABLE if is_unwritable(error) else "the result could not be fetched"
            text = f"{said}: {reason_of(error, with_path=True)}"
            outcome = outcome.failed((type(error).__name__, text, ""))
        self._done.put((worker, there, outcome))
        self._wake()

    def _check(self, outcome: OrderOutcome, files: dict[str, _Arriving]) -> None:
        """Raise FormatError unless all files of the outcome have come, and are what it says."""
        if files.keys() != outcome.files.keys():
            raise FormatError(f"of {sorted(outcome.files)} only {sorted(files)} have come")
        for name, arrived in files.items():
            said = list(outcome.files[name][:2])
            if [arrived.n_there, arrived.digest.hexdigest()] != said or arrived.n_there != arrived.n_bytes:
                raise FormatError(f"{name} came back damaged")
