"""What an executor costs: tasks that do nothing, and arrays that are only sent round."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from evenload._optional import is_installed
from evenload.cli.bench.measure.peers import PEERS, missing_peers
from evenload.cli.bench.measure.timing import least_time
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport

MIB = 1 << 20


def same(item: Any) -> Any:
    return item


def overhead(options: BenchOptions) -> TrialReport:
    """Microseconds per task, workers warm; every library with its own or a fair chunk size."""
    n = 20_000 if options.is_quick else 100_000
    rows = [
        {"executor": name, "start_s": start_s, "us_per_task": 1e6 * map_s / n, "tasks_per_s": n / map_s}
        for name, start_s, map_s in _time_peers(options, range(n), 250, 2 if options.is_quick else 5)
    ]
    note = (
        f"{n:,} tasks that return their argument, {options.n_workers} workers, results in order; wall time, "
        "best of the rounds. Others get chunks of 250; evenload chooses its own, joblib too."
    )
    return TrialReport("executor", "", rows, note, missing=missing_peers())


def transport(options: BenchOptions) -> TrialReport:
    """MiB a second to workers and back: what a task costs that only looks at an array."""
    import numpy as np

    n_mib = 64 if options.is_quick else 512
    arrays = [np.full(MIB // 8, i, dtype=np.float64) for i in range(n_mib)]
    rows = [
        {"executor": name, "mib_per_s": 2 * n_mib / map_s, "ms_per_mib": 500 * map_s / n_mib}
        for name, _, map_s in _time_peers(options, arrays, 1, 1 if options.is_quick else 3)
    ]
    note = f"{n_mib} arrays of 1 MiB to {options.n_workers} workers and back again, one task each."
    return TrialReport("transport", "", rows, note, missing=missing_peers())


def _time_peers(
    options: BenchOptions, items: Sequence[Any], chunk: int, n_rounds: int
) -> list[tuple[str, float, float]]:
    """Name, seconds to the first result of new workers, least seconds for all items."""
    found = []
    for name, kind in PEERS.items():
        is_there = not kind.package or is_installed(kind.package)
        if not is_there or (name != "evenload" and not options.has_peers):
            continue
        began = time.perf_counter()
        peer = kind()
        peer.start(options.n_workers)
        with contextlib.closing(peer):
            list(peer.imap(same, items[: options.n_workers], 1))
            start_s = time.perf_counter() - began
            own = None if kind.has_own_chunks else chunk
            best = least_time(
                lambda one=peer, own=own: list(one.imap(same, items, own)), n_rounds, warms_up=False
            )
            if len(best.result) != len(items):
                raise AssertionError(f"{name} lost results")
            found.append((name, start_s, best.wall_s))
    return found
