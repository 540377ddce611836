"""The figures of docs/zk.md and docs/merkle.md are those that were recorded."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["zk_tables", "merkle_tables"])
def tables(request):
    shared = loaded("zk_tables")
    yield shared, shared if request.param == "zk_tables" else loaded(request.param)
    sys.modules.pop("zk_tables")


def test_the_page_holds_what_was_recorded(tables):
    shared, made = tables
    page = made.PAGE.read_text(encoding="utf-8")
    assert page == shared.rewritten(page, made.TABLES), f"run python {made.__file__}"
    assert all(f"<!-- table: {name} -->" in page for name in made.TABLES)
    assert page.count("<!-- end -->") == len(made.TABLES)


def test_a_mark_without_a_table_is_an_error(tables):
    with pytest.raises(SystemExit, match="wishes"):
        tables[0].rewritten("<!-- table: wishes -->\n<!-- end -->")
