"""What ``pipeline_run`` measured last, put into docs/explanation/pipelines.md between its marks.

python benchmarks/pipeline_tables.py
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from record import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "pipelines.md"
FLEETS = {"even": "4 equal", "unequal": "6 at 1, 1, 1, ½, ½, ¼"}
MARKS = re.compile(r"(<!-- table: pipeline_run -->\n).*?(<!-- end of table -->)", re.DOTALL)


def main() -> None:
    page = json.loads((RESULTS / "pipeline_run.json").read_text())
    rows = page["rows"]
    text = f"{table(rows)}\n\n{origin(page, rows)}\n"
    PAGE.write_text(MARKS.sub(lambda marks: marks[1] + text + marks[2], PAGE.read_text()))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each fleet and draw: each way's makespan over the bound."""
    cases: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["fleet"] in FLEETS:
            cases.setdefault((row["fleet"], row["draw"]), {})[row["way"]] = row
    ways = list(next(iter(cases.values())))
    lines = ["| fleet | items | bound | " + " | ".join(ways) + " |", "|---|--:|--:|" + "--:|" * len(ways)]
    for (fleet, _), found in cases.items():
        first = found[ways[0]]
        cells = [FLEETS[fleet], str(first["items"]), f"{first['bound_s']:.1f} s"]
        cells += [
            f"{'**' * (way == ways[0])}{found[way]['ratio']:.3f}{'**' * (way == ways[0])}" for way in ways
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def origin(page: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    own = next(row for row in rows if row["fleet"] == "overhead")
    machine, load = page["machine"], ""
    if "load_average" in page:
        load = f", load average {page['load_average']:.1f}"
    return (
        f"With stages that do nothing, an item and a stage take {own['wall_s']:.2f} ms on one worker.\n"
        f"{machine['cpu']}, {machine['cores']} cores{load}, {page['date']}: `{page['command']}`"
    )


if __name__ == "__main__":
    main()
