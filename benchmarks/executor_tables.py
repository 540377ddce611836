"""The tables of docs/explanation/executor-speed.md, faults.md and docs/how-to/ray.md, for docs_tables.py."""

from collections.abc import Sequence
from typing import Any

from policy_tables import markdown
from result_files import Page

__all__ = ["FAULTS", "RAY", "SPEED"]

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
    "executor_ray": (
        ("peer", "", None),
        ("first_s", "first result, s", 1),
        ("empty_us", "empty task, µs", 1),
        ("empty_cpu_us", "CPU, µs", 1),
        ("arrays_mb_s", "8 MB arrays, MB/s", 0),
        ("array_cpu_ms", "CPU, ms per item", 1),
        ("s60", "60 unequal items", 2),
        ("s300", "300 unequal items", 2),
    ),
    "executor_tiny_items": (
        ("part", "", None),
        ("evenload", "evenload, µs", 3),
        ("Pool.map", "multiprocessing.Pool.map, µs", 3),
    ),
    "integrations": (
        ("line", "", None),
        ("task, us", "empty task, µs", 1),
        ("8 MB, MB/s", "8 MB arrays, MB/s", 0),
        ("300 on 1:2:4:8", "300 unequal items on 1 : 2 : 4 : 8", 2),
    ),
    "executor_memory": (
        ("peer", "", None),
        ("stream growth_mb", "tiny items, MB", 0),
        ("stream us_per_item", "µs per item", 2),
        ("slow reader growth_mb", "slow reader, MB", 0),
        ("map growth_mb", "a map of 300 MB, MB", 0),
    ),
}


def figures(pages: Sequence[Page]) -> str:
    """The table of a result by its ``COLUMNS``."""
    columns = COLUMNS[pages[0]["name"]]
    rows = [[cell(row.get(key), n) for key, _, n in columns] for row in pages[0]["rows"]]
    return markdown([heading for _, heading, _ in columns], rows)


def faults(pages: Sequence[Page]) -> str:
    """What became of each fault, in words."""
    rows = pages[0]["rows"]
    return markdown(list(rows[0]), [[str(row[key]) for key in rows[0]] for row in rows], len(rows[0]))


def cell(value: Any, decimals: int | None) -> str:
    if value is None:
        return "–"
    return str(value) if decimals is None else f"{value:,.{decimals}f}"


SPEED = {name: figures for name in COLUMNS if name != "executor_ray"}
RAY = {"executor_ray": figures}
FAULTS = {"executor_faults": faults}
