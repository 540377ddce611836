"""Every table of measured figures in the docs is made of a committed result, and names the machine."""

import re
from pathlib import Path

import pytest
from loaded_programs import loaded

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
FIGURE = re.compile(r"[~<≤≥+−-]?\*{0,2}\d[\d.,]*(?:[ –x×%µa-zA-Z/()]{0,12}[\d.,]*)*\*{0,2}")
FEW = 0.2  # of the cells are figures in a table that is none of figures

# Tables of figures that nobody measured, by how they begin.
NOT_MEASURED = {
    "explanation/bounds.md": "| | gpu:0 × 0.4 |",  # worked out by hand, and by the program below it
    "explanation/same-bits.md": "| | inexact (DDP, float32) | exact |",  # on paper
    "gpu.md": "| published |",  # by others, each with its source
    "how-to/generate.md": "| `engine=` | what writes",  # defaults
    "how-to/moe-in-engines.md": "| engine | tested with",  # versions
}


@pytest.fixture(scope="module")
def made():
    """The modules of benchmarks/ that make the tables."""
    with loaded("benchmarks", "docs_tables", "result_files") as modules:
        yield modules


def is_of_figures(table: str) -> bool:
    cells = [cell.strip() for row in table.strip().split("\n")[2:] for cell in row.strip("|").split("|")[1:]]
    n = sum(bool(FIGURE.fullmatch(cell)) for cell in cells)
    return n >= 2 and n > FEW * len(cells)


def test_a_table_of_figures_has_a_result_behind_it(made):
    docs_tables, _ = made
    found = {}
    for path in sorted(DOCS.rglob("*.md")):
        text = docs_tables.MARKED.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
        for table in filter(is_of_figures, TABLE.findall(text)):
            found.setdefault(path.relative_to(DOCS).as_posix(), []).append(table.split("\n")[0])
    typed = {
        page: [head for head in heads if not head.startswith(NOT_MEASURED.get(page, "\0"))]
        for page, heads in found.items()
    }
    assert not {page: heads for page, heads in typed.items() if heads}, (
        "have benchmarks/docs_tables.py make them of a result"
    )
    assert set(NOT_MEASURED) <= set(found)


def test_the_pages_show_what_was_measured_last(made):
    docs_tables, result_files = made
    for page, tables in docs_tables.PAGES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        marked = [match["name"] for match in docs_tables.MARKED.finditer(text)]
        assert sorted(marked) == sorted(tables), page
        assert docs_tables.filled(page, text) == text, "run: python benchmarks/docs_tables.py"
        for match in docs_tables.MARKED.finditer(text):
            for source in docs_tables.sources(page, match["name"]):
                result = result_files.read(source)
                assert result_files.origin(result) in match[0]
                assert result["machine"]["cpu"] in match[0]


def test_no_table_is_made_of_what_was_measured_while_others_ran(made):
    docs_tables, result_files = made
    names = {
        name
        for page, tables in docs_tables.PAGES.items()
        for table in tables
        for name in docs_tables.sources(page, table)
    }
    quiet = {name: result_files.is_quiet(result_files.read(name)) for name in names}
    assert [name for name, known in quiet.items() if not known] == []


def test_a_mark_without_a_table_is_an_error(made):
    with pytest.raises(KeyError, match="wishes"):
        made[0].filled("zk-measured.md", "<!-- table: wishes -->\n<!-- end of table -->")


def page_of(share, *rows, **more):
    load = {"before": 0.1, "after": 0.1, "share_of_others": share}
    return {"name": "x", "rows": list(rows), "load": load, "machine": {"cpu": "A", "cores": 2}, **more}


def test_runs_become_their_medians_and_say_how_far_they_differ(made):
    _, result_files = made
    runs = [page_of(0.01 * n, {"what": "a", "ms": ms, "n": 3}, {"what": "b", "ms": 0.0, "n": 4})
            for n, ms in enumerate((2.0, 2.2, 1.9))]  # fmt: skip
    found = result_files.combined(runs)
    assert found["rows"] == [{"what": "a", "ms": 2.0, "n": 3}, {"what": "b", "ms": 0.0, "n": 4}]
    assert found["spread"] == {"ms": pytest.approx(0.15), "n": 0.0}
    assert (found["runs"], found["load"]["share_of_others"]) == (3, 0.02)
    line = result_files.origin({**found, "date": "2026-01-01", "command": "python x.py"})
    assert line == (
        "*A, 2 cores; nothing else running; medians of 3 runs, which differ by at most: ms 15 %; "
        "2026-01-01: `python x.py`*"
    )
    other = page_of(0.0, {"what": "a"})
    assert result_files.combined([runs[0], other])["rows"] == other["rows"]
    assert result_files.combined([runs[0], other])["runs_differ"]


def test_what_others_disturbed_is_known(made):
    _, result_files = made
    assert result_files.is_quiet(page_of(0.04))
    assert result_files.is_quiet(page_of(0.06)) is False
    assert result_files.is_quiet(page_of(0.06, is_of_speed=False))
    assert result_files.is_quiet({"load_average": 7.0}) is None
