"""What an executor costs: tasks that do nothing, and arrays that are only sent round."""

import time
from typing import Any

from evenload._optional import is_installed
from evenload.cli.bench.measure.peers import PEERS, missing_peers, same
from evenload.cli.bench.measure.trial import Setting, Trial

__all__ = ["overhead", "transport"]

MIB = 1 << 20


def overhead(setting: Setting) -> Trial:
    """Microseconds per task, workers warm; every library with its own or a fair chunk size."""
    n = 20_000 if setting.is_quick else 100_000
    rows = _rows(setting, list(range(n)), 250, 2 if setting.is_quick else 5)
    shown = [
        {"executor": name, "start_s": start_s, "us_per_task": best_s / n * 1e6, "tasks_per_s": n / best_s}
        for name, start_s, best_s in rows
    ]
    note = (
        f"{n:,} tasks that return their argument, {setting.n_workers} workers, results in order; wall time, "
        "best of the rounds. Others get chunks of 250; evenload chooses its own, joblib too."
    )
    return Trial("executor", "", shown, note, missing=missing_peers())


def transport(setting: Setting) -> Trial:
    """MiB a second to workers and back: what a task costs that only looks at an array."""
    import numpy as np

    n_mib = 64 if setting.is_quick else 512
    arrays = [np.full(MIB // 8, i, dtype=np.float64) for i in range(n_mib)]
    rows = _rows(setting, arrays, 1, 1 if setting.is_quick else 3)
    shown = [
        {"executor": name, "mib_per_s": 2 * n_mib / best_s, "ms_per_mib": best_s / (2 * n_mib) * 1e3}
        for name, _, best_s in rows
    ]
    note = f"{n_mib} arrays of 1 MiB to {setting.n_workers} workers and back again, one task each."
    return Trial("transport", "", shown, note, missing=missing_peers())


def _rows(setting: Setting, items: list[Any], chunk: int, n_rounds: int) -> list[tuple[str, float, float]]:
    """Name, seconds to the first result of new workers, least seconds for all items."""
    rows = []
    for name, (package, make) in PEERS.items():
        if not is_installed(package) or (name != "evenload" and not setting.has_peers):
            continue
        began = time.perf_counter()
        with make(setting.n_workers) as run:
            run(same, items[: setting.n_workers], 1)
            start_s, spent = time.perf_counter() - began, []
            for _ in range(n_rounds):
                began = time.perf_counter()
                n_results = len(run(same, items, chunk))
                spent.append(time.perf_counter() - began)
                if n_results != len(items):
                    raise AssertionError(f"{name} lost results")
        rows.append((name, start_s, min(spent)))
    return rows
