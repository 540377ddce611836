"""The tables of docs/explanation/pipelines.md, for docs_tables.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from policy_tables import markdown
from result_files import Page

__all__ = ["TABLES"]

FLEETS = {"even": "4 equal", "unequal": "6 at 1, 1, 1, ½, ½, ¼"}
KINDS = {
    "kinds": "four kinds of device",
    "scattered": "speeds scattered within a kind",
    "whole": "stages that only some kinds hold whole",
}
SHOWN_ITEMS = (50, 250)
NAMES = {"5 + one at half": "5 + one at ½", "16: 8, 4 at 1/2, 4 at 1/4": "16 at 1, ½, ¼"}
FROM = {"traced": "trace", "probe": "probe"}


def run(pages: Sequence[Page]) -> str:
    """A line for each fleet and draw: each way's makespan over the bound."""
    rows = pages[0]["rows"]
    cases: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["fleet"] in FLEETS:
            cases.setdefault((row["fleet"], row["draw"]), {})[row["way"]] = row
    ways = list(next(iter(cases.values())))
    lines = []
    for (fleet, _), found in cases.items():
        first = found[ways[0]]
        cells = [
            f"{'**' * (way == ways[0])}{found[way]['ratio']:.3f}{'**' * (way == ways[0])}" for way in ways
        ]
        lines.append([FLEETS[fleet], str(first["items"]), f"{first['bound_s']:.1f} s", *cells])
    own = next(row for row in rows if row["fleet"] == "overhead")
    said = f"With stages that do nothing, an item and a stage take {own['wall_s']:.2f} ms on one worker."
    return f"{markdown(['fleet', 'items', 'bound', *ways], lines)}\n\n{said}"


def planned(pages: Sequence[Page]) -> str:
    """The fleets that were chosen, without those of chance; the worst of all below."""
    rows = pages[0]["rows"]
    lines = []
    for row in rows:
        if row["fleet"].startswith("random") or row["items"] not in SHOWN_ITEMS:
            continue
        peers = (f"{row[name]:.2f}" for name in ("round_robin", "barrier", "fixed_pools"))
        first = [
            row["case"],
            NAMES.get(row["fleet"], row["fleet"]),
            str(row["items"]),
            f"{row['bound_s']:.0f} s",
        ]
        lines.append([*first, f"**{row['ratio']:.3f}**", *peers])
    head = ["case", "fleet", "items", "bound", "plan", "round-robin", "barrier", "fixed pools"]
    few, many = (
        [row["ratio"] for row in rows if (row["items"] >= 100) == is_many] for is_many in (False, True)
    )
    said = (
        f"Worst over all {len(rows)} rows, random fleets included: **{max(many):.3f}** from 100 items "
        f"(mean {sum(many) / len(many):.3f}), **{max(few):.3f}** at fewer."
    )
    return f"{markdown(head, lines, 2)}\n\n{said}"


def large(pages: Sequence[Page]) -> str:
    found: dict[tuple[int, int], dict[str, Mapping[str, Any]]] = {}
    for row in pages[0]["rows"]:
        found.setdefault((row["items"], row["devices"]), {})[row["case"]] = row
    lines = [
        [f"{n:,}, {devices}", *(f"{by[kind]['plan_cpu_s']:.1f} s, {by[kind]['ratio']:.3f}" for kind in KINDS)]
        for (n, devices), by in found.items()
    ]
    return markdown(["items, devices", *KINDS.values()], lines)


def predicted(pages: Sequence[Page]) -> str:
    page = pages[0]
    lines = []
    for row in page["rows"]:
        is_memory = row["what"] == "memory"
        if not is_memory and row["stage"] != "all":
            continue
        stage = row["stage"] if is_memory else f"all, {row['kind']}"
        digits = 1 if is_memory else 2
        cells = [f"{row[name]:.{digits}f} {row['unit']}" for name in ("predicted", "measured")]
        off = f"{100 * row['off']:+.1f} %".replace("-", "−")
        off = "0.0 %" if off[1:] == "0.0 %" else off
        lines.append([stage, ("" if is_memory else "time, ") + FROM[row["from"]], *cells, off])
    return markdown(["stage", "activations from", "predicted", "measured", "off"], lines, 2)


TABLES = {
    "pipeline_run": run,
    "pipeline_planner": planned,
    "pipeline_planner_large": large,
    "pipeline_prediction": predicted,
}
