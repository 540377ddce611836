"""The tables of docs/explanation/policies.md, for docs_tables.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from result_files import Page

__all__ = ["TABLES"]

FLEETS = ("4 equal", "8 equal", "5 and 1 at half", "4 and 4 at half")
ITEMS = {"60, 1.0": "60 items", "300, 0.3": "300 items alike", "300, 1.0": "300 items"}
WORKLOADS = {"big": "*big*", "8 equal: 60, 1.0": "60 on 8 equal devices"}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], n_words: int = 1) -> str:
    """A table: the first ``n_words`` columns to the left, numbers to the right."""
    marks = ["---"] * n_words + ["--:"] * (len(head) - n_words)
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "|".join(marks) + "|",
                      *("| " + " | ".join(row) + " |" for row in rows)])  # fmt: skip


def efficiencies(pages: Sequence[Page]) -> str:
    rows = pages[0]["rows"]
    columns = [name for name in rows[0] if name not in ("policy", "told") and not name.endswith(" worst")]
    lines = []
    for row in rows:
        mark = "**" if row["policy"] == "measured" else ""
        policy = f"{mark}{row['policy']}{mark}"
        lines.append([policy, row["told"], *(f"{mark}{row[name]:.2f}{mark}" for name in columns)])
    return markdown(["policy", "told", *columns], lines, 2)


def fleets(pages: Sequence[Page]) -> str:
    columns = {f"{fleet}: {said}": f"{fleet}: {items}" for fleet in FLEETS for items, said in ITEMS.items()}
    rows: Sequence[Mapping[str, Any]] = pages[0]["fleets"]
    lines = [[row["policy"], *(f"{row[key]:.2f}" for key in columns.values())] for row in rows]
    return markdown(["policy", *columns], lines)


def learned(pages: Sequence[Page]) -> str:
    lines = []
    for row in pages[0]["rows"]:
        noise = row["noise"]
        told = (
            "no feature tells anything"
            if isinstance(noise, str)
            else f"{100 * noise:.0f} %"
            if noise
            else "none"
        )
        mark = "" if isinstance(noise, str) else "**"
        cells = [f"{mark}{row['first']:.2f}{mark}", f"{row['in order']:.2f}"]
        cells += [f"{mark}{row['later']:.2f}{mark}", f"{row['later in order']:.2f}"]
        lines.append([WORKLOADS[row["workload"]], told, *cells])
    head = ["items", "noise", "first program", "in input order", "later programs", "in input order"]
    return markdown(head, lines, 2)


TABLES = {
    "schedule_simulation": efficiencies,
    "schedule_simulation_fleets": (fleets, ("schedule_simulation",)),
    "schedule_simulation_learned": learned,
}
