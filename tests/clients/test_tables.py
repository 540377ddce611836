"""The tables in the page are those of the results that are committed."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return runpy.run_path(str(ROOT / "benchmarks" / "clients_tables.py"), run_name="clients_tables")


def test_the_page_shows_what_was_measured_last(tables):
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert all(f"<!-- table: {name} -->" in page for name in tables["TABLES"])
    assert tables["filled"](page) == page, "run: python benchmarks/clients_tables.py"


def test_how_far_auto_is_from_the_best_by_hand(tables):
    took = {"plain torch": 5.0, "serial": 8.0, "fused:4": 2.0, "fused:8": 4.0, "auto": 2.2}
    rows = [
        {"model": "m", "clients": 4, "strategy": name, "ran": name, "clock, ms": ms}
        for name, ms in took.items()
    ]
    line = tables["auto"]([{"rows": rows}]).splitlines()[-1]
    assert line == "| m | 4 | auto | fused:4 | 10 % | 3.64 |"
