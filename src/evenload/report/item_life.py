"""What became of one item of a run: its events, read as a walk through the table of an item's states.

The table (``TRANSITIONS``) is the scheduler's own. A step that it does not allow is told: events are missing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from evenload.events import (
    Event,
    ItemFailed,
    ItemFinished,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
)
from evenload.executor.decide.item_states import IS_OVER, next_state


@dataclass(frozen=True, slots=True)
class LifeStep:
    """What happened to an item in one stage.

    t        seconds since the run began
    state    of the item after it, as in ``item_states.STATES``
    device   where; "" if on none
    worker   the worker's name there
    text     what happened, in words
    missing  why no step before it allows this one; "" if one does
    """

    t: float
    stage: str
    item: str
    state: str
    device: str
    worker: str
    text: str
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Sight:
    """An event that is about the item. ``by_s``: a time at which the run knew of it, at the latest."""

    t: float
    by_s: float
    event: Span | Restored | ItemFinished | ItemFailed
    is_end: bool = True  # of a span; False: its begin


def life_of(events: Iterable[Event], item: str) -> list[LifeStep]:
    """Return what became of ``item``, in the order in which it happened.

    item  its id; its parts and samples (``id #2``) are told, too. Of a map, whose items have no ids: its
          number from 0
    An empty list: there is no such item, or nothing is known of it yet.
    """
    events = list(events)
    names = _names(events, item)
    exits = {event.worker: event.reason for event in events if isinstance(event, WorkerExited)}
    is_map = not any(isinstance(event, ItemFinished) for event in events)
    steps: list[LifeStep] = []
    for part, is_whole in _runs_in(events):
        sights: dict[tuple[str, int], list[_Sight]] = {}
        for sight in _sights(part):
            for index in _in(sight.event, names):
                sights.setdefault((sight.event.stage, index), []).append(sight)
        for (stage, index), seen in sights.items():
            walk = _Walk(stage, index, names[index], exits, seen, is_map=is_map)
            steps += walk.steps(must_end=is_whole and is_map)
    return sorted(steps, key=lambda step: step.t)


def broken_steps(steps: Iterable[LifeStep]) -> list[LifeStep]:
    """Return the steps that no step before them allows: the log lacks events, or contradicts itself."""
    return [step for step in steps if step.missing]


class _Walk:
    """One item's way through one stage of one run."""

    def __init__(
        self, stage: str, index: int, name: str, exits: dict[str, str], seen: list[_Sight], *, is_map: bool
    ):
        self._index, self._exits, self._is_map = index, exits, is_map
        self._seen = sorted(seen, key=lambda one: (one.t, one.is_end, not isinstance(one.event, Span)))
        self._fails = any(isinstance(one.event, ItemFailed) for one in seen)
        self._step = LifeStep(0.0, stage, name, "waiting", "", "", "")
        self._n_held, self._over_by_s = 0, 0.0

    def steps(self, *, must_end: bool) -> Iterator[LifeStep]:
        """Yield its steps; ``must_end``: its run came to the end of all items."""
        for at, sight in enumerate(self._seen):
            event, before = sight.event, self._step
            happened, text = self._read(sight)
            where = (event.device, event.worker) if isinstance(event, Span) else ("", "")
            if isinstance(event, ItemFailed):
                where = (event.device or "", "")
            state, missing = before.state, ""
            for one in happened:
                try:
                    state = next_state(before.item, state, one)
                except AssertionError:
                    since = (
                        f"between second {before.t:.3f} and {sight.t:.3f}" if at else f"before {sight.t:.3f}"
                    )
                    missing = f"events missing {since}: it was {state}, and '{one}' cannot follow"
                    state = {"dealt": "running", "given up": "failed"}.get(one, "done")
            if state in IS_OVER and before.state not in IS_OVER:
                self._over_by_s = sight.by_s
            if must_end and at == len(self._seen) - 1 and state not in IS_OVER and not missing:
                missing = f"events missing after second {sight.t:.3f}: the run ended, and it was {state}"
            self._step = replace(
                before, t=sight.t, state=state, device=where[0], worker=where[1], text=text, missing=missing
            )
            yield self._step

    def _read(self, sight: _Sight) -> tuple[list[str], str]:
        """Return what an event means by the table, and in words."""
        event, is_over = sight.event, self._step.state in IS_OVER
        if isinstance(event, Restored):
            return ["restored"] * (not self._fails), "restored from the journal"
        if isinstance(event, ItemFinished):
            is_new = self._step.state == "waiting"
            return ["restored" if is_new else "answered"], "its result is kept"
        if isinstance(event, ItemFailed):
            return ["given up"], f"given up: {event.error}: {event.message}"
        if sight.is_end:
            self._n_held -= 1
            happened, text = self._ended(event)
            return [] if is_over else happened, text
        self._n_held += 1
        what = "a copy is given to a worker" if event.duplicate else "given to a worker"
        text = what + (f", with {event.n_items - 1} more" if event.n_items > 1 else "")
        # A copy may go out while the result is on its way.
        return ["dealt"] * (not is_over or sight.t > self._over_by_s), text

    def _ended(self, span: Span) -> tuple[list[str], str]:
        """Return what the end of an attempt that has no result before means, and in words."""
        after = f"after {span.stop_s - span.start_s:.3f} s"
        wrong = ["went wrong"] * (self._index in (span.suspects or ()))
        back = wrong + ["returned"] * (self._n_held == 0)
        if span.status == "lost":
            return back, f"lost {after}: its worker {self._exits.get(span.worker, 'was lost')}"
        if wrong:
            return back, f"in vain {after}: it is tried again"
        if span.status == "ok":  # a pipeline keeps the result next, and says so
            return ["answered"] * self._is_map, f"done {after}"
        if span.status == "superseded":
            return back, f"dropped {after}: another attempt was done sooner"
        if span.n_items == 1:
            return [] if self._fails else back, f"an error {after}"
        return ["answered"] * (not self._fails), f"its chunk came back {after}, with an error of some item"


def _runs_in(events: Iterable[Event]) -> Iterator[tuple[list[Event], bool]]:
    """Yield the events of each run, or map, of a log, and whether it came to the end of its items."""
    part: list[Event] = []
    closed: set[str] = set()
    is_whole = is_named = False
    for event in events:
        is_next_map = isinstance(event, StageStarted) and event.stage in closed and not is_named
        if (isinstance(event, RunStarted) and part) or is_next_map:
            yield part, is_whole
            part, closed, is_whole = [], set(), False
        part.append(event)
        if isinstance(event, RunStarted):
            is_named = True
        elif isinstance(event, StageFinished):
            closed.add(event.stage)
        elif isinstance(event, RunFinished):
            is_whole = event.status in ("done", "failures")
    yield part, is_whole


def _sights(events: list[Event]) -> list[_Sight]:
    """Return what is said of items, with the time of the next event that was written as it happened."""
    by_s, found = float("inf"), list[_Sight]()
    for event in reversed(events):
        if isinstance(event, Span):
            dealt_s = event.start_s if event.dealt_s is None else min(event.dealt_s, event.start_s)
            found.append(_Sight(event.stop_s, by_s, event))
            found.append(_Sight(dealt_s, dealt_s, event, is_end=False))
        elif isinstance(event, Restored | ItemFinished | ItemFailed):
            by_s = event.t
            found.append(_Sight(event.t, event.t, event))
        else:
            by_s = getattr(event, "t", by_s)
    return found[::-1]


def _names(events: Iterable[Event], item: str) -> dict[int, str]:
    """Index -> name of what belongs to ``item``."""
    named = [(event.index, event.item) for event in events if isinstance(event, ItemFinished | ItemFailed)]
    found = {index: name for index, name in named if item in (name, name.rpartition(" #")[0])}
    if not found and item.isdecimal() and all(name == str(index) for index, name in named):
        found[int(item)] = item
    return found


def _in(event: Span | Restored | ItemFinished | ItemFailed, names: dict[int, str]) -> list[int]:
    """Return those of the items that the event is of; its range may be of any length."""
    if isinstance(event, ItemFinished | ItemFailed):
        return [event.index] if event.index in names else []
    of = range(event.index, event.index + event.n_items) if event.items is None else event.items
    return [index for index in names if index in of]
