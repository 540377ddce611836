"""Tables of docs/gpu.md are filled from results of the GPU run alone, and a result is a stranger's file."""

import json
import random
import re
from pathlib import Path

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded_programs import loaded

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"
CSV = "name, driver_version, memory.total [MiB]\nNVIDIA H200, 580.95.05, 143771 MiB\n"


@pytest.fixture(scope="module")
def made():
    """The modules of benchmarks/: gpu_tables, gpu."""
    with loaded("benchmarks", "gpu_tables", "gpu") as modules:
        yield modules


def result(**parts):
    """What the GPU run writes, with these rows of parts."""
    return {
        "format": "evenload-gpu", "version": 1, "pretended": False, "minutes": 9.0, "gpu": CSV,
        "date": "2026-11-23T01:34:31+00:00", "commit": "0fccf97e65def6e9280b194712861149931b4547",
        "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "machine": {"cores": 16}, "notes": [],
        "parts": {
            name: {"part": name, "state": "ran", "pretended": False, "rows": rows, "notes": [], "failed": []}
            for name, rows in parts.items()
        },
    }  # fmt: skip


def fill(gpu_tables, folder, page, **changes):
    """Give a result to the program; returns its exit code and the page that it leaves."""
    path = folder / "results.json"
    path.write_text(json.dumps(changes))
    code = gpu_tables.main([str(path)], page, folder / "kept")
    return code, page.read_text(encoding="utf-8")


@pytest.fixture
def page(tmp_path):
    copy = tmp_path / "gpu.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    return copy


def test_every_part_has_a_table_and_it_shows_what_is_kept(made):
    gpu_tables, gpu = made
    text = PAGE.read_text(encoding="utf-8")
    marked = [match["name"] for match in gpu_tables.MARKED.finditer(text)]
    assert len(marked) == len(set(marked)) == text.count("<!-- table: ")
    assert {part.name for part in gpu.PARTS} <= set(marked)
    assert gpu_tables.filled(text, gpu_tables.KEPT) == text, "run: python benchmarks/gpu_tables.py"
    kept = {path.stem for path in gpu_tables.KEPT.glob("*")} if gpu_tables.KEPT.is_dir() else set()
    assert kept <= set(marked)
    assert text.count(gpu_tables.NOT_YET) == len(set(marked) - kept)


# One name is what columns are called, or nearly so; a figure may be anything that JSON has.
NAMES = st.sampled_from(["p50_us", "weight_bytes", "x_bound", "items_s", "is_equal", "way", "data_sheet"])
FIGURES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=()), max_size=200),  # also halves of characters
    st.lists(st.integers(), max_size=3),
    st.dictionaries(NAMES, st.floats(0, 1), max_size=3),
)  # fmt: skip
ROW = st.builds(lambda what, row: {"what": what, **row}, st.text(max_size=120),
                st.dictionaries(NAMES, FIGURES, max_size=5))  # fmt: skip
ROWS = st.lists(ROW, min_size=1, max_size=8)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_tables_of_any_rows_leave_the_rest_of_the_page_alone(made, tmp_path_factory, data):
    gpu_tables, gpu = made
    folder = tmp_path_factory.mktemp("gpu")
    page = folder / "gpu.md"
    before = PAGE.read_text(encoding="utf-8")
    page.write_text(before, encoding="utf-8")
    names = data.draw(st.lists(st.sampled_from([part.name for part in gpu.PARTS]), min_size=1, unique=True))
    code, after = fill(gpu_tables, folder, page, **result(**{name: data.draw(ROWS) for name in names}))
    assert code == 0
    # Outside of the marks nothing moved, the marks are there, and no stranger's word is one.
    assert gpu_tables.MARKED.split(after)[::2] == gpu_tables.MARKED.split(before)[::2]
    tables = {match["name"]: match[0] for match in gpu_tables.MARKED.finditer(after)}
    for name, text in tables.items():
        assert (gpu_tables.NOT_YET in text) == (name not in names)
        inside = "\n".join(text.split("\n")[1:-1])
        assert not re.search(
            r"[<>\[\]`*]", re.sub(r"`benchmarks/.*`|`python .*`|\*NVIDIA|\*$", "", inside)
        ), inside
        for block in re.findall(r"(?:^\|.*\n?)+", inside, re.MULTILINE):
            assert len({row.count("|") for row in block.strip().split("\n")}) == 1, block
        if name in names:
            assert "NVIDIA H200, driver 580.95.05, 2026-11-23" in text
    assert after.count("\n") < before.count("\n") + (gpu_tables.MOST_LINES * 4 + 10) * len(names)
    # The same again changes nothing, nor does filling from what is kept.
    assert gpu_tables.main([], page, folder / "kept") == 0
    assert page.read_text(encoding="utf-8") == after
    assert gpu_tables.main([str(folder / "results.json")], page, folder / "kept") == 0
    assert page.read_text(encoding="utf-8") == after


def test_equal_columns_are_a_table_and_others_a_list(made, tmp_path, page):
    rows = [
        {"what": "EP8", "p50_us": 12.345, "weight_bytes": 6_396_539_807},
        {"what": "EP16", "p50_us": 0.0001234, "weight_bytes": None},
        {"what": "wrong", "n": 1000, "same": True},
    ]
    code, text = fill(made[0], tmp_path, page, **result(moe=rows))
    assert code == 0
    assert "|  | p50, µs | weight bytes |\n| --- | --: | --: |\n| EP8 | 12.35 | 6.4 GB |\n" in text
    assert "| EP16 | 0.000123 | – |" in text
    assert "|  | measured |\n| --- | --- |\n| wrong | n 1,000; same yes |" in text
    assert "torch 2.11.0, triton 3.6.0, commit 0fccf97e65de: `python benchmarks/gpu.py --only moe`*" in text


def test_columns_are_named_with_their_units(made):
    named = {
        "item_s": "item, s", "park_gb_s": "park, GB/s", "plain_items_s": "plain items/s",
        "items_s": "items/s",
        "million_tokens_a_s": "million tokens a second", "ms_a_client_step": "ms a client step",
        "p99_us": "p99, µs", "x_bytes": "× bytes", "weight_bytes": "weight bytes",
        "same": "same", "_s": "s",
    }  # fmt: skip
    assert {name: made[0].heading(name) for name in named} == named
    assert made[0].cell(2.5, "x_bytes") == "2.5"


def test_short_runs_fill_the_page_together(made, tmp_path, page):
    row = {"what": "first", "x": 1}
    fill(made[0], tmp_path, page, **result(moe=[row], wgsl=[row]))
    second = result(moe=[{"what": "second", "x": 2}], wgsl=[], clients=[row])
    second["parts"]["clients"] |= {"state": "cut short", "failed": ["a | piece"]}
    second["gpu"] = CSV.replace("H200", "B200")
    _, text = fill(made[0], tmp_path, page, **second)
    tables = {match["name"]: match[0] for match in made[0].MARKED.finditer(text)}
    for name, what, gpu in (("moe", "second", "B200"), ("wgsl", "first", "H200")):
        assert what in tables[name]
        assert gpu in tables[name]
    assert "the part ended as: cut short; failed: a piece" in tables["clients"]


GOOD = result(moe=[{"what": "a", "x": 1}])
MOE = GOOD["parts"]["moe"]
REFUSED = {
    "pretended": (GOOD | {"pretended": True}, "only pretended"),
    "says nothing of it": ({k: v for k, v in GOOD.items() if k != "pretended"}, "only pretended"),
    "a part pretended": (GOOD | {"parts": {"moe": MOE | {"pretended": True}}}, "only pretended"),
    "no GPU": (GOOD | {"gpu": None}, "names no GPU"),
    "no driver": (GOOD | {"gpu": "name\nNVIDIA H200\n"}, "names no GPU"),
    "no day": (GOOD | {"date": "yesterday"}, "has no day"),
    "another file": ({"format": "evenload-run", "version": 1}, "no result of the GPU run"),
    "another version": (GOOD | {"version": 2}, "no result of the GPU run"),
    "a list": (GOOD | {"parts": []}, "has no parts"),
    "a part of another kind": (GOOD | {"parts": {"../../x": MOE}}, "which there is not"),
    "rows that are none": (result(moe=[1]), "rows of the part"),
    "a row without a name": (result(moe=[{"x": 1}]), "rows of the part"),
    "a column that is markup": (result(moe=[{"what": "a", "<b>": 1}]), "rows of the part"),
    "a name too long for a table": (GOOD | {"gpu": f"name,driver_version\n{'x' * 200_000}"}, "names no GPU"),
    "too many rows": (result(moe=[{"what": "a"}] * 2001), "rows of the part"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_result_is_refused_whole(made, tmp_path, page, capsys, name):
    before = page.read_text(encoding="utf-8")
    given, why = REFUSED[name]
    assert fill(made[0], tmp_path, page, **given) == (2, before)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_a_file_that_is_no_json_or_too_large_is_refused(made, tmp_path, page, capsys, monkeypatch):
    gpu_tables, _ = made
    path, before = tmp_path / "results.json", page.read_text(encoding="utf-8")
    dice = random.Random(23)
    whole = json.dumps(GOOD)
    for text in (
        "",
        "[" * 100_000,
        "null",
        "[]",
        *(whole[: dice.randrange(1, len(whole) - 1)] for _ in range(10)),
    ):
        path.write_text(text)
        assert gpu_tables.main([str(path)], page, tmp_path / "kept") == 2, text
    assert gpu_tables.main([str(tmp_path / "none.json")], page, tmp_path / "kept") == 2
    path.write_text(whole)
    monkeypatch.setattr(gpu_tables, "MOST_BYTES", len(whole) - 1)
    capsys.readouterr()
    assert gpu_tables.main([str(path)], page, tmp_path / "kept") == 2
    assert "results.json" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == before
