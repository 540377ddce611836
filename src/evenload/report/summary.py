"""The numbers of a run, each with its bound: how long it took, and how long the best plan would take.

``evenload.report.tally.summarise(events)`` makes them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from evenload._plain_text import number_text, seconds_text
from evenload.balance.factors import Factors
from evenload.events import ItemFailed
from evenload.report.costs import cost_text
from evenload.report.losses.remedies import Advice

__all__ = ["DeviceSummary", "SlowItem", "StageSummary", "Summary", "batches_text", "counts_text"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """The work of one device while items were in work. Seconds, summed over its workers.

    ``busy_s`` inside the task, ``overhead_s`` of chunks but outside the task (sending, receiving), ``idle_s``
    the rest of the work's time; ``startup_s`` before work. ``waits`` splits the part of idle_s for which the
    policy gave a reason. Parts of busy_s: ``wasted_s``, duplicates that came second and chunks of workers
    that died; of the others, ``waited_s`` in which items told that they wait, and ``unknown_s`` in which
    nobody knows what they did. ``utilisation`` is busy_s without these two, over the work's time and the
    number of workers, 0..1.
    """

    device: str
    name: str = ""
    kind: str = ""
    n_workers: int = 1
    n_items: int = 0
    n_chunks: int = 0
    busy_s: float = 0.0
    overhead_s: float = 0.0
    idle_s: float = 0.0
    startup_s: float = 0.0
    wasted_s: float = 0.0
    waited_s: float = 0.0
    unknown_s: float = 0.0
    utilisation: float = 0.0
    items_per_s: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    n_lost_workers: int = 0
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage. ``wall_s``: from its first chunk's start to its last one's end; ``ratio``: over the bound.

    ``bound_up_to_s``: it may be as much, for all that the run shows of the devices' speeds.
    ``bound_by`` says what sets the bound: "work" or "longest item". ``learned``: what its items' times go by.
    Of a stage that takes several items in one call: ``n_batches`` calls with ``mean_batch`` items each, which
    filled ``batch_fill`` (0..1) of what they could have taken.
    """

    stage: str
    total: int | None
    n_done: int
    n_failed: int
    start_s: float
    stop_s: float
    wall_s: float
    busy_s: float
    bound_s: float
    bound_by: str
    ratio: float | None
    imbalance: float
    items_per_s: float
    bound_up_to_s: float = 0.0
    learned: str = ""
    n_batches: int = 0
    mean_batch: float | None = None
    batch_fill: float | None = None


@dataclass(frozen=True, slots=True)
class SlowItem:
    """One of the slowest items. ``seconds`` per item; for a chunk of more than one item the mean of the
    chunk."""

    stage: str
    index: int
    n_items: int
    device: str
    seconds: float
    item: str = ""

    def text(self) -> str:
        """Return "cat.png of edit, 8 s on cuda:0"."""
        which = self.item[:60] or f"item {self.index}" if self.n_items == 1 else f"items from {self.index} on"
        return f"{which} of {self.stage}, {seconds_text(self.seconds)} on {self.device}"


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run.

    ``wall_s``     from the run's start to its last event
    ``work_s``     of it, the time in which chunks ran (stages that follow one another are added up)
    ``bound_s``    no plan could have done that work on these devices in less (see ``balance.bound``)
    ``bound_up_to_s``  the bound may be as much: the run does not show the devices' speeds better
    ``ratio``      work_s / bound_s: 1.0 is the best possible, 1.08 is 8 % longer; None if not measured
    ``imbalance``  busiest device's useful seconds over the mean of all devices: 1.0 is perfectly even
    ``failures`` and ``slowest`` are the first (the worst) of possibly many; ``n_failed`` counts all.
    ``status``     done | failures | interrupted | failed | timed out | unfinished
    ``error``      what ended a run that has failed, in words; else ""
    ``factors``    where the time went: factors that multiply to the share of ``wall_s`` that was useful work;
                   None if none was done; ``advice``: the largest loss, and what to do about it
    ``cost``       what the run has cost, as ``costs.cost_of`` says it of what was told; else {}
    ``counts``     of a pipeline: items, samples and parts by how they ended, as ``Counted`` has them; then
                   ``total``, ``n_done`` and ``n_failed`` are items, whatever their samples came to
    """

    name: str
    status: str
    unix_s: float
    total: int | None
    n_done: int
    n_failed: int
    wall_s: float
    work_s: float
    startup_s: float
    items_per_s: float
    bound_s: float
    bound_by: str
    ratio: float | None
    imbalance: float
    utilisation: float
    utilisation_std: float
    bound_up_to_s: float = 0.0
    devices: tuple[DeviceSummary, ...] = ()
    stages: tuple[StageSummary, ...] = ()
    unmeasured: tuple[str, ...] = ()
    waits: Mapping[str, float] = field(default_factory=dict)
    n_chunks: int = 0
    n_duplicates: int = 0
    n_redone: int = 0
    wasted_s: float = 0.0
    n_moves: int = 0
    n_moved_items: int = 0
    n_lost_workers: int = 0
    slowest: tuple[SlowItem, ...] = ()
    failures: tuple[ItemFailed, ...] = ()
    failures_by_error: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    finish: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    factors: Factors | None = None
    advice: Advice | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """A plain object for ``json.dumps``, with ``"schema": 1``. Seconds are rounded to microseconds, but
        for those of the factors, which multiply to their share."""
        factors = asdict(self.factors) if self.factors is not None else None
        advice = {"advice": {**asdict(self.advice), "text": self.advice.text()}} if self.advice else {}
        return {"schema": SCHEMA, **_rounded(asdict(self)), "factors": factors, **advice}

    def headline(self) -> str:
        """One line for a terminal."""
        of = f" of {self.total}" if self.total is not None else ""
        parts = [f"{counts_text(self.counts) or f'{self.n_done}{of} done'} in {self.wall_s:.1f} s"]
        if self.n_failed and not self.counts:
            parts.append(f"{self.n_failed} failed")
        if cost := cost_text(self.cost):
            parts.append(cost)
        if self.factors is not None:
            parts.append(self.factors.text())
        return " · ".join(parts)


def counts_text(counts: Mapping[str, Any]) -> str:
    """Return "87 done, 205 filtered, 8 failed of 300 items (1200 samples)", without what there is none of.

    Parts are told with those that failed: "2 done, 1 failed of 3 items (6 parts, 1 failed)".
    counts  of a ``Summary``; "" where there are none, and where all items are done, without samples or parts
    """
    items, samples, parts = (counts.get(name) or {} for name in ("items", "samples", "parts"))
    more = [f"{samples['total']} samples"] if samples.get("total") else []
    more += [f"{parts['total']} parts"] if parts.get("total") else []
    if not items or (items.get("done") == items.get("total") and not more):
        return ""
    more += [f"{parts['failed']} failed"] if parts.get("failed") else []
    ends = [f"{n} {end}" for end, n in items.items() if end != "total" and (n or end == "done")]
    apart = f" ({', '.join(more)})" if more else ""
    return f"{', '.join(ends)} of {items.get('total', sum(items.values()))} items{apart}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return value


def batches_text(stage: StageSummary) -> str:
    """How large the batches of a stage were, in words; of one that has none, ""."""
    if not stage.n_batches or stage.mean_batch is None:
        return ""
    fill = f", {stage.batch_fill:.0%} full" if stage.batch_fill is not None else ""
    calls = f"({stage.n_batches} {'call' if stage.n_batches == 1 else 'calls'})"
    return f"batches of {stage.stage}: {number_text(stage.mean_batch)} items on average{fill} {calls}"
