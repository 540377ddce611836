"""The files of a run folder on their way to a store, while the run goes on and after it.

uploads.offer("outputs/edit/r7.png")     returns at once; the store is never waited for
uploads.finish()                         puts what is missing, and says what the store has then

What is offered is a hint: where the store is slow or down it is dropped, and found again in the end, as all
that counts is on disk.
"""

import contextlib
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evenload.pipeline.store.file_sender import FileSender, SendLimits, Store
from evenload.pipeline.store.upload_record import Destination, UploadRecord

__all__ = ["UploadOutcome", "Uploads"]

DIGESTS = "SHA256SUMS"
RECORDS = (
    *("config.yaml", "plan.json", "events.jsonl"),
    *("results.jsonl", "summary.json", "report.html", "trace.json"),
)
_MOST_WAITING = 10_000  # files that a thread knows of
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """The outcome of copying a run: a store has ``n_files`` of it, ``n_new`` of them since this session.

    ``n_left`` are missing; ``why``: what the store said last of one that failed.
    """

    to: str
    n_files: int
    n_new: int
    n_left: int
    why: str = ""


class Uploads:
    """The threads that put a run folder's files into a store. A context: leaving it ends them."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        to: Destination,
        limits: SendLimits,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Begin or go on with the record in ``folder``. Raises ConfigError, OSError as ``UploadRecord``."""
        self._store, self._folder, self._to = store, folder, to
        self._record = UploadRecord(folder, to)
        self.sender = FileSender(store, folder, self._record, limits, clock=clock)
        self._todo = [queue.Queue[str | None](_MOST_WAITING) for _ in range(max(1, store.n_at_once))]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._n_handled = 0

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def offer(self, relative: str) -> None:
        """Have a file copied, if there is room to remember it and its stage is asked for."""
        if self._is_wanted(relative) and not self._is_over:
            self._begin()
            with contextlib.suppress(queue.Full):
                self._queue_of(relative).put_nowait(relative)

    def finish(self, watch: Callable[[int, int], None] = lambda n_left, n_files: None) -> UploadOutcome:
        """Put what is missing, and return what the store has then.

        watch  is called now and then with how many files are left, of how many; may raise to end it
        """
        self.sender.try_again()
        files = list(self._files())
        listed = self._store.sizes()
        if listed is not None:
            self._record.believe(listed)
        missing = [one for one in files if not self.sender.is_there(one)]
        self._n_handled = 0
        self._begin()
        for relative in missing:
            self._hand_over(self._queue_of(relative), relative)
        for todo in self._todo:
            self._hand_over(todo, None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                watch(max(0, len(missing) - self._n_handled), len(missing))
        self._threads.clear()
        outcome = self._outcome(files)
        if outcome.n_left:
            return outcome
        sums = (f"{digest}  {path}\n" for path, digest in self._record.digests(files).items())
        if self.sender.send_text("".join(sums), DIGESTS):
            return outcome
        return UploadOutcome(self._to.url, outcome.n_files, outcome.n_new, 1, self.sender.why)

    def outcome(self) -> UploadOutcome:
        """Return what the store has by now."""
        return self._outcome(list(self._files()))

    def close(self) -> None:
        """End the threads. What is being put is not waited for: it is there whole, or not at all."""
        self._is_over = True
        self.sender.close()
        for todo in self._todo:
            with contextlib.suppress(queue.Full):  # then it sees soon that the sender is closed
                todo.put_nowait(None)
        for thread in self._threads:
            thread.join()
        self._record.close()

    def _outcome(self, files: list[str]) -> UploadOutcome:
        n_there = sum(map(self.sender.is_there, files))
        n_left = len(files) - n_there
        why = self.sender.why if n_left else ""
        return UploadOutcome(self._to.url, n_there, self.sender.n_new, n_left, why)

    def _begin(self) -> None:
        with self._lock:
            if self._threads:
                return
            self._threads = [
                threading.Thread(target=self._work, args=(todo,), name="evenload-upload", daemon=True)
                for todo in self._todo
            ]
            for thread in self._threads:
                thread.start()

    def _work(self, todo: "queue.Queue[str | None]") -> None:
        while (relative := todo.get()) is not None:
            if self._is_over:
                return
            self.sender.send(relative)
            with self._lock:
                self._n_handled += 1

    def _queue_of(self, relative: str) -> "queue.Queue[str | None]":
        """The queue of the one thread that puts this file, so that its newest content is put last."""
        return self._todo[zlib.crc32(relative.encode("utf-8", "surrogatepass")) % len(self._todo)]

    def _hand_over(self, todo: "queue.Queue[str | None]", relative: str | None) -> None:
        while True:
            with contextlib.suppress(queue.Full):
                return todo.put(relative, timeout=_LOOK_S)  # in pieces, so that Ctrl-C is heard

    def _is_wanted(self, relative: str) -> bool:
        stages = self._to.stages
        if not relative.startswith("outputs/"):
            return relative in RECORDS
        return stages is None or relative.split("/")[1] in stages

    def _files(self) -> Iterator[str]:
        """Yield what the store should have: records and the stages' files. No link is followed."""
        for name in RECORDS:
            if (self._folder / name).is_file() and not (self._folder / name).is_symlink():
                yield name
        for at, folders, names in os.walk(self._folder / "outputs"):
            folders.sort()
            for name in sorted(names):
                path = Path(at, name)
                relative = path.relative_to(self._folder).as_posix()
                if not name.endswith(".tmp") and self._is_wanted(relative) and not path.is_symlink():
                    yield relative
