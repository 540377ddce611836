"""The report of an audit: one HTML file in the look of a run's report."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._plain_text import seconds_text
from evenload._private_files import write_named
from evenload._version import __version__
from evenload.audit.audit import Audit, AuditParts
from evenload.audit.occupancy import Stretches, closed, minus, together, union, within
from evenload.audit.recording import WORK, shown_name
from evenload.events import Idle, RunStarted, Span, WorkerStarted
from evenload.report.html import as_script_text, fill, report_script
from evenload.report.page.timeline import Timeline

MOST_BARS = 40_000
MOST_COLOURS = 6
PIXELS = 4000
LOAD_BINS = 480
KINDS = ("work", "exchange", "late ranks", "repeats", "start-up", "busy in part", "not recorded")
# Of a run's timeline, these are waiting; other idle stretches are balance.
REASONS = {
    "no device works": "nothing was ready: no device works",
    "serial": "nothing was ready: exactly one other device works (serial)",
    "waiting": "nothing was ready: two or more others work (waiting)",
}


def write_audit(parts: AuditParts, audit: Audit, path: Path) -> None:
    """Write the report of an audit; it appears whole or not at all. Raises ConfigError if it cannot."""
    work = f"{audit.share:.0%} of {len(audit.devices)} devices' time was work"
    headline = f"{work}, in {seconds_text(audit.wall_s, 4)}."
    text = fill(
        title=f"Audit: {audit.source}",
        headline=headline,
        view=as_script_text(audit_view(parts, audit)),
        script=report_script(),
    )
    write_named(path, text)


def audit_view(parts: AuditParts, audit: Audit) -> dict[str, Any]:
    """What the page shows, as JSON."""
    return {
        "version": __version__,
        "audit": {**audit.to_json(), "largest": audit.largest},
        "timeline": _timeline(parts).to_json(),
        "load": _load(parts),
    }


def _load(parts: AuditParts) -> dict[str, Any]:
    """How many devices were busy on average in each of LOAD_BINS equal parts of the time."""
    begin, end = parts.window_ns
    edges = np.linspace(begin, end, LOAD_BINS + 1)
    busy_ns = np.zeros(LOAD_BINS + 1)
    for one in (occupancy.busy for occupancy in parts.occupancy):
        busy_ns += within(one, edges)
    width_s = (end - begin) / LOAD_BINS / 1e9
    return {"width_s": width_s, "total": (np.diff(busy_ns) / width_s / 1e9).round(4).tolist()}


def _timeline(parts: AuditParts) -> Timeline:
    recording = parts.recording
    begin, end = parts.window_ns
    timeline = Timeline(MOST_BARS)
    timeline.add(RunStarted(0.0, "", 0.0, devices={name: {} for name in recording.devices}))
    labels, label_of = _labels(parts)
    least_ns = (end - begin) // PIXELS
    for device, name in enumerate(recording.devices):
        for label, one in _bars(parts, device, label_of, len(labels)):
            for start_s, stop_s in _seconds(one, begin):
                took_s = stop_s - start_s
                timeline.add(Span(labels[label], name, name, 0, 0, start_s, stop_s, took_s, items=()))
        first_s = (parts.occupancy[device].first_ns - begin) / 1e9
        if len(parts.occupancy[device].busy.start_ns) and first_s > 0 and not recording.is_excerpt:
            timeline.add(WorkerStarted(first_s, name, name, startup_s=first_s))
        for why, start_s, stop_s in _idle(parts, device, least_ns):
            timeline.add(Idle(name, start_s, stop_s, REASONS.get(why, why)))
    return timeline


def _labels(parts: AuditParts) -> tuple[list[str], NDArray[np.int64]]:
    """What bars are called, and the label of each span: its name where there are few, else its kind."""
    recording = parts.recording
    is_work = recording.kind == WORK
    names = np.unique(recording.name[is_work])
    if not recording.has_items or not 1 <= len(names) <= MOST_COLOURS or len(recording.names) == 1:
        return list(KINDS), recording.kind.astype(np.int64)
    label_of = recording.kind + np.int64(len(names) - 1)
    label_of[is_work] = np.searchsorted(names, recording.name[is_work])
    shown = [shown_name(recording.names[at]) or "work" for at in names]
    return [*shown, *KINDS[1:]], label_of


def _bars(
    parts: AuditParts, device: int, label_of: NDArray[np.int64], n_labels: int
) -> Iterator[tuple[int, Stretches]]:
    """Yield the stretches of each label of a device; of overlapping ones, the first label has the time.

    Where there are more than a page can hold, those that are near one another are drawn as one.
    """
    rows = parts.rows[device]
    most = max(200, MOST_BARS // (2 * len(parts.rows)))
    label = label_of[rows]
    occupancy = parts.occupancy[device]
    before = occupancy.busy.start_ns < occupancy.first_ns  # of start-up, whatever it was
    stops = np.minimum(occupancy.busy.stop_ns[before], occupancy.first_ns)
    taken = Stretches(occupancy.busy.start_ns[before], stops)
    for one in range(n_labels):
        own = rows[label == one]
        start, stop = parts.recording.start_ns[own], parts.recording.stop_ns[own]
        found = union(start, stop)
        shown = minus(found, taken)
        step_ns = max(1, (parts.window_ns[1] - parts.window_ns[0]) // PIXELS)
        while len(shown.start_ns) > most:
            shown, step_ns = closed(shown, step_ns), 2 * step_ns
        if len(shown.start_ns):
            yield one, shown
        taken = together((taken, found))


def _idle(parts: AuditParts, device: int, least_ns: int) -> Iterator[tuple[str, float, float]]:
    """Yield the cause and seconds of a device's idle stretches that can be seen."""
    begin, end = parts.window_ns
    busy = parts.occupancy[device].later
    if not len(busy.start_ns):
        yield "not used", 0.0, (end - begin) / 1e9
        return
    between = parts.activity.gaps(busy)
    seen = between.stop_ns - between.start_ns >= max(parts.recording.gap_ns, least_ns)
    gaps = Stretches(between.start_ns[seen], between.stop_ns[seen])
    most = parts.activity.split(gaps).argmax(axis=1)
    for at, (start_s, stop_s) in zip(most.tolist(), _seconds(gaps, begin), strict=True):
        yield ("no device works", "serial", "waiting")[at], start_s, stop_s
    if busy.stop_ns[-1] < end and not parts.recording.is_excerpt:
        yield "tail", int(busy.stop_ns[-1] - begin) / 1e9, (end - begin) / 1e9


def _seconds(stretches: Stretches, begin_ns: int) -> Iterator[tuple[float, float]]:
    starts, stops = ((column - begin_ns) / 1e9 for column in (stretches.start_ns, stretches.stop_ns))
    return zip(starts.tolist(), stops.tolist(), strict=True)
