"""One event of a Chrome trace, as far as an audit needs it."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from evenload.audit.readers.json_elements import Shape


@dataclass(frozen=True, slots=True)
class EventArguments:
    """The arguments of an event that matter: the name that a metadata event gives, and of a collective its
    group of ranks, these, its number in the group and its own name; and what operators and their kernels
    have in common.
    """

    name: Any = None
    labels: Any = None
    group: Any = field(default=None, metadata={"name": "Process Group Name"})
    ranks: Any = field(default=None, metadata={"name": "Process Group Ranks"})
    order: Any = field(default=None, metadata={"name": "Seq"})
    collective: Any = field(default=None, metadata={"name": "Collective name"})
    external: Any = field(default=None, metadata={"name": "External id"})


NO_ARGUMENTS = EventArguments()
ARGUMENT_NAMES = [one.metadata.get("name", one.name) for one in fields(EventArguments)]


@dataclass(slots=True)
class ChromeEvent:
    """One event of a trace: phase, name, category, microseconds, and the rows that it belongs to."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = math.nan
    pid: int | str = ""
    tid: int | str = ""
    args: EventArguments = NO_ARGUMENTS


def event_shape() -> Shape[ChromeEvent]:
    """How events are decoded: ``Shape`` of an event."""
    return Shape(ChromeEvent, _plain_event)


def _plain_event(event: dict[str, Any]) -> ChromeEvent | None:
    """An event of a dict; None if it has no phase. Else, what is of a wrong type is as if it were missing."""
    phase, arguments = event.get("ph"), event.get("args")
    if not isinstance(phase, str):
        return None
    if isinstance(arguments, dict):
        arguments = EventArguments(*map(arguments.get, ARGUMENT_NAMES))
    else:
        arguments = NO_ARGUMENTS
    name, category = (one if isinstance(one, str) else "" for one in (event.get("name"), event.get("cat")))
    return ChromeEvent(
        phase,
        name,
        category,
        number_of(event.get("ts")),
        number_of(event.get("dur")),
        _row(event.get("pid")),
        _row(event.get("tid")),
        arguments,
    )


def _row(value: object) -> int | str:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else ""


def number_of(value: object) -> float:
    """A number, also one that is written as text; nan for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
