"""What a run's events say at its end, for its summary and its report."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenload.report.html import RunView
    from evenload.report.source import RunEvents
    from evenload.report.summary import Summary

__all__ = ["read_run"]


def read_run(folder: Path, *, is_shown: bool) -> "tuple[RunEvents, Summary, RunView | None]":
    """The events of a run, its numbers, and what its report shows if it is: read once for both.

    Of a run that was broken off and resumed, one session follows another, as in its report.
    """
    from evenload.report.source import open_run

    events = open_run(folder)
    if not is_shown:
        from evenload.report.tally import summarise

        return events, summarise(events), None
    from evenload.report.html import view_of

    view = view_of(events)
    return events, view.tally.summary(), view
