"""Sources of a run's items: a list, or an iterator that is read as needed."""

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from evenload._arguments import iterated
from evenload.errors import ConfigError, quoted

Cost = Callable[[Any], float] | Sequence[float] | None
Indices = range | tuple[int, ...]

MOST_COST = 1e100  # sums of more could overflow


class Source:
    """The items of a run, by number.

    n_ready    items that have been read
    total      how many there will be, None if not known
    is_ended   all are read, or reading ended with ``error``
    is_apart   each item is claimed on its own
    """

    n_ready = 0
    total: int | None = None
    is_ended = False
    error: BaseException | None = None
    is_apart = False

    def want(self, n: int) -> None:
        """Allow reading up to ``n`` items."""

    def call_when_more(self) -> None:
        """Ask for a notice of new items or the end. Look again afterwards: they may have come."""

    def claim(self, items: Indices) -> bool:
        """Whether these items are still wanted."""
        return True

    def take(self, items: Indices) -> list[Any]:
        """Return the items with these numbers; each may be taken again until it is released."""
        raise NotImplementedError

    def release(self, items: Indices) -> None:
        """Forget these items."""

    def costs(self, start: int, n: int) -> Sequence[float] | None:
        """Return the size hints of items ``start`` .. ``start + n - 1``; None without hints."""
        return None

    def cost_of(self, items: Indices) -> float | None:
        """Return the sum of the size hints of ``items``, none of which is released; None without hints."""
        return None

    def close(self) -> None:
        """Read no further."""


class BufferedSource(Source):
    """A source whose items lie in ``_buffer``, the first of them with number ``_first``.

    Their size hints are in ``_costs``; None: there are none.
    """

    _buffer: Any  # a list, tuple or range
    _costs: list[float] | None = None
    _first = 0

    def take(self, items: Indices) -> list[Any]:
        if isinstance(items, range):
            return list(self._buffer[items.start - self._first : items.stop - self._first])
        return [self._buffer[index - self._first] for index in items]

    def costs(self, start: int, n: int) -> Sequence[float] | None:
        return None if self._costs is None else self._costs[start - self._first : start - self._first + n]

    def cost_of(self, items: Indices) -> float | None:
        return None if self._costs is None else sum(self._costs[index - self._first] for index in items)


class ListSource(BufferedSource):
    """A source over a list, tuple or range."""

    is_ended = True

    def __init__(self, items: list | tuple | range, cost: Cost = None):
        self._buffer = items if isinstance(items, range) else tuple(items)
        self.n_ready = self.total = len(self._buffer)
        if cost is not None:
            hints = map(cost, self._buffer) if callable(cost) else _iterate(cost)
            few = itertools.islice(hints, len(self._buffer) + 1)  # they may have no end
            self._costs = [_checked(hint, index) for index, hint in enumerate(few)]
        if self._costs is not None and len(self._costs) != self.total:
            n_hints = _n_hints(cost, len(self._costs))
            raise ConfigError(
                f"{n_hints} size hints for {self.total} items",
                hint="give one cost per item, or a function",
            )


class IteratorSource(BufferedSource):
    """A source over any iterable, read no further than wanted."""

    _catches: type[BaseException] = Exception  # others, such as Ctrl-C, are raised to the caller

    def __init__(self, items: Iterable[Any], cost: Cost = None):
        self._iterator = iterated("items", items)
        self.total = known_length(items)
        if cost is None or callable(cost):
            self._cost = cost
        else:
            self._cost = _from_list(_iterate(cost))
        self._costs = None if cost is None else []
        self._buffer: list[Any] = []
        self._n_released = 0

    def want(self, n: int) -> None:
        while self.n_ready < n and not self.is_ended:
            self._read_one()

    def _read_one(self) -> None:
        try:
            item = next(self._iterator, GONE)
            cost = 0.0
            if self._cost is not None and item is not GONE:
                cost = _checked(self._cost(item), self.n_ready)
        except self._catches as error:
            self.error = error
            self.is_ended = True
            return
        if item is GONE:
            self.is_ended = True
        else:
            self._keep(item, cost)

    def _keep(self, item: Any, cost: float) -> None:
        self._buffer.append(item)
        if self._costs is not None:
            self._costs.append(cost)
        self.n_ready += 1

    def release(self, items: Indices) -> None:
        first = self._first
        if isinstance(items, range):
            self._buffer[items.start - first : items.stop - first] = [GONE] * len(items)
        else:
            for index in items:
                self._buffer[index - first] = GONE
        self._n_released += len(items)
        if self._n_released >= 1024 and self._n_released > len(self._buffer) // 2:
            self._shrink()

    def _shrink(self) -> None:
        """Cut the released items off the front of the buffer."""
        n = 0
        while n < len(self._buffer) and self._buffer[n] is GONE:
            n += 1
        del self._buffer[:n]
        if self._costs is not None:
            del self._costs[:n]
        self._first += n
        self._n_released -= n


class ThreadedSource(IteratorSource):
    """A source that reads an iterable in a thread of its own, as it may be slow or wait for results.

    That thread only appends, and counts an item when all of it is there; the executor's alone takes and cuts.
    So neither waits for the other.

    on_news   called from that thread at new items or the end, once for each ``call_when_more``
    """

    _catches = BaseException  # an exception in the thread would be lost

    def __init__(self, items: Iterable[Any], cost: Cost, on_news: Callable[[], None]):
        super().__init__(items, cost)
        self._on_news = on_news
        self._limit = 0
        self._is_closed = self._is_awaited = False
        self._has_room = threading.Condition()
        self._thread: threading.Thread | None = None

    def want(self, n: int) -> None:
        if n <= self._limit or self.is_ended:
            return
        with self._has_room:
            self._limit = n
            self._has_room.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="evenload-items", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._has_room:
            self._is_closed = True
            self._has_room.notify()

    def call_when_more(self) -> None:
        self._is_awaited = True

    def _serve(self) -> None:
        while not self.is_ended:
            with self._has_room:
                while self.n_ready >= self._limit and not self._is_closed:
                    self._has_room.wait()
                if self._is_closed:
                    return
            self._read_one()
            # Each item is passed on before the next is asked for, which may take long.
            if self._is_awaited:
                self._is_awaited = False
                self._on_news()


GONE: Any = object()
MOST_BYTES = 1 << 60


def rough_bytes(item: Any) -> int:
    """Sum the bytes of the arrays, tensors and bytes that ``item`` is, or holds as a small list or dict."""
    parts = item.values() if type(item) is dict else item if type(item) in (list, tuple) else (item,)
    if len(parts) > 64:
        return 0
    return sum(len(part) if type(part) is bytes else array_bytes(part) for part in parts)


def array_bytes(part: Any) -> int:
    """The bytes of an array or a tensor; 0 for anything else, also for one that does not say or lies."""
    try:
        n_bytes = getattr(part, "nbytes", 0)
    except (Exception, SystemExit):  # a property of anybody's class
        return 0
    return n_bytes if type(n_bytes) is int and 0 <= n_bytes < MOST_BYTES else 0


def known_length(items: Iterable[Any]) -> int | None:
    """How many items there are, if they say so: a data loader over a stream has a length that raises."""
    try:
        return len(items)  # pyrefly: ignore
    except Exception:
        return None


def _n_hints(cost: Any, n_read: int) -> str:
    n_hints = known_length(cost)
    return f"at least {n_read}" if n_hints is None else str(n_hints)


def _checked(hint: Any, index: int) -> float:
    """Return ``hint`` as a number from 0 to MOST_COST. Raises ConfigError if it is none."""
    try:
        size = math.nan if isinstance(hint, str | bytes) else float(hint)
    except (TypeError, ValueError, OverflowError):
        size = math.nan
    if not 0 <= size <= MOST_COST:
        raise ConfigError(
            f"the size hint of item {index} is {quoted(hint)}, not a number from 0 to {MOST_COST:g}",
            hint="give its size in any unit, the same for all items",
        )
    return size


def _iterate(hints: Any) -> Iterator[Any]:
    return iterated("cost, which is no function,", hints)


def _from_list(hints: Iterator[float]) -> Callable[[Any], float]:
    def cost(_: Any) -> float:
        hint = next(hints, None)
        if hint is None:
            raise ConfigError(
                "there are more items than size hints", hint="give one cost per item, or a function"
            )
        return hint

    return cost


def make_source(items: Iterable[Any], cost: Cost | bool, on_news: Callable[[], None] | None) -> Source:
    """Make the source for ``items``; ``on_news`` is None if no thread may run beside the caller.

    Raises ConfigError if ``items`` cannot be iterated or the hints do not fit, and whatever ``cost`` raises.
    """
    if cost is False:
        cost = None
    if cost is True:
        raise ConfigError("cost=True says no size", hint="leave it out to have sizes learned, or give hints")
    if type(items) in (list, tuple, range):
        return ListSource(items, cost)  # pyrefly: ignore
    if on_news is None:
        return IteratorSource(items, cost)
    return ThreadedSource(items, cost, on_news)
