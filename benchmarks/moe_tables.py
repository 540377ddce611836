"""Put what the MoE benchmarks measured last into their pages, between the marks of each table.

    python benchmarks/moe_tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``; NAME is a file in results/.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from record import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = DOCS / "moe.md", DOCS / "how-to" / "moe-in-engines.md"
Row = Mapping[str, Any]


def table(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row], n_words: int = 1) -> str:
    """Markdown: the first ``n_words`` columns to the left, numbers to the right."""
    marks = ["---"] * n_words + ["--:"] * (len(columns) - n_words)
    lines = [list(columns), marks, *([cell(row) for cell in columns.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- |", "|---|") for line in lines)


def figure(name: str, digits: int) -> Callable[[Row], str]:
    return lambda row: f"{row[name]:,.{digits}f}"


def words(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])


def routing(rows: list[Row]) -> str:
    columns = {
        "instance (slots on GPUs)": words("instance"),
        "one layer, µs a call": figure("one layer us", 1),
        "all layers, µs a call": figure("all layers us", 0),
        "times HiGHS": figure("times HiGHS", 0),
        "load, equal split": figure("equal split", 3),
        "load, interior point (worst gap)": lambda r: (
            f"{r['interior point']:.3f} ({r['its worst gap %']:.1f} %)"
        ),
        "load, exact": figure("exact", 4),
        "bound": figure("bound", 4),
    }
    return table(columns, rows)


def policy(rows: list[Row]) -> str:
    columns = {
        "slots, GPUs, nodes": lambda r: f"{r['slots']}, {r['GPUs']}, {r['nodes']}",
        "planner": words("planner"),
        "CPU ms, 58 layers": figure("CPU ms", 2),
        "imbalance": figure("imbalance", 4),
        "worst layer": figure("worst layer", 4),
        "experts twice on a GPU": words("twins"),
    }
    return table(columns, rows, 2)


def search(rows: list[Row]) -> str:
    columns = {
        "trace, GPUs, slots": lambda r: f"{r['trace']}, {r['GPUs']}, {r['slots']}",
        "placement": words("placement"),
        "mean": figure("mean", 4),
        "p99": figure("p99", 3),
        "worst": figure("worst", 3),
        "CPU ms a layer": figure("CPU ms a layer", 1),
    }
    return table(columns, rows, 2)


def nodes(rows: list[Row]) -> str:
    columns = {"placement": words("placement"), "split equally": figure("split equally", 3)}
    columns |= {"routed": figure("routed", 3), "CPU ms a layer": figure("CPU ms a layer", 1)}
    return table(columns, rows)


def moves(rows: list[Row]) -> str:
    columns = {
        "case": words("case"),
        "plan": words("plan"),
        "slots refilled": lambda r: f"{r['slots refilled %']:.1f} %",
        "batches of transfers": words("batches"),
        "imbalance, planned on": figure("recent", 4),
        "imbalance, later": figure("later", 4),
        "CPU ms a layer": figure("CPU ms a layer", 1),
    }
    return table(columns, rows, 2)


def engines(rows: list[Row]) -> str:
    columns = {"traffic, tokens a batch": lambda r: f"{r['traffic']}, {r['tokens']:,}"}
    heads = {
        "EPLB, split equally": "EPLB, equal split",
        "EPLB, by hash": "EPLB, hash",
        "EPLB, in turn": "EPLB, in turn",
        "search, by hash": "search, hash",
        "weights": "search, weights",
        "weights, own tokens": "weights, own tokens",
        "weights, evened out": "weights, evened out",
        "weights, own tokens, summed counts": "the same, own tokens",
        "exact": "search, exact",
    }
    return table(columns | {head: figure(name, 3) for name, head in heads.items()}, rows)


TABLES = {
    "moe_engines": engines,
    "moe_routing": routing,
    "moe_placement_policy": policy,
    "moe_placement_search": search,
    "moe_placement_nodes": nodes,
    "moe_placement_moves": moves,
}


def filled(text: str) -> str:
    """The page with every marked table made anew."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        rows = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        return f"<!-- table: {name} -->\n{TABLES[name](rows)}\n<!-- end of table -->"

    return re.sub(r"<!-- table: (?P<name>\w+) -->.*?<!-- end of table -->", fill, text, flags=re.DOTALL)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
