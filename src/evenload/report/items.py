"""The items of a stage that are done, however often they were dealt: one byte per item."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from evenload.balance.run_claim import runs_of
from evenload.events import Event, Restored, RunStarted, Span, StageFinished, StageStarted

_DONE, _FAILED = 1, 2
_NEW = re.compile(rb"\0+")
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

    def missing(self, index: int, n_items: int) -> list[int]:
        """The items that ``add`` would count: ``[first, how many, first, how many, ...]``."""
        stop = index + n_items
        if stop > _LARGEST:
            return [index, n_items]
        self._grow(stop)
        runs = [one.span() for one in _NEW.finditer(self._state, index, stop)]
        return [number for first, end in runs for number in (first, end - first)]

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


@dataclass(slots=True)
class _Pass:
    """One way through a stage's items; ``is_mixed``: of two runs at once, so that nobody can tell."""

    items: ItemSet = field(default_factory=ItemSet)
    is_open: bool = False
    is_cut: bool = False
    is_mixed: bool = False


class NeededItems:
    """The work of a run that any plan has to do: ``add`` every event; of each item, the first completion.

    A run that was cut off and goes on does the same items; a stage that begins again after its end does new
    ones.
    """

    def __init__(self) -> None:
        self._passes: dict[str, _Pass] = {}
        self._first: dict[str, int] = {}  # what the items of the pass are counted from, by ``runs``
        self._end: dict[str, int] = {}

    def add(self, event: Event) -> None:
        """Take note of stages that begin and end, and of items that were there; a span goes to ``take``."""
        if isinstance(event, StageStarted):
            self._begin(event.stage)
        elif isinstance(event, StageFinished):
            self._pass(event.stage).is_open = False
        elif isinstance(event, Restored):
            self._runs(event.stage, event.index, event.n_items, event.items)
        elif isinstance(event, RunStarted):
            for one in self._passes.values():  # a run that was killed has not ended its stages
                one.is_cut, one.is_open = one.is_cut or one.is_open, False

    def take(self, span: Span) -> int:
        """Return how many items of a chunk had not come back before."""
        return sum(self.runs(span)[1::2])

    def runs(self, span: Span) -> list[int]:
        """Take a chunk; return its items that had not come back before, ``[first, how many, ...]``.

        Items of a later pass are counted on from the ones before, so that each has a number of its own.
        """
        if span.n_items <= 0 or span.status in ("superseded", "lost"):
            return []
        return self._runs(span.stage, span.index, span.n_items, span.items)

    def _pass(self, stage: str) -> _Pass:
        return self._passes.setdefault(stage, _Pass())

    def _begin(self, stage: str) -> None:
        before = self._passes.get(stage)
        if before is not None and before.is_cut:
            before.is_cut, before.is_open = False, True
            return
        is_mixed = before is not None and before.is_open
        self._passes[stage] = _Pass(is_open=True, is_mixed=is_mixed)
        self._first[stage] = self._end.get(stage, 0)

    def _runs(self, stage: str, index: int, n_items: int, items: Iterable[int] | None) -> list[int]:
        one, end = self._pass(stage), self._end.get(stage, 0)
        n_items = max(0, n_items)
        if one.is_mixed or (items is None and index < 0):
            self._end[stage] = end + n_items
            return [end, n_items]
        given = [index, n_items] if items is None else runs_of(items)
        found: list[int] = []
        add = self._first.get(stage, 0)
        for first, n in zip(given[::2], given[1::2], strict=True):
            if first >= 0 and n > 0:
                _append(found, one.items.missing(first, n), add)
                one.items.add(first, n)
        ends = [first + n for first, n in zip(found[::2], found[1::2], strict=True)]
        self._end[stage] = max([end, *ends])
        return found


def items_key(span: Span) -> tuple[int, ...]:
    """Return what is the same of two chunks with the same items."""
    return (span.index, span.n_items) if span.items is None else tuple(runs_of(span.items))


def _append(runs: list[int], more: list[int], add: int) -> None:
    """Append runs that begin ``add`` later; one that goes on where the last ended makes that one longer."""
    for first, n in zip(more[::2], more[1::2], strict=True):
        if runs and first + add == runs[-2] + runs[-1]:
            runs[-1] += n
        else:
            runs += [first + add, n]
