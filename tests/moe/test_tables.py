"""docs/moe.md holds the tables that the committed results make."""

import runpy
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_page_shows_what_was_measured_last(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    tables = runpy.run_path(str(BENCHMARKS / "moe_tables.py"), run_name="moe_tables")
    page = tables["PAGE"].read_text(encoding="utf-8")
    assert all(f"<!-- table: {name} -->" in page for name in tables["TABLES"])
    assert tables["filled"](page) == page, "run: python benchmarks/moe_tables.py"
    sys.modules.pop("record", None)
