"""What devices show of one another's speed by items that both had: done by both, or given up by one."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

MOST_KEPT, MOST_PAIRS = 1024, 256


class _Try(NamedTuple):
    """One device's time with some items; it did them if ``is_done``, else it gave them up at ``stop_s``."""

    device: str
    start_s: float
    stop_s: float
    is_done: bool


class SharedItems:
    """Items that several devices had, in whatever order they come: ``add`` each chunk, then ``pairs``.

    Of the last thousand chunks, those with the same items are compared.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[Hashable, list[_Try]] = OrderedDict()
        self._pairs: list[tuple[_Try, _Try]] = []

    def add(self, device: str, items: Hashable, start_s: float, stop_s: float, *, is_done: bool) -> None:
        """Count a chunk: of one that is done, ``stop_s - start_s`` are the seconds inside the task."""
        new = _Try(device, start_s, stop_s, is_done)
        others = self._tries.setdefault(items, [])
        for one in others:
            both = ((one, new), (new, one)) if one.device != device and len(self._pairs) < MOST_PAIRS else ()
            self._pairs += [(slow, fast) for slow, fast in both if fast.is_done]
        others.append(new)
        if len(self._tries) > MOST_KEPT:
            self._tries.popitem(last=False)

    def pairs(self, busy_until: Callable[[str, float], float]) -> list[tuple[str, str, float, float]]:
        """Return ``(slow, fast, seconds of slow, seconds of fast)``: the first took at least as long.

        busy_until  when a device was done with what it had before, at a time; only then it began
        """
        found = []
        for slow, fast in self._pairs:
            start_s = (
                slow.start_s if slow.is_done else max(slow.start_s, busy_until(slow.device, slow.stop_s))
            )
            if slow.stop_s > start_s and fast.stop_s > fast.start_s:
                found.append((slow.device, fast.device, slow.stop_s - start_s, fast.stop_s - fast.start_s))
        return found
