"""Writes what a benchmark measured, with what it was measured on, to ``benchmarks/results/<name>.json``."""

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: Sequence[Mapping[str, Any]], **extra: Any) -> Path:
    """Print ``rows`` as a table; write them, ``extra`` facts, the machine, versions, date and command."""
    print_table(rows)
    page = {
        "name": name,
        "rows": list(rows),
        **extra,
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            **_versions("evenload", "numpy", "click", "numba", "scipy", "torch"),
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of equal keys, aligned: numbers to the right, three decimals at most."""
    if not rows:
        return
    head = list(rows[0])
    cells = [[_text(row.get(key)) for key in head] for row in rows]
    widths = [max(len(line[c]) for line in [head, *cells]) for c in range(len(head))]
    is_number = [any(isinstance(row.get(key), int | float) for row in rows) for key in head]
    for line in [head, *cells]:
        padded = [t.rjust(w) if n else t.ljust(w) for t, w, n in zip(line, widths, is_number, strict=True)]
        print("  ".join(padded).rstrip())


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
