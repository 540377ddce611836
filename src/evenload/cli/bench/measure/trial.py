"""One trial's outcome, what all trials are told, and the arithmetic that they share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenload.balance.metrics import amdahl, speed_up

__all__ = ["Setting", "Trial", "compared", "quickest"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """``specs``: device selections to measure, from one device to all; ``n_workers`` for what has no devices.

    ``is_quick``: sizes that keep the whole under a minute on two cores; they say less.
    """

    specs: tuple[str, ...]
    n_workers: int
    is_quick: bool
    has_peers: bool = True


@dataclass(frozen=True)
class Trial:
    """``rows`` have equal keys; ``skipped`` is why there are none; ``note`` says what was done."""

    name: str
    title: str
    rows: Sequence[Row] = ()
    note: str = ""
    skipped: str = ""
    hint: str = ""
    missing: Sequence[str] = field(default=())
    took_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("name", "title", "rows", "note", "skipped", "hint", "missing", "took_s")
        }


def compared(rows: Sequence[Row], start_s: float = 0.0) -> list[Row]:
    """``rows`` (devices, n, work_s, ...) with speed-up, efficiency and Amdahl's prediction against the first.

    start_s  the part of the first row's time that more devices cannot shorten
    """
    base = rows[0]
    share = base["work_s"] / (base["work_s"] + start_s) if base["work_s"] + start_s > 0 else 1.0
    done = []
    for row in rows:
        n = row["n"] / base["n"]
        faster = speed_up(base["work_s"] + start_s, row["work_s"] + start_s)
        more = {"speed_up": faster, "efficiency": faster / n, "amdahl": amdahl(share, max(1.0, n))}
        done.append({**row, **more})
    return done


def quickest(work: Callable[[], Any], n: int) -> tuple[float, float]:
    """Wall and CPU seconds (of this process) of the quickest of ``n`` calls, after one that warms up."""
    work()
    spent = []
    for _ in range(n):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        spent.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(spent)
