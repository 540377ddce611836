"""The tables of docs/moe-measured.md and of the how-tos on engines and clones, for docs_tables.py."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from result_files import Page

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


def dispatch(rows: list[Row]) -> str:
    columns = {
        "slots on ranks": lambda r: f"{r['slots']} on {r['ranks']}",
        "tokens a rank": words("tokens a rank"),
        "whole tokens": figure("whole tokens %", 3),
        "intervals": figure("intervals %", 3),
        "dithered sums": figure("dithered %", 2),
        "sampled": figure("sampled %", 2),
        "rounded by each rank": figure("floored %", 2),
        "equal odds": figure("equal %", 2),
    }
    return table(columns, rows)


def planner(rows: list[Row]) -> str:
    columns = {
        "experts, slots, ranks": lambda r: f"{r['experts']}, {r['slots']}, {r['ranks']}",
        "tokens, ids": lambda r: f"{r['tokens']}, {r['ids']}",
        "µs a call": figure("us a call", 1),
        "with a counter for each slot": figure("us with counter", 1),
        "million tokens/s": figure("million tokens/s", 1),
        "million ids/s": figure("million ids/s", 1),
    }
    return table(columns, rows)


def clones(rows: list[Row]) -> str:
    columns = {
        "traffic": words("traffic"),
        "ranks": words("ranks"),
        "tokens a rank": lambda row: f"{row['tokens a rank']:,}",
    }
    for name in ("none", "hash", "EPLB + LP", "largest first", "evenload"):
        columns[name] = figure(name, 3)
    columns["fetches (bound)"] = lambda row: f"{row['fetches']:.1f} ({row['fetch bound']:.1f})"
    return table(columns | {"gap": lambda row: f"{row['gap %']:.1f} %", "µs": figure("plan us", 1)}, rows)


def of_rows(make: Callable[[list[Row]], str]) -> Callable[[Sequence[Page]], str]:
    """``make`` of the rows of the only result."""
    return lambda pages: make(list(pages[0]["rows"]))


CLONES = {"moe_clones": of_rows(clones)}
ENGINES = {"moe_engines": of_rows(engines)}
TABLES = {
    "moe_routing": of_rows(routing),
    "moe_placement_policy": of_rows(policy),
    "moe_placement_search": of_rows(search),
    "moe_placement_nodes": of_rows(nodes),
    "moe_placement_moves": of_rows(moves),
    "moe_dispatch": of_rows(dispatch),
    "moe_planner": of_rows(planner),
}
