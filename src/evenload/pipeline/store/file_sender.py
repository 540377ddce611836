"""Put single files of a run folder into a store: again after a pause, not while the store is down.

A file is put whole or not at all, and noted in the run folder's record once it is there.
"""

import contextlib
import hashlib
import os
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evenload.pipeline.job.remote.remote_folder import is_worth_another_try
from evenload.pipeline.stages.server_pace import pause_s
from evenload.pipeline.store.upload_record import UploadRecord

__all__ = ["FileSender", "SendLimits", "Store"]

_MOST_FAILED = 3  # in a row; then the store is taken to be down
_REST_S = 300.0
_LOOK_S = 0.1


class Store(Protocol):
    """A place that files are put to."""

    @property
    def n_at_once(self) -> int: ...
    def put(self, source: Path, relative: str) -> None: ...
    def sizes(self) -> dict[str, int] | None: ...
    def error(self, fault: BaseException) -> str: ...


@dataclass(frozen=True, slots=True)
class SendLimits:
    """The patience of a sender. ``timeout_s``: for one try of one file; ``retries``: further tries."""

    timeout_s: float = 900.0
    retries: int = 4


class FileSender:
    """A sender of files to a store; used by several threads, each file by one of them at a time.

    tell   is called with a sentence when the store is taken to be down
    clock  seconds
    why    what the store said last, in words; "" if it took everything
    n_new  files that were put
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        record: UploadRecord,
        limits: SendLimits,
        *,
        tell: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.tell, self.why, self.n_new = tell, "", 0
        self._store, self._folder, self._record, self._limits = store, folder, record, limits
        self._clock, self._lock, self._is_over = clock, threading.Lock(), threading.Event()
        self._n_failed = 0
        self._rests_until = float("-inf")
        self._hanging: set[str] = set()

    def is_there(self, relative: str) -> bool:
        """Return whether the store has this file as it is now; also if the file is gone."""
        try:
            return self._record.has(relative, (self._folder / relative).stat())
        except OSError:
            return True

    def send(self, relative: str) -> None:
        """Put a file, unless it is there, or the store is down; what went wrong is in ``why``."""
        source = self._folder / relative
        with contextlib.suppress(OSError):  # it was taken away meanwhile
            before = source.stat()
            if self._record.has(relative, before) or self._is_resting() or relative in self._hanging:
                return
            with source.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if not self._record.has_content(relative, sha256):
                if not self._put(source, relative):
                    return
                with self._lock:
                    self.n_new += 1
            if _facts(source.stat()) == _facts(before):
                self._record.add(relative, before, sha256)

    def send_text(self, text: str, relative: str) -> bool:
        """Put a file with this content, which is not in the run folder; returns whether it is there."""
        content = text.encode("utf-8", "surrogateescape")
        sha256 = hashlib.sha256(content).hexdigest()
        if self._record.has_content(relative, sha256):
            return True
        with tempfile.NamedTemporaryFile(prefix="evenload-upload-") as file:
            file.write(content)
            file.flush()
            if not self._put(Path(file.name), relative):
                return False
            self._record.add(relative, os.fstat(file.fileno()), sha256)
            return True

    def try_again(self) -> None:
        """Take the store to be there again."""
        with self._lock:
            self._n_failed, self._rests_until = 0, float("-inf")

    def close(self) -> None:
        """Put nothing more; who is in a pause returns at once."""
        self._is_over.set()

    def _is_resting(self) -> bool:
        return self._is_over.is_set() or self._clock() < self._rests_until

    def _put(self, source: Path, relative: str) -> bool:
        self._record.forget(relative)
        n_tries = 0
        while (fault := self._attempt(source, relative)) is not None:
            n_tries += 1
            is_last = n_tries > self._limits.retries or relative in self._hanging
            if is_last or not is_worth_another_try(fault):
                break
            if self._is_over.wait(pause_s(n_tries - 1, None, random.random())):
                break
        if fault is None:
            with self._lock:
                self._n_failed = 0
        elif not self._is_over.is_set():
            self._note(fault)
        return fault is None

    def _attempt(self, source: Path, relative: str) -> BaseException | None:
        """Try once; returns what was raised. One that hangs is left behind, and its file alone."""
        found: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def put() -> None:
            try:
                self._store.put(source, relative)
            except BaseException as error:
                found.put(error)
            else:
                found.put(None)

        end_s = self._clock() + self._limits.timeout_s
        threading.Thread(target=put, daemon=True, name="evenload-put").start()
        while not self._is_over.is_set() and self._clock() < end_s:
            with contextlib.suppress(queue.Empty):
                return found.get(timeout=_LOOK_S)
        self._hanging.add(relative)
        return TimeoutError(f"a file took longer than {self._limits.timeout_s:g} s")

    def _note(self, fault: BaseException) -> None:
        """A file failed for good; after some in a row the store is left alone for a while."""
        with self._lock:
            self.why = self._store.error(fault)
            self._n_failed += 1
            is_down = self._n_failed == _MOST_FAILED
            if is_down:
                self._rests_until = self._clock() + _REST_S
                self._n_failed = 0
        if is_down:
            self.tell(self.why)


def _facts(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
