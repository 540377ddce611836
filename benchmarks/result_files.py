"""The files of results: where they are, what is said of where a table comes from, several runs as one."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = ROOT / "benchmarks" / "results"
RESULTS = Path(os.environ.get("EVENLOAD_BENCHMARK_RESULTS") or COMMITTED)  # where a run writes to
MOST_OF_OTHERS = 0.05  # of the processors, while a benchmark runs
SHOWN_COLUMNS = 5

Page = Mapping[str, Any]


def read(name: str, folder: Path | None = None) -> Page:
    """The result ``name``. Raises FileNotFoundError if there is none."""
    return json.loads(((folder or COMMITTED) / f"{name}.json").read_text(encoding="utf-8"))


def is_quiet(page: Page) -> bool | None:
    """Whether nothing else ran, or nothing of it depends on that; None if that was not noted."""
    if page.get("is_of_speed") is False:
        return True
    load = page.get("load")
    if not isinstance(load, Mapping) or "share_of_others" not in load:
        return None
    return load["share_of_others"] <= MOST_OF_OTHERS


def origin(page: Page) -> str:
    """A line for below a table: processor and kernels, what else ran, how far runs differ, day, command."""
    machine = page["machine"]
    kernels = machine.get("kernels")
    parts = [machine["cpu"] + (f" (kernels {kernels})" if kernels else ""), f"{machine['cores']} cores"]
    parts += [f"Ray {page['ray']}"] if "ray" in page else []
    return f"*{', '.join(parts)}; {_leisure(page)}{_spread_text(page)}; {page['date']}: `{page['command']}`*"


def _leisure(page: Page) -> str:
    load = page.get("load", page.get("load_average"))
    if page.get("is_of_speed") is False:
        return "counts, which do not depend on how busy the machine was"
    if is_quiet(page) is None:
        number = f" (load average {load:.1f})" if isinstance(load, int | float) else ""
        return f"what else ran was not noted{number}"
    return "nothing else running" if is_quiet(page) else "other programs ran"


def _spread_text(page: Page) -> str:
    n_runs, spread = page.get("runs", 1), page.get("spread") or {}
    if n_runs < 2:
        return ""
    moved = sorted(((most, name) for name, most in spread.items() if most > 0), reverse=True)
    said = ", ".join(
        f"{name} {100 * most:{'.0f' if most >= 1 else '.2g'}} %" for most, name in moved[:SHOWN_COLUMNS]
    )
    more = f", {len(moved) - SHOWN_COLUMNS} columns less" if len(moved) > SHOWN_COLUMNS else ""
    return f"; medians of {n_runs} runs, which differ by at most: {said or 'nothing'}{more}"


def combined(pages: Sequence[Page]) -> dict[str, Any]:
    """Several runs of one benchmark as one result: each number is the median of the runs'.

    ``spread`` has, by column, the largest difference between runs over the median, of all rows. If runs have
    other rows, the last one is taken as it is, and ``runs_differ`` says so.
    """
    last = dict(pages[-1])
    tables = [name for name, value in last.items() if _is_table(value)]
    if any(_shape(page.get(name)) != _shape(last[name]) for page in pages for name in tables):
        return {**last, "runs_differ": True}
    spread: dict[str, float] = {}
    for name in tables:
        rows = zip(*(page[name] for page in pages), strict=True)
        last[name] = [_median_row(one, spread if name == "rows" else {}) for one in rows]
    shares = [
        page["load"]["share_of_others"] for page in pages if is_quiet(page) is not None and "load" in page
    ]
    if shares:
        last["load"] = {**last["load"], "share_of_others": max(shares)}
    return {**last, "runs": len(pages), "spread": spread}


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _shape(rows: Any) -> Any:
    return [tuple(row) for row in rows] if _is_table(rows) else None


def _median_row(runs: Sequence[Mapping[str, Any]], spread: dict[str, float]) -> dict[str, Any]:
    row = dict(runs[-1])
    for key in row:
        values = [run[key] for run in runs]
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
            continue
        row[key] = statistics.median_low(values) if len(values) % 2 == 0 else statistics.median(values)
        if row[key]:
            moved = (max(values) - min(values)) / abs(row[key])
            spread[key] = max(spread.get(key, 0.0), round(moved, 4))
    return row
