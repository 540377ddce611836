"""The timeline of a run in bounded memory: slices per lane, merged where they are too short to be seen.

Up to ``max_slices`` are kept as they happened. Beyond that, neighbours of one lane and stage that
together are shorter than a time step are merged into one slice that remembers how many chunks, items and
busy seconds it stands for; the step doubles until all fits. Once the step is too short to be seen in a
view of the whole run, unlike neighbours are merged as well. Failures are marks of their own and never
merged away.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenload.balance.factors import kind_of_idle
from evenload.events import Event, Idle, ItemFailed, Moved, RunStarted, Span, WorkerExited, WorkerStarted
from evenload.report.inside_items import InsideItems
from evenload.report.worker_tracks import WorkerTracks

# What is no chunk has the name of the factor that it counts for.
STATUSES = ("ok", "failed", "lost", "superseded", "waiting", "start-up", "balance")
_WAITING, _STARTUP, _BALANCE = (STATUSES.index(one) for one in ("waiting", "start-up", "balance"))
# A view of the whole run is not wider than this.
PIXELS = 4000
MAX_MARKS = 1000
MAX_MOVES = 500
MAX_REASONS = 500


@dataclass(slots=True)
class TimelineBar:
    """One bar of the timeline: ``n_chunks`` chunks of one stage and status on one track, one after the other.

    ``index`` is the first item's, -1 if the items do not follow one another.
    """

    start_s: float
    stop_s: float
    busy_s: float
    stage: int
    status: int
    index: int
    n_items: int
    n_chunks: int = 1
    why: int = 0
    idle_s: float = 0.0  # of busy_s: waiting that was told, and what is not known


class Timeline:
    """The bars of every worker: ``add`` every event; ``to_json()`` is what the page draws."""

    def __init__(self, max_slices: int = 100_000) -> None:
        self.max_slices = max_slices
        self._tracks = WorkerTracks()
        self._rows: dict[tuple[str, int], list[TimelineBar]] = {}
        self._devices: dict[str, None] = {}
        self._stages: dict[str, int] = {}
        self._reasons: dict[str, int] = {"": 0}
        self._marks: list[dict[str, Any]] = []
        self._moves: list[dict[str, Any]] = []
        self._n_marks = self._n_moves = 0
        self._n_slices = 0
        self._step_s = 0.0
        self._end_s = self._last_deal_s = 0.0
        self._dirty: set[tuple[str, int]] = set()
        self._inside = InsideItems()

    def add(self, event: Event) -> None:
        self._inside.add(event)
        self._end_s = max(self._end_s, getattr(event, "t", 0.0), getattr(event, "stop_s", 0.0))
        if isinstance(event, Span):
            self._add_span(event)
        elif isinstance(event, Idle):
            self._put(event.device, 0, self._idle(event))
        elif isinstance(event, WorkerStarted):
            self._add_startup(event)
        elif isinstance(event, WorkerExited):
            self._tracks.see(event)
            if event.reason != "closed":
                lane = self._tracks.of(event.device, event.worker)
                self._mark(event.t, event.device, lane, "lost", f"worker lost: {event.reason}")
        elif isinstance(event, ItemFailed):
            text = f"{event.item or event.index}: {event.error}"
            self._mark(event.t, event.device or "", 0, "failed", text)
        elif isinstance(event, Moved):
            self._move(event)
        elif isinstance(event, RunStarted):
            for device in event.devices:
                self._devices.setdefault(device)
                self._rows.setdefault((device, 0), [])

    def _add_span(self, span: Span) -> None:
        status = STATUSES.index(span.status) if span.status in STATUSES else 0
        if span.status not in ("lost", "superseded"):
            self._last_deal_s = max(self._last_deal_s, span.start_s)
        one = TimelineBar(
            span.start_s,
            max(span.start_s, span.stop_s),
            span.busy_s,
            self._stages.setdefault(span.stage, len(self._stages)),
            status,
            span.index if span.items is None else -1,
            span.n_items,
            why=self._reason(span.why),
            idle_s=sum(self._inside.seconds(span, span.busy_s)),
        )
        self._put(span.device, self._tracks.of(span.device, span.worker), one)

    def _idle(self, event: Idle) -> TimelineBar:
        return TimelineBar(
            event.start_s,
            max(event.start_s, event.stop_s),
            0.0,
            -1,
            STATUSES.index(kind_of_idle(event.why)),
            0,
            0,
            why=self._reason(event.why),
        )

    def _add_startup(self, event: WorkerStarted) -> None:
        lane = self._tracks.of(event.device, event.worker)
        start_s = max(0.0, event.t - event.startup_s)
        self._put(event.device, lane, TimelineBar(start_s, event.t, 0.0, -1, _STARTUP, 0, 0))

    def _reason(self, why: str) -> int:
        if why not in self._reasons and len(self._reasons) >= MAX_REASONS:
            return 0
        return self._reasons.setdefault(why, len(self._reasons))

    def _mark(self, t: float, device: str, lane: int, kind: str, text: str) -> None:
        self._n_marks += 1
        if len(self._marks) < MAX_MARKS:
            self._marks.append({"t": t, "device": device, "lane": lane, "kind": kind, "text": text[:300]})

    def _move(self, event: Moved) -> None:
        self._n_moves += 1
        if len(self._moves) < MAX_MOVES:
            move = {"t": event.t, "source": event.source, "target": event.target, "n_items": event.n_items}
            self._moves.append({**move, "imbalance": event.imbalance})

    def _put(self, device: str, lane: int, one: TimelineBar) -> None:
        row = self._rows.setdefault((device, lane), [])
        if self._step_s and row and self._merge(row[-1], one):
            return
        if row and row[-1].start_s > one.start_s:
            self._dirty.add((device, lane))
        row.append(one)
        self._n_slices += 1
        if self._n_slices > max(self.max_slices, 4 * len(self._rows)):
            self._coarsen()

    def _merge(self, last: TimelineBar, one: TimelineBar) -> bool:
        return _merge(last, one, self._step_s, self._step_s * PIXELS > self._end_s)

    def _coarsen(self) -> None:
        """Double the time step until a quarter of the slices is gone; at the latest, one per lane is left."""
        goal = max(self.max_slices, 4 * len(self._rows)) * 3 // 4
        while self._n_slices > goal and self._step_s < 4 * self._end_s:
            self._step_s = self._step_s * 2 or self._end_s / self.max_slices
            for key in self._rows:
                row = self._sorted(key)
                merged: list[TimelineBar] = []
                for one in row:
                    if not (merged and self._merge(merged[-1], one)):
                        merged.append(one)
                self._rows[key] = merged
            self._n_slices = sum(map(len, self._rows.values()))

    def to_json(self) -> Mapping[str, Any]:
        """Rows of columns; times in microseconds, each start as the distance to the one before."""
        return self._page({key: self._sorted(key) for key in self._rows}, self._step_s)

    def window(self, from_s: float, to_s: float, step_s: float) -> Mapping[str, Any]:
        """What ``to_json`` gives, of what is seen from ``from_s`` to ``to_s`` at ``step_s`` to a pixel.

        Neighbours that together are shorter than the step are merged, whatever they are.
        """
        rows = {}
        for key in self._rows:
            row = self._sorted(key)
            # Slices of a lane follow one another; waits may overlap them a little, hence the few steps back.
            first = max(0, bisect_left(row, from_s, key=lambda one: one.start_s) - 8)
            last = bisect_right(row, to_s, key=lambda one: one.start_s)
            rows[key] = _thinned(row, first, last, from_s, step_s)
        return self._page(rows, max(step_s, self._step_s))

    def _sorted(self, key: tuple[str, int]) -> list[TimelineBar]:
        if key in self._dirty:
            self._rows[key].sort(key=lambda one: one.start_s)
            self._dirty.discard(key)
        return self._rows[key]

    def _page(self, slices: Mapping[tuple[str, int], list[TimelineBar]], step_s: float) -> Mapping[str, Any]:
        place = {device: i for i, device in enumerate(self._devices)}
        rows = sorted(
            slices.items(), key=lambda one: (place.get(one[0][0], len(place)), _natural(one[0][0]), one[0][1])
        )
        return {
            "end_s": round(self._end_s, 6),
            "step_s": step_s,
            "stages": list(self._stages),
            "statuses": STATUSES,
            "reasons": list(self._reasons),
            "rows": [
                {"device": device, "lane": lane, **_columns(row, self._last_deal_s)}
                for (device, lane), row in rows
            ],
            "marks": self._marks,
            "n_marks": self._n_marks,
            "moves": self._moves,
            "n_moves": self._n_moves,
        }


def _merge(last: TimelineBar, one: TimelineBar, step_s: float, may_mix: bool) -> bool:
    """Merge ``one`` into ``last`` if both together are shorter than the step.

    Unlike ones only if they ``may_mix``; what worked more then gives the kind.
    """
    if one.start_s < last.start_s or max(last.stop_s, one.stop_s) - last.start_s > step_s:
        return False
    if (last.stage, last.status) != (one.stage, one.status):
        if not may_mix:
            return False
        if one.busy_s > last.busy_s:
            last.stage, last.status, last.index = one.stage, one.status, one.index
    last.stop_s = max(last.stop_s, one.stop_s)
    last.busy_s += one.busy_s
    last.idle_s += one.idle_s
    last.n_items += one.n_items
    last.n_chunks += one.n_chunks
    last.why = last.why if last.why == one.why else 0
    return True


def _thinned(
    row: list[TimelineBar], first: int, last: int, from_s: float, step_s: float
) -> list[TimelineBar]:
    """Slices ``first`` to ``last`` of ``row`` that reach ``from_s``, short ones merged into copies."""
    kept: list[TimelineBar] = []
    is_copy = False
    for i in range(first, last):
        one = row[i]
        if one.stop_s < from_s:
            continue
        if kept and max(kept[-1].stop_s, one.stop_s) - kept[-1].start_s <= step_s:
            if not is_copy:
                kept[-1], is_copy = replace(kept[-1]), True
            _merge(kept[-1], one, step_s, True)
        else:
            kept.append(one)
            is_copy = False
    return kept


def _columns(row: list[TimelineBar], last_deal_s: float) -> dict[str, list[int]]:
    """``last_deal_s``: the last chunk that was needed began; who had no item from then on waited for none."""
    n_waits = next((n for n, one in enumerate(reversed(row)) if one.status != _WAITING), len(row))
    ends = [
        _BALANCE if at >= len(row) - n_waits and one.start_s >= last_deal_s else one.status
        for at, one in enumerate(row)
    ]
    starts = [round(one.start_s * 1e6) for one in row]
    return {
        "start": [now - before for now, before in zip(starts, [0, *starts], strict=False)],
        "length": [max(0, round(one.stop_s * 1e6) - start) for one, start in zip(row, starts, strict=True)],
        "busy": [round(one.busy_s * 1e6) for one in row],
        "idle": [round(one.idle_s * 1e6) for one in row] if any(one.idle_s for one in row) else [],
        "stage": [one.stage for one in row],
        "status": ends,
        "index": [one.index for one in row],
        "n_items": [one.n_items for one in row],
        "n_chunks": [one.n_chunks for one in row],
        "why": [one.why for one in row],
    }


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key with cuda:2 before cuda:10."""
    kind, _, number = name.partition(":")
    return (kind, int(number), "") if number.isdecimal() and len(number) < 10 else (kind, -1, number)
