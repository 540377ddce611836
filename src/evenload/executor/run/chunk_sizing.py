"""How many items travel together and how far ahead they are read, from what a run has measured of its own."""

import math

from evenload.executor.decide.source import Source, rough_bytes

TINY_S = 0.0005  # of work at most is sent together
MOST_TOGETHER = 32
WORTH_ORDERING_S = 0.001  # to look at an item takes microseconds
FORGET = 0.9
LARGE_ITEM_BYTES = 64 * 1024
CHUNK_BYTES = 16 * 1024 * 1024


class ChunkSizing:
    """The measured items of one run: their bytes, their seconds, and how many went at once.

    n_per_call  items in one call of the function
    n_dealt     items that were sent, copies left out
    longest_s   the most seconds that an item took, as a mean over its chunk
    """

    def __init__(self, n_per_call: int):
        self.n_per_call = n_per_call
        self.n_dealt = 0
        self.longest_s = 0.0
        self._largest = 1
        self._item_s: dict[str, float] = {}
        self._n_sent_bytes = self._n_answered = self._n_result_bytes = 0

    def dealt(self, n_items: int, *, is_copy: bool = False) -> None:
        """A chunk is about to be sent; ``is_copy``: of items that another device has."""
        self._largest = max(self._largest, n_items)
        if not is_copy:
            self.n_dealt += n_items

    def restored(self, n_items: int) -> None:
        """Count items whose results are there from an earlier run."""
        self.n_dealt += n_items

    def sent(self, n_bytes: int) -> None:
        self._n_sent_bytes += n_bytes

    def answered(self, device: str, n_items: int, busy_s: float, n_bytes: int) -> None:
        """A chunk came back from ``device``."""
        self._n_answered += n_items
        self._n_result_bytes += n_bytes
        if n_items:  # among items of mixed length the long ones count: nothing should wait behind them
            self._item_s[device] = max(busy_s / n_items, FORGET * self._item_s.get(device, 0.0))

    def counted(self, n_items: int, busy_s: float) -> None:
        """Results of a chunk were the first of theirs."""
        self.longest_s = max(self.longest_s, busy_s / n_items)

    @property
    def is_worth_ordering(self) -> bool:
        """Whether items take so long, as far as is known, that it pays to look at what they are."""
        return max(self._item_s.values(), default=math.inf) >= WORTH_ORDERING_S

    def n_together(self, device: str, n_units: int) -> int:
        """How many chunks of ``n_units`` calls should go to ``device`` at once.

        More than 1 if they are so short that messages would cost more than they do.
        """
        chunk_s = self._item_s.get(device, math.inf) * self.n_per_call * n_units
        return max(1, min(int(TINY_S / max(chunk_s, 1e-6)), MOST_TOGETHER))

    def most_items(self, source: Source) -> int | None:
        """Items per chunk that are large: more would only fill memory that is not warm yet."""
        if self._n_sent_bytes:
            item_bytes = self._n_sent_bytes / self.n_dealt + self._n_result_bytes / max(1, self._n_answered)
        elif source.n_ready and not (self.n_dealt or source.is_apart):
            item_bytes = 2 * rough_bytes(source.take(range(1))[0])
        else:
            return None
        return max(1, int(CHUNK_BYTES / item_bytes)) if item_bytes > LARGE_ITEM_BYTES else None

    def demand(self, n_devices: int, most_bytes: int) -> int:
        """How far to read: an iterator's items shall be there when a device asks, and not long before."""
        n_ahead = 2 * n_devices * max(self._largest, self.n_per_call)
        if self._n_sent_bytes:
            n_affordable = int(most_bytes * self.n_dealt / self._n_sent_bytes)
            n_ahead = min(n_ahead, max(n_affordable, self.n_per_call))
        return self.n_dealt + n_ahead
