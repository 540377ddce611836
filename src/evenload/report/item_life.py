"""What became of one item of a run, attempt by attempt, as its events tell it.

waiting ──► running ──► done | failed       in each stage that it goes through
   ▲           │
   └── lost, tried again
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evenload.events import Event, ItemFailed, ItemFinished, Restored, Span, WorkerExited

NEXT_STATES = {
    "waiting": {"running", "done", "failed"},  # at once: restored from a journal, or given up
    "running": {"running", "waiting", "done", "failed"},  # a copy runs beside the first attempt
    "done": {"running", "done", "failed"},  # made anew; a copy that came second; of a chunk that came back
    "failed": {"running", "failed", "done"},  # tried again by `evenload retry`
}
"""State of an item in a stage -> the states that may follow it."""


@dataclass(frozen=True, slots=True)
class LifeStep:
    """A change of an item's state in one stage.

    t       seconds since the run began
    state   waiting | running | done | failed
    device  where; "" if on none
    worker  the worker's name there
    text    what happened, in words
    """

    t: float
    stage: str
    item: str
    state: str
    device: str
    worker: str
    text: str


def life_of(events: Iterable[Event], item: str) -> list[LifeStep]:
    """Return what became of ``item``, in the order in which it happened.

    item  its id; its parts and samples (``id #2``) are told, too. Of a map, whose items have no ids: its
          number from 0
    An empty list: there is no such item, or nothing is known of it yet.
    """
    events = list(events)
    names = _names(events, item)
    exits = {event.worker: event.reason for event in events if isinstance(event, WorkerExited)}
    steps = [step for event in events for step in _steps(event, names, exits)]
    return sorted(steps, key=lambda step: (step.t, step.state != "running"))


def broken_steps(steps: Iterable[LifeStep]) -> list[LifeStep]:
    """Return the steps that no step before them allows: the log lacks events, or contradicts itself."""
    state: dict[tuple[str, str], str] = {}
    broken = []
    for step in steps:
        place = (step.stage, step.item)
        if step.state not in NEXT_STATES[state.get(place, "waiting")] and step.state != state.get(place):
            broken.append(step)
        state[place] = step.state
    return broken


def _names(events: Iterable[Event], item: str) -> dict[int, str]:
    """Index -> name of what belongs to ``item``."""
    named = [(event.index, event.item) for event in events if isinstance(event, ItemFinished | ItemFailed)]
    found = {index: name for index, name in named if item in (name, name.rpartition(" #")[0])}
    if not found and item.isdecimal() and all(name == str(index) for index, name in named):
        found[int(item)] = item
    return found


def _steps(event: Event, names: dict[int, str], exits: dict[str, str]) -> Iterator[LifeStep]:
    if isinstance(event, Span):
        for index in _in(event, names):
            place = (event.stage, names[index])
            where = (event.device, event.worker)
            what = "a copy runs" if event.duplicate else "runs"
            together = f", with {event.n_items - 1} more" if event.n_items > 1 else ""
            yield LifeStep(event.start_s, *place, "running", *where, what + together)
            state, text = _ended(event, exits)
            yield LifeStep(event.stop_s, *place, state, *where, text)
    elif isinstance(event, Restored):
        for index in _in(event, names):
            yield LifeStep(event.t, event.stage, names[index], "done", "", "", "restored from the journal")
    elif isinstance(event, ItemFinished) and event.index in names:
        yield LifeStep(event.t, event.stage, names[event.index], "done", "", "", "its result is kept")
    elif isinstance(event, ItemFailed) and event.index in names:
        text = f"given up: {event.error}: {event.message}"
        yield LifeStep(event.t, event.stage, names[event.index], "failed", event.device or "", "", text)


def _ended(span: Span, exits: dict[str, str]) -> tuple[str, str]:
    """Return the state after an attempt, and what came of it, in words."""
    after = f"after {span.stop_s - span.start_s:.3f} s"
    if span.status == "ok":
        return "done", f"done {after}"
    if span.status == "superseded":
        return "done", f"dropped {after}: another attempt was done sooner"
    if span.status == "lost":
        return "waiting", f"lost {after}: its worker {exits.get(span.worker, 'was lost')}"
    if span.n_items > 1:
        return "done", f"its chunk came back {after}, with an error of some item"
    return "waiting", f"an error {after}"


def _in(event: Span | Restored, names: dict[int, str]) -> list[int]:
    """Return those of the items that the event is of; its range may be of any length."""
    of = range(event.index, event.index + event.n_items) if event.items is None else event.items
    return [index for index in names if index in of]
