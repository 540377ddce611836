"""The pages hold the tables that the committed results make."""

import runpy
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_page_shows_what_was_measured_last(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    tables = runpy.run_path(str(BENCHMARKS / "moe_tables.py"), run_name="moe_tables")
    pages = [page.read_text(encoding="utf-8") for page in tables["PAGES"]]
    assert all(sum(f"<!-- table: {name} -->" in page for page in pages) == 1 for name in tables["TABLES"])
    for page in pages:
        assert tables["filled"](page) == page, "run: python benchmarks/moe_tables.py"
    sys.modules.pop("record", None)
