"""Plan against reality: what a pipeline meant each device to do and when, beside what it did.

The plan is told by the event ``Planned``; what came of it by spans, and by waits that say ``loads STAGE``.
"""

from collections.abc import Mapping
from typing import Any

from evenload.events import Event, Idle, Planned, Replanned, Restored, Span
from evenload.report.page.bars import N_BINS, Bar, Bars

LOADS = "loads "
MOST_ROWS = 64


class PlanAndRun:
    """The plan of a run beside what happened: ``add`` every event; ``to_json()`` is None for a run that was
    not planned, or not in seconds.

    Times count from the moment of the plan, when the first worker was asked for. Of several plans the first
    is shown: it is the one that was promised.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self.n_bins = n_bins
        self._plan: Planned | None = None
        self._bars = Bars(n_bins)
        self._work_s: dict[str, float] = {}
        self._load_s: dict[str, float] = {}
        self._n_items: dict[str, int] = {}
        self._end_s = 0.0
        self._n_restored = self._n_replans = 0

    def add(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._plan = self._plan or (event if is_sound(event) else None)
        elif isinstance(event, Replanned):
            self._n_replans += 1
        elif isinstance(event, Restored):
            self._n_restored += event.n_items
        elif self._plan is None:
            return
        elif isinstance(event, Span):
            n_items = 0 if event.status in ("superseded", "lost") else event.n_items
            self._put(event.stage, "work", event.device, event.start_s, event.stop_s, n_items)
        elif isinstance(event, Idle) and event.why.startswith(LOADS):
            self._put(event.why.removeprefix(LOADS), "load", event.device, event.start_s, event.stop_s, 0)

    def _put(self, stage: str, kind: str, group: str, start_s: float, stop_s: float, n_items: int) -> None:
        assert self._plan is not None
        began = self._plan.t
        if stop_s <= began:  # of an earlier session, in the same file
            return
        devices = group.split("+")
        sums = self._load_s if kind == "load" else self._work_s
        sums[stage] = sums.get(stage, 0.0) + (stop_s - start_s) * len(devices)
        self._n_items[stage] = self._n_items.get(stage, 0) + n_items
        self._end_s = max(self._end_s, stop_s - began)
        for device in devices:
            self._bars.add(device, f"{kind} {stage}", start_s - began, stop_s - began, n_items)

    def to_json(self) -> Mapping[str, Any] | None:
        plan = self._plan
        if plan is None or not plan.makespan_s:
            return None
        planned, names = Bars(self.n_bins), list(dict.fromkeys(one[1] for one in plan.slices))
        names += [name for name in self._work_s if name not in names]
        sums: dict[tuple[str, str], float] = {}
        n_items: dict[str, int] = {}
        for device, stage, kind, start_s, stop_s, n in plan.slices:
            planned.add(device, f"{kind} {stage}", start_s, stop_s, n)
            sums[stage, kind] = sums.get((stage, kind), 0.0) + stop_s - start_s
            n_items[stage] = n_items.get(stage, 0) + n
        meant, did = planned.rows(), self._bars.rows()
        rows = [
            {
                "device": device,
                "planned": _packed(meant.get(device, ()), names),
                "measured": _packed(did.get(device, ()), names),
            }
            for device in dict.fromkeys([*meant, *did])
        ]
        return {
            "mode": plan.mode,
            "why": plan.why,
            "planned_s": plan.makespan_s,
            "bound_s": plan.bound_s,
            "measured_s": self._end_s or None,
            "n_restored": self._n_restored,
            "n_replans": self._n_replans,
            "stages": names,
            "rows": rows[:MOST_ROWS],
            "n_rows": len(rows),
            "by_stage": [self._stage_row(name, sums, n_items) for name in names],
        }

    def _stage_row(
        self, name: str, planned_s: Mapping[tuple[str, str], float], n_planned: Mapping[str, int]
    ) -> dict[str, Any]:
        return {
            "stage": name,
            "planned_s": planned_s.get((name, "work"), 0.0),
            "measured_s": self._work_s.get(name, 0.0),
            "planned_load_s": planned_s.get((name, "load"), 0.0),
            "measured_load_s": self._load_s.get(name, 0.0),
            "n_planned": n_planned.get(name, 0),
            "n_measured": self._n_items.get(name, 0),
        }


def is_sound(plan: Planned) -> bool:
    """Whether a plan can be drawn: somebody may have edited its file."""
    numbers = [plan.t, plan.makespan_s or 0.0, plan.bound_s or 0.0]
    for one in plan.slices if isinstance(plan.slices, list | tuple) else [None]:
        if not isinstance(one, list | tuple) or len(one) != 6 or not all(isinstance(x, str) for x in one[:3]):
            return False
        numbers += one[3:]
    return all(isinstance(number, int | float) for number in numbers)


def _packed(bars: "list[Bar] | tuple[()]", names: list[str]) -> list[list[float]]:
    """``[start_s, stop_s, stage's number, 1 if the model was loaded, items]`` of each."""
    packed = []
    for bar in bars:
        kind, _, stage = bar.kind.partition(" ")
        if stage in names:
            at = [round(bar.start_s, 4), round(bar.stop_s, 4), names.index(stage)]
            packed.append([*at, int(kind == "load"), bar.n_items])
    return packed
