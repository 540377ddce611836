"""What a run's events say at its end, for its summary and its report."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from evenload.errors import printable, reason_of
from evenload.events import Event, ItemFinished, Span, decode, encode

if TYPE_CHECKING:
    from evenload.report.html import RunView
    from evenload.report.source import RunEvents
    from evenload.report.summary import Summary

PLAIN = (Span, ItemFinished)  # what JSON gives back as it was


class RunCounter:
    """A sink that counts a run's events as they come, while workers work: none is left to be read at its end.

    is_shown  gather what the report shows, too
    is_whole  nothing is missing: no earlier session has left events
    """

    def __init__(self, *, is_shown: bool, is_whole: bool):
        from evenload.report.html import RunView
        from evenload.report.tally import Tally

        self.is_whole, self.n_events = is_whole, 0
        self.view = RunView() if is_shown else None
        self.tally = Tally() if self.view is None else self.view.tally

    def __call__(self, event: Event) -> None:
        from evenload.report.source import is_sane

        if self.is_whole:
            try:
                as_read = event if type(event) in PLAIN else decode(encode(event))
                if as_read is not None and is_sane(as_read):
                    self.n_events += 1
                    (self.tally if self.view is None else self.view).add(as_read)
            except Exception:  # it is read at the end, and then said
                self.is_whole = False


def read_run(
    folder: Path, *, is_shown: bool, counter: RunCounter | None = None
) -> "tuple[RunEvents, Summary, RunView | None, list[str]]":
    """The events of a run, its numbers, what its report shows if it is, and what could not be gathered.

    What ``counter`` has counted is not read again. Else the events are read once for both; of a run that was
    broken off and resumed, one session follows another. Who has done the work is not to be told that it
    failed because of its numbers: what cannot be read or counted costs the report, and only then the summary,
    which is empty; the last of the four has why.
    """
    from evenload.report.source import RunEvents
    from evenload.report.tally import summarise

    path = folder / "events.jsonl"
    events, faults = RunEvents(folder, path, is_missing=not os.path.isfile(path)), []
    if counter is not None and counter.is_whole and not events.is_missing:
        with contextlib.suppress(Exception):  # a reading says why
            summary, events.sieve.n_events = counter.tally.summary(), counter.n_events
            return events, summary, counter.view, faults
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
