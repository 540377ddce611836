"""Plan against reality: what a pipeline meant each device to do and when, beside what it did.

The plan is told by the event ``Planned``; what came of it by spans, and by waits that say ``loads STAGE``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from evenload.events import Event, Idle, Planned, Replanned, Restored, Span
from evenload.report.page.bars import N_BINS, Bar, Bars

LOADS = "loads "
MOST_ROWS = 64


class _Drawn:
    """Bars of each device, and the seconds and items of each stage, of what was planned or was done."""

    def __init__(self, n_bins: int) -> None:
        self.bars = Bars(n_bins)
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)  # stage, work or load
        self.n_items: Counter[str] = Counter()

    def add(
        self, devices: Iterable[str], stage: str, kind: str, start_s: float, stop_s: float, n_items: int
    ) -> None:
        self.n_items[stage] += n_items
        for device in devices:
            self.seconds[stage, kind] += stop_s - start_s
            self.bars.add(device, f"{kind} {stage}", start_s, stop_s, n_items)


class PlanAndRun:
    """The plan of a run beside what happened: ``add`` every event; ``to_json()`` is None for a run that was
    not planned, or not in seconds.

    Times count from the moment of the plan, when the first worker was asked for. Of several plans the first
    is shown: it is the one that was promised.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self.n_bins = n_bins
        self._plan: Planned | None = None
        self._did = _Drawn(n_bins)
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
        self._end_s = max(self._end_s, stop_s - began)
        self._did.add(group.split("+"), stage, kind, start_s - began, stop_s - began, n_items)

    def to_json(self) -> Mapping[str, Any] | None:
        plan = self._plan
        if plan is None or not plan.makespan_s:
            return None
        meant, did = _Drawn(self.n_bins), self._did
        for device, *one in plan.slices:
            meant.add([device], *one)
        done = [stage for stage, kind in did.seconds if kind == "work"]
        names = list(dict.fromkeys([*(one[1] for one in plan.slices), *done]))
        bars_meant, bars_did = meant.bars.rows(), did.bars.rows()
        rows = [
            {
                "device": device,
                "planned": _packed(bars_meant.get(device, ()), names),
                "measured": _packed(bars_did.get(device, ()), names),
            }
            for device in dict.fromkeys([*bars_meant, *bars_did])
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
            "by_stage": [
                {
                    "stage": name,
                    "planned_s": meant.seconds[name, "work"],
                    "measured_s": did.seconds[name, "work"],
                    "planned_load_s": meant.seconds[name, "load"],
                    "measured_load_s": did.seconds[name, "load"],
                    "n_planned": meant.n_items[name],
                    "n_measured": did.n_items[name],
                }
                for name in names
            ],
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
