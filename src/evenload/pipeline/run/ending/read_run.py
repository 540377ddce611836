"""What a run's events say at its end, for its summary and its report."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from evenload.errors import printable, reason_of

if TYPE_CHECKING:
    from evenload.report.html import RunView
    from evenload.report.source import RunEvents
    from evenload.report.summary import Summary

__all__ = ["read_run"]


def read_run(folder: Path, *, is_shown: bool) -> "tuple[RunEvents, Summary, RunView | None, list[str]]":
    """The events of a run, its numbers, what its report shows if it is, and what could not be gathered.

    They are read once for both; of a run that was broken off and resumed, one session follows another. Who
    has done the work is not to be told that it failed because of its numbers: what cannot be read or counted
    costs the report, and only then the summary, which is empty; the last of the four has why.
    """
    from evenload.report.source import RunEvents
    from evenload.report.tally import summarise

    path = folder / "events.jsonl"
    events, faults = RunEvents(folder, path, is_missing=not os.path.isfile(path)), []
    for name, gather in [("report", _seen)] * is_shown + [("summary", _counted)]:
        try:
            return events, *gather(events), faults
        except Exception as error:
            faults.append(_fault(name, error, folder))
    return events, summarise(()), None, faults


def _seen(events: "RunEvents") -> "tuple[Summary, RunView | None]":
    from evenload.report.html import view_of

    view = view_of(events)
    return view.tally.summary(), view


def _counted(events: "RunEvents") -> "tuple[Summary, RunView | None]":
    from evenload.report.tally import summarise

    return summarise(events), None


def _fault(name: str, error: Exception, folder: Path) -> str:
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    why = f"events.jsonl could not be read and counted ({kind}{printable(reason_of(error))})"
    return f"no {name}: {why}; this says nothing of the results; try again: evenload report {folder}"
