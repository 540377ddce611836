"""The states of an item and what may change them: one table, for the scheduler and for whoever reads events.

waiting ──► running ──► done | failed | skipped
               │
suspect ◄──────┘ something went wrong: it is tried again, one by one
   └──────► on trial ──► done | failed | skipped
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

Indices = range | tuple[int, ...]

STATES: Mapping[str, str] = MappingProxyType(
    {
        "waiting": "no worker has it",
        "running": "a worker has it, or several",
        "suspect": "it is to be tried again, one by one, and no worker has it",
        "on trial": "a worker has it, or several, and it went wrong before",
        "done": "its result is there",
        "failed": "it was given up",
        "skipped": "nobody wants it any more",
    }
)

TRANSITIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "dealt": {"waiting": "running", "running": "running", "suspect": "on trial", "on trial": "on trial"},
        "answered": {"running": "done", "on trial": "done"},
        "went wrong": {"running": "on trial", "on trial": "on trial"},
        "returned": {"running": "waiting", "on trial": "suspect"},
        "given up": {"waiting": "failed", "running": "failed", "suspect": "failed", "on trial": "failed"},
        "withdrawn": {"running": "skipped", "on trial": "skipped"},
        "restored": {"waiting": "done"},
    }
)
"""Event -> state before it -> state after it. What is not here cannot happen.

dealt       a worker gets it; a second one too, as a copy, or because the first gives no sign
answered    a worker has sent its result, or the error that it ended with
went wrong  it raised, had too little memory, could not be read, or may have ended its worker
returned    the last worker that had it has ended, or came back without its result
given up    it ends with an error that says so
withdrawn   it was to be sent, and nobody wanted it any more
restored    its result is there from an earlier run
"""

IS_OVER = frozenset(("done", "failed", "skipped"))

_NAMES = tuple(STATES)  # a state is kept as its place here; the last ones are final
_CODES = {name: code for code, name in enumerate(_NAMES)}
_FIRST_OVER = _CODES["done"]
_SUSPECT = ("suspect", "on trial")
_ENDS = {event for event, after in TRANSITIONS.items() if IS_OVER.issuperset(after.values())}
_USUAL = {  # event -> first state that it may happen to, the state after it, whether that is final
    event: (*(bytes((_CODES[name],)) for name in next(iter(after.items()))), event in _ENDS)
    for event, after in TRANSITIONS.items()
}
_SHORTEST_CUT = 65_536  # items that get over, before the first bytes are cut off


def next_state(item: object, state: str, event: str) -> str:
    """Return the state of ``item`` after ``event``. Raises AssertionError if the table has none."""
    after = TRANSITIONS[event].get(state)
    if after is None:
        raise AssertionError(f"item {item} is {state}: '{event}' cannot happen to it (a fault of evenload)")
    return after


class ItemStates:
    """The state of each item of a run, by number: a byte for each, from the first that is not over.

    n           items that there are
    n_over      of these, items that are over
    n_suspects  items that are tried again, one by one
    """

    def __init__(self) -> None:
        self.n = self.n_over = 0
        self._states = bytearray()
        self._first = 0  # the item of the first byte; all before it are over
        self._next_cut = _SHORTEST_CUT
        self.n_suspects = 0

    def __getitem__(self, item: int) -> str:
        """The state of ``item``; of one that was over long ago, "done" whatever it was."""
        return "done" if item < self._first else _NAMES[self._states[item - self._first]]

    def add(self, n: int) -> None:
        """Add ``n`` items, which wait."""
        if self.n_over >= self._next_cut:
            n_gone = len(self._states) - len(self._states.lstrip(bytes(_CODES[name] for name in IS_OVER)))
            del self._states[:n_gone]
            self._first += n_gone
            self._next_cut = self.n_over + max(_SHORTEST_CUT, len(self._states))
        self._states += bytes(n)
        self.n += n

    def move(self, items: Indices | list[int], event: str) -> None:
        """Let ``event`` happen to ``items``. Raises AssertionError if the table does not allow it to one."""
        if isinstance(items, range) and self.moved_alike(items, event):
            return
        before = [self[item] for item in items]
        after = [next_state(item, state, event) for item, state in zip(items, before, strict=True)]
        for item, state in zip(items, after, strict=True):
            self._states[item - self._first] = _CODES[state]
        self.n_over += len(after) * (event in _ENDS)
        self.n_suspects += sum(map(after.count, _SUSPECT)) - sum(map(before.count, _SUSPECT))

    def moved_alike(self, items: range, event: str) -> bool:
        """Let ``event`` happen to consecutive items that nothing else has happened to; False if it has."""
        before, after, ends = _USUAL[event]
        start, n, states = items.start - self._first, len(items), self._states
        if start < 0 or not states.startswith(before * n, start):
            return False
        if n == 1:
            states[start] = after[0]
        else:
            states[start : start + n] = after * n
        if ends:
            self.n_over += n
        elif event == "went wrong":
            self.n_suspects += n
        return True

    def is_over(self, item: int) -> bool:
        return item < self._first or self._states[item - self._first] >= _FIRST_OVER

    def open(self, items: Iterable[int]) -> list[int]:
        """Return those of ``items`` that are not over."""
        return [item for item in items if not self.is_over(item)]

    def suspects(self, items: Iterable[int]) -> list[int]:
        """Return those of ``items`` that are tried again, one by one."""
        return [item for item in items if self[item] in _SUSPECT] if self.n_suspects else []
