"""A policy's simulated runs; all policies as a table with the timeline of the best, or as JSON."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evenload._plain_text import number_text, seconds_text
from evenload.balance.fleet import ModelDevice
from evenload.balance.metrics import imbalance
from evenload.balance.simulate import Simulation
from evenload.cli.terminal.gantt import gantt_lines
from evenload.cli.terminal.table import format_table
from evenload.cli.terminal.text_charts import has_blocks


@dataclass(frozen=True)
class PolicyResult:
    """One policy's simulated runs, one for each draw of the costs; figures are means over the draws."""

    draws: Sequence[Simulation]

    @property
    def n_unfinished(self) -> int:
        """The most items that a draw left undone."""
        return max(run.n_unfinished for run in self.draws)

    @property
    def makespan_s(self) -> float:
        return fmean(run.makespan_s for run in self.draws)

    @property
    def bound_s(self) -> float:
        return fmean(run.bound_s for run in self.draws)

    @property
    def times_bound(self) -> list[float]:
        """Makespan over bound, draw by draw; empty where there was no work, or it never ended."""
        if self.n_unfinished:
            return []
        return [run.makespan_s / run.bound_s for run in self.draws if run.bound_s > 0]

    @property
    def imbalance(self) -> float:
        return fmean(imbalance(list(run.device2busy_s.values())) for run in self.draws)

    def mean(self, counter: str) -> float:
        return fmean(getattr(run.counters, counter) for run in self.draws)


def to_lines(
    results: Mapping[str, PolicyResult], fleet: Sequence[ModelDevice], n_items: int, work_s: float
) -> list[str]:
    """The page for a person: the question, a table of policies, the timeline of the best."""
    best = min(results, key=lambda name: results[name].makespan_s)
    n_draws, bound_s = len(results[best].draws), results[best].bound_s
    drawn = f", mean of {n_draws} draws" if n_draws > 1 else ""
    can_end = f"before {seconds_text(bound_s, 4)}" if bound_s < math.inf else "at all"
    work = seconds_text(work_s, 4)
    lines = [
        f"{n_items} items, {work} of work, on {len(fleet)} device{'s' * (len(fleet) != 1)}{drawn}",
        f"no plan can end {can_end}",
        "",
        *format_table(
            ["policy", "makespan", "x bound", "worst", "imbalance", "chunks", "copies", "moves"],
            [_row(name, result) for name, result in results.items()],
            right=("makespan", "worst", "imbalance", "chunks", "copies", "moves"),
        ),
        "",
    ]
    if results[best].n_unfinished:
        return [*lines, "no policy can finish: every device dies or stops before the work is done"]
    run = results[best].draws[0]
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    picture = gantt_lines(_slices(run, fleet), run.makespan_s, width, ascii_only=not has_blocks())
    title = f"{best}, first draw: " if n_draws > 1 else f"{best}: "
    return [*lines, title + _legend(), *picture] if picture else lines[:-1]


def to_json(
    results: Mapping[str, PolicyResult], fleet: Sequence[ModelDevice], n_items: int, work_s: float
) -> dict[str, Any]:
    """The JSON page: means over the draws; a makespan of null was never reached."""
    policies = {}
    for name, result in results.items():
        times, bound_s = result.times_bound, result.bound_s
        busy = [run.device2busy_s for run in result.draws]
        policies[name] = {
            "makespan_s": None if result.n_unfinished else result.makespan_s,
            "bound_s": bound_s if bound_s < math.inf else None,
            "ratio_to_bound": fmean(times) if times else None,
            "worst_ratio_to_bound": max(times) if times else None,
            "unfinished": result.n_unfinished,
            "chunks": result.mean("n_chunks"),
            "duplicates": result.mean("n_duplicates"),
            "moves": result.mean("n_moved"),
            "busy_s": {device.name: fmean(seconds[device.name] for seconds in busy) for device in fleet},
        }
    return {
        "schema": 1,
        "items": n_items,
        "work_s": work_s,
        "draws": max(len(result.draws) for result in results.values()),
        "devices": {device.name: device.speed for device in fleet},
        "policies": policies,
    }


def _row(name: str, result: PolicyResult) -> list[str]:
    if result.n_unfinished:
        return [name, "never", "–", "", "–", f"{result.mean('n_chunks'):.0f}", "", ""]
    times = result.times_bound
    counts = (number_text(result.mean(counter), 4) for counter in ("n_chunks", "n_duplicates", "n_moved"))
    return [
        name,
        f"{seconds_text(result.makespan_s, 4)}",
        f"{fmean(times):.3f}" if times else "–",
        f"{max(times):.3f}" if len(times) > 1 else "",
        f"{result.imbalance:.2f}",
        *counts,
    ]


def _slices(run: Simulation, fleet: Sequence[ModelDevice]) -> dict[str, list[tuple[float, float, str]]]:
    """Rows of the timeline; ~ marks a speed that changes, ! a worker that dies."""
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for device in fleet:
        marks = "~" * bool(device.profile) + "!" * (device.dies_s is not None)
        rows[f"{device.name} {device.speed:g}x{marks}"] = [
            (span.start_s, span.stop_s, _kind(span.status, span.duplicate))
            for span in run.spans
            if span.device == device.name
        ]
    return rows


def _kind(status: str, is_copy: bool) -> str:
    return "lost" if status == "lost" else "copy" if is_copy else "work"


def _legend() -> str:
    work, copy, wait = ("█▓", "▒", "·") if has_blocks() else ("#=", "c", ".")
    return f"{work} chunks in turn, {copy} copy, {wait} waiting, x lost"
