"""Writes the tables of docs/explanation/executor-speed.md from benchmarks/results.

    python benchmarks/executor_tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``, NAME being that of its result. A result
that is not there leaves its table as it is.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "executor-speed.md"
RESULTS = ROOT / "benchmarks" / "results"

COLUMNS = {  # by result: key, heading, decimals
    "executor_overhead": (
        ("peer", "", None),
        ("default_us", "default, µs", 2),
        ("default_cpu_us", "CPU, µs", 2),
        ("one by one_us", "one by one, µs", 1),
        ("one by one_cpu_us", "CPU, µs", 1),
        ("start_s", "first result, s", 3),
        ("start_cpu_s", "CPU, s", 2),
        ("close_s", "close, s", 2),
    ),
    "executor_transport": (
        ("peer", "", None),
        ("streamed_gb_s", "streamed, GB/s", 2),
        ("streamed_cpu_ms", "CPU, ms per item", 1),
        ("kept_gb_s", "all kept, GB/s", 2),
        ("kept_cpu_ms", "CPU, ms per item", 1),
    ),
    "executor_startup": (
        ("start", "", None),
        ("bare_first_ms", "first result, ms", 0),
        ("bare_replace_ms", "replaced, ms", 0),
        ("torch_first_ms", "first result with torch, ms", 0),
        ("torch_replace_ms", "replaced with torch, ms", 0),
    ),
    "executor_memory": (
        ("peer", "", None),
        ("stream growth_mb", "tiny items, MB", 0),
        ("stream us_per_item", "µs per item", 2),
        ("slow reader growth_mb", "slow reader, MB", 0),
    ),
}


def table(name: str) -> str:
    page = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    columns = COLUMNS[name]
    lines = [
        "| " + " | ".join(heading for _, heading, _ in columns) + " |",
        "|---|" + "--:|" * (len(columns) - 1),
        *("| " + " | ".join(cell(row.get(key), n) for key, _, n in columns) + " |" for row in page["rows"]),
    ]
    load = f", load average {page['load_average']:.1f}" if "load_average" in page else ""
    machine = page["machine"]
    lines += ["", f"{machine['cpu']}, {machine['cores']} cores{load}, {page['date']}: `{page['command']}`"]
    return "\n".join(lines)


def cell(value: Any, decimals: int | None) -> str:
    if value is None:
        return "–"
    return str(value) if decimals is None else f"{value:,.{decimals}f}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in COLUMNS:
        if (RESULTS / f"{name}.json").exists():
            pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
            filled = table(name)
            text, n = re.subn(
                pattern, lambda found, new=filled: f"{found[1]}{new}\n{found[2]}", text, flags=re.S
            )
            assert n == 1, f"{name} has {n} places on the page"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
