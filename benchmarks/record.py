"""Writes what a benchmark measured, with what it was measured on, to ``benchmarks/results/<name>.json``."""

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload.cli.bench.measure.machine import cpu_model, package_versions
from evenload.cli.terminal.table import format_table

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: Sequence[Mapping[str, Any]], **extra: Any) -> Path:
    """Print ``rows`` as a table; write them, ``extra`` facts, the machine, versions, date and command."""
    print_table(rows)
    page = {
        "name": name,
        "rows": list(rows),
        **extra,
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": package_versions("evenload", "numpy", "click", "numba", "scipy", "torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of equal keys, aligned: numbers to the right, three decimals at most."""
    if not rows:
        return
    head = list(rows[0])
    numbers = [key for key in head if any(isinstance(row.get(key), int | float) for row in rows)]
    cells = [[_text(row.get(key)) for key in head] for row in rows]
    print("\n".join(format_table(head, cells, right=numbers)))


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
