"""The items of a stage that are done, however often they were dealt: one byte per item."""

__all__ = ["ItemSet"]

_DONE, _FAILED = 1, 2
# Above this many items the bytes are no longer kept and chunks are simply added up.
_LARGEST = 1 << 25


class ItemSet:
    """The items of a stage that are done or failed, each once: a duplicate or a second try is not counted
    twice, a failure is final."""

    def __init__(self) -> None:
        self._state = bytearray()
        self._n_beyond = 0
        self.n_failed = 0
        self._n_done = 0

    @property
    def n_done(self) -> int:
        return self._n_done + self._n_beyond

    def add(self, index: int, n_items: int) -> int:
        """Items ``index`` .. ``index + n_items - 1`` came back; returns how many had not before."""
        if index < 0 or n_items <= 0:
            return 0
        stop = index + n_items
        if stop > _LARGEST:
            self._n_beyond += n_items
            return n_items
        self._grow(stop)
        n_new = self._state.count(0, index, stop)
        if n_new == n_items:
            self._state[index:stop] = b"\1" * n_items
        elif n_new:
            self._state[index:stop] = self._state[index:stop].replace(b"\0", b"\1")
        self._n_done += n_new
        return n_new

    def finish(self, index: int) -> None:
        """The item is through; its span may have been counted before."""
        self.add(index, 1)

    def fail(self, index: int) -> None:
        """The item failed for good."""
        if not 0 <= index < _LARGEST:
            self.n_failed += 1
            return
        self._grow(index + 1)
        if self._state[index] != _FAILED:
            self._n_done -= self._state[index] == _DONE
            self.n_failed += 1
            self._state[index] = _FAILED

    def _grow(self, size: int) -> None:
        if size > len(self._state):
            self._state.extend(bytes(max(size - len(self._state), min(len(self._state), 1 << 20))))
