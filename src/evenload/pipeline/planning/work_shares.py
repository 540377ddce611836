"""Share the work of stages over devices that are unequally good at them: a small linear program.

    maximise f  subject to   sum of rate * y over the ways of stage s  >=  f * tasks of s     for each stage
                             sum of uses * y over the ways             <=  devices of kind k  for each kind

``y`` says how many times each way is in use, from the start to the end. All tasks can be done if f >= 1. The
prices that the dual gives to tasks prove that no other shares do more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_TINY = 1e-9  # smaller entries are no pivots
_ROUNDING = 1e-12
_MOST_PIVOTS = 2000


@dataclass(frozen=True, slots=True)
class Way:
    """One way to work on a stage. ``rate``: tasks by the end; ``uses``: (kind of device, number) each."""

    stage: int
    rate: float
    uses: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class WorkShares:
    """The best shares. ``done``: f above; ``used``: y of each way; ``prices``: of a task of each stage."""

    done: float
    used: tuple[float, ...]
    prices: tuple[float, ...]


def share_work(ways: Sequence[Way], n_tasks: Sequence[float], n_devices: Sequence[int]) -> WorkShares:
    """Return the shares with which the largest part of the tasks of every stage is done.

    n_tasks    of each stage
    n_devices  of each kind
    """
    most = [min(n_devices[kind] / n for kind, n in way.uses) for way in ways]  # times that it can be in use
    able = [0.0] * len(n_tasks)  # tasks of each stage that all devices could do if they did nothing else
    for way, n in zip(ways, most, strict=True):
        able[way.stage] += way.rate * n
    open_stages = [stage for stage, n in enumerate(n_tasks) if n]
    top = min((able[stage] / n_tasks[stage] for stage in open_stages), default=0.0)
    if top <= 0:
        return WorkShares(0.0, (0.0,) * len(ways), (0.0,) * len(n_tasks))
    # Everything is scaled to about 1: f by `top`, y by `most`, each row by what it could be.
    n_rows, n_ways = len(n_tasks) + len(n_devices), len(ways)
    table = np.zeros(
        (n_rows + 1, 1 + n_ways + n_rows + 1)
    )  # f, ways, slacks, right side; last row: objective
    for stage in open_stages:
        table[stage, 0] = n_tasks[stage] * top / able[stage]
    for at, (way, n_most) in enumerate(zip(ways, most, strict=True), start=1):
        table[way.stage, at] = -way.rate * n_most / (able[way.stage] or 1.0)
        for kind, n in way.uses:
            table[len(n_tasks) + kind, at] = n * n_most / n_devices[kind]
    table[:n_rows, 1 + n_ways : 1 + n_ways + n_rows] = np.eye(n_rows)
    table[len(n_tasks) : n_rows, -1] = 1.0
    table[-1, 0] = -1.0
    basis = _solve(table, list(range(1 + n_ways, 1 + n_ways + n_rows)))
    values = np.zeros(table.shape[1])
    values[basis] = table[:n_rows, -1]
    used = [float(value) * n for value, n in zip(values[1 : 1 + n_ways], most, strict=True)]
    _add_least(used, ways, [float(values[0]) * top * n for n in n_tasks])
    duals = table[-1, 1 + n_ways : 1 + n_ways + len(n_tasks)].tolist()
    prices = tuple(max(0.0, dual) / able[s] if able[s] else 0.0 for s, dual in enumerate(duals))
    return WorkShares(float(values[0]) * top, tuple(used), prices)


def _add_least(used: list[float], ways: Sequence[Way], n_due: Sequence[float]) -> None:
    """Give its fastest way to what a stage lacks of ``n_due`` tasks: less than ``_TINY`` of all devices."""
    for stage, due in enumerate(n_due):
        mine = [at for at, way in enumerate(ways) if way.stage == stage]
        missing = due - sum(ways[at].rate * used[at] for at in mine)
        if missing > 0:
            fastest = max(mine, key=lambda at: ways[at].rate)
            used[fastest] += missing / ways[fastest].rate


def _solve(table: np.ndarray, basis: list[int]) -> list[int]:
    """Pivot until no column improves the objective; Bland's rule after ties, so that it ends."""
    n_stalled = 0
    for _ in range(_MOST_PIVOTS):
        costs = table[-1, :-1]
        wanted = np.flatnonzero(costs < -_ROUNDING)
        if not len(wanted):
            break
        column = int(wanted[0]) if n_stalled > len(basis) else int(np.argmin(costs))
        entries = table[:-1, column]
        rows = np.flatnonzero(entries > _TINY)
        if not len(rows):
            break  # no bound: nothing is to be done
        ratios = table[rows, -1] / entries[rows]
        least = float(ratios.min())
        row = min(rows[ratios <= least + _ROUNDING].tolist(), key=basis.__getitem__)
        n_stalled = n_stalled + 1 if least <= _ROUNDING else 0
        pivot = table[row] / table[row, column]
        table -= table[:, column, None] * pivot
        table[row] = pivot
        basis[row] = column
    return basis
