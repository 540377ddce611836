"""Results on their way to the ledger while the run goes on: one wait for the disk serves all that came since.

commits.put(results)        returns at once
commits.taken()             those that the disk has by now, in the order in which they were put
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenload.pipeline.dispatch.item_flow import StageTask, Strand
from evenload.pipeline.store.ledger import Ledger, LedgerEntry


class StageResult(NamedTuple):
    """A result of one stage for one item, on its way to disk."""

    task: StageTask
    stage: str
    strand: Strand
    kept: LedgerEntry


class GroupCommit:
    """A thread that writes results to disk together. ``pending``: results that are on their way, in the
    order in which they were put.

    ``wake`` is called from a thread when something was committed; ``taken`` raises what the disk says.
    ``share`` is called there with each result that the disk has.
    """

    def __init__(
        self,
        ledger: Ledger,
        wake: Callable[[], None],
        share: Callable[[LedgerEntry], None] | None = None,
    ):
        self._ledger, self._wake, self._share = ledger, wake, share
        self._todo: queue.SimpleQueue[Sequence[StageResult] | None] = queue.SimpleQueue()
        self._there: queue.SimpleQueue[Sequence[StageResult]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None
        self.pending: deque[StageResult] = deque()

    def put(self, results: Sequence[StageResult]) -> None:
        if not results:
            return
        self.pending += results
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="evenload-commit", daemon=True)
            self._thread.start()
        self._todo.put(results)

    def taken(self) -> list[StageResult]:
        """What is committed and was not taken yet."""
        results: list[StageResult] = []
        while not self._there.empty():
            results += self._there.get()
        for _ in results:
            self.pending.popleft()
        if self._fault is not None and not results:
            raise self._fault
        return results

    def close(self) -> None:
        """Returns when all that was put is committed, or cannot be."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        is_last = False
        while not is_last:
            together = [self._todo.get()]
            while not self._todo.empty():
                together.append(self._todo.get())
            is_last = together[-1] is None
            results = [result for some in together for result in some or ()]
            if self._fault is None and results:
                self._commit(results)

    def _commit(self, results: Sequence[StageResult]) -> None:
        try:
            self._ledger.keep((result.stage, result.strand, result.kept) for result in results)
            self._there.put(results)
        except Exception as error:
            self._fault = error
        self._wake()
        if self._share is not None and self._fault is None:
            for result in results:
                self._share(result.kept)
