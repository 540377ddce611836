"""Says what the items of a run are, for a dealer that learns their sizes from it."""

import queue
import threading
from collections.abc import Sequence
from typing import Any

from evenload.balance.dealing.learned_sizes import MOST_ITEMS, LearnedSizes
from evenload.balance.sizes.size_model import Features
from evenload.executor.decide.delivery import Sink
from evenload.executor.decide.source import Source
from evenload.executor.run.item_features import features_of, names_a_file

Indices = range | tuple[int, ...]


class ItemDescriber:
    """A reader of the features of items that are sent, and of those that wait once they are wanted.

    Where items name files, that is done in a thread: a disk that hangs costs the order and no more.

    batch             items that are dealt as one
    look_ahead_bytes  of results that may wait: if a part of them does, items are dealt in input order
    """

    def __init__(
        self,
        sizes: LearnedSizes,
        source: Source,
        sink: Sink,
        batch: int,
        look_ahead_bytes: int,
        *,
        may_thread: bool,
    ):
        self._sizes, self._source, self._sink, self._batch = sizes, source, sink, batch
        self._look_ahead_bytes = look_ahead_bytes
        self._may_thread = may_thread
        self._tasks: queue.SimpleQueue[list[tuple[int, list[Any]]] | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[dict[int, Features]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_reading = False  # a block is being described by the thread
        self._keeps_order = False

    def sent(self, items: Indices, values: Sequence[Any]) -> None:
        """Note items that are sent now."""
        if len(items) <= MOST_ITEMS * self._batch:
            units: dict[int, list[Any]] = {}
            for item, value in zip(items, values, strict=True):
                units.setdefault(item // self._batch, []).append(value)
            self._describe(list(units.items()))

    def refresh(self) -> None:
        """Tell what has been read, and describe what is wanted next."""
        self._guard_memory()
        self.take_ready()
        if self._is_reading:
            return
        units = self._sizes.wanted()
        if units:
            self._is_reading = self._describe([(unit, self._items_of(unit)) for unit in units])

    def take_ready(self) -> None:
        """Tell what the thread has read."""
        while not self._ready.empty():
            self._sizes.describe(self._ready.get())
            self._is_reading = False

    def answered(self, items: Indices, *, has_failures: bool) -> None:
        """Note items that came back. Nothing is learned from a chunk with failures: they may end at once."""
        self.take_ready()
        if has_failures:
            self._sizes.forget({item // self._batch for item in items})

    def close(self) -> None:
        if self._thread is not None:
            self._tasks.put(None)

    def _items_of(self, unit: int) -> list[Any]:
        stop = min((unit + 1) * self._batch, self._source.n_ready)
        return self._source.take(range(unit * self._batch, stop))

    def _describe(self, units: list[tuple[int, list[Any]]]) -> bool:
        """Have these described; returns whether that is left to the thread."""
        if not any(names_a_file(values[0]) for _, values in units[:4] if values):
            self._sizes.describe(self._features(units, reads_files=False))
            return False
        if not self._may_thread:
            self._sizes.describe(self._features(units, reads_files=True))
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="evenload-features", daemon=True)
            self._thread.start()
        self._tasks.put(units)
        return True

    def _features(self, units: list[tuple[int, list[Any]]], *, reads_files: bool) -> dict[int, Features]:
        described: dict[int, Features] = {}
        for unit, values in units:
            start = unit * self._batch
            each = [
                features_of(value, start + at, reads_files=reads_files) for at, value in enumerate(values)
            ]
            described[unit] = each[0] if len(each) == 1 else _sum(each)
        return described

    def _serve(self) -> None:
        while (units := self._tasks.get()) is not None:
            self._ready.put(self._features(units, reads_files=True))

    def _guard_memory(self) -> None:
        """Results that wait for their turn take memory: those of the first items let them go."""
        limit = self._look_ahead_bytes // (8 if self._keeps_order else 4)
        is_full = self._sink.n_bytes >= limit
        if is_full != self._keeps_order:
            self._keeps_order = is_full
            self._sizes.keep_order(is_full)


def _sum(each: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for features in each:
        for name, value in features.items():
            total[name] = total.get(name, 0.0) + value
    return total
