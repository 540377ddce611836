"""The figures of docs/zk.md are those that were recorded."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables():
    spec = importlib.util.spec_from_file_location("zk_tables", ROOT / "benchmarks" / "zk_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_holds_what_was_recorded(tables):
    page = tables.PAGE.read_text(encoding="utf-8")
    assert page == tables.rewritten(page), "run python benchmarks/zk_tables.py"
    assert all(f"<!-- table: {name} -->" in page for name in tables.TABLES)
    assert page.count("<!-- end -->") == len(tables.TABLES)


def test_a_mark_without_a_table_is_an_error(tables):
    with pytest.raises(SystemExit, match="zk_wishes"):
        tables.rewritten("<!-- table: zk_wishes -->\n<!-- end -->")
