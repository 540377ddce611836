"""Items: which there are, in which order, what is known of each, and every way to get their list wrong."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import SpecError
from evenload.pipeline.job.inputs import find_items
from evenload.pipeline.job.spec_settings import InputsSection
from evenload.pipeline.seeds import item_seed


def read(root: Path, seed: int = 0, **inputs):
    items, wrong, _ = find_items(InputsSection(**inputs), root, seed)
    if wrong:
        raise SpecError("job", [(".".join(map(str, place)), text) for place, text in wrong])
    return items


def faults(root: Path, **inputs) -> str:
    with pytest.raises(SpecError) as caught:
        read(root, **inputs)
    return str(caught.value)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_a_folder_gives_its_files_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "in/b.png", "in/a.jpg", "in/.hidden", "in/below/c.png")
    items = read(tmp_path, folder="in")
    assert [item.id for item, _ in items] == ["a", "b"]
    assert [item.index for item, _ in items] == [0, 1]
    assert items[0][1] == {"path": str(tmp_path / "in" / "a.jpg")}


def test_a_pattern_gives_ids_relative_to_its_fixed_part(tmp_path: Path) -> None:
    tmp_path /= "[ab]*"  # a folder whose name is a pattern
    touch(tmp_path, "in/b.png", "in/x/b.png", "in/x/c.txt")
    assert [item.id for item, _ in read(tmp_path, glob="in/**/*.png")] == ["b", "x/b"]
    assert [item.id for item, _ in read(tmp_path, glob="in/b.png")] == ["b"]
    assert [item.id for item, _ in read(tmp_path / "in", glob="../in/x/*")] == ["b", "c"]


def test_folders_as_groups_and_one_that_is_empty(tmp_path: Path) -> None:
    """As in a data store, pictures may be links to where their bytes are, and so may folders be."""
    touch(tmp_path, "in/color/a.png", "store/4f", "elsewhere/c.png")
    (tmp_path / "in/color/b.png").symlink_to("../../store/4f")
    (tmp_path / "in/style").symlink_to(tmp_path / "elsewhere")
    items = read(tmp_path, glob="in/*/*.png", group_by="folder")
    assert [f"{item.id} {item.group}" for item, _ in items] == [
        "color/a color", "color/b color", "style/c style"
    ]  # fmt: skip
    touch(tmp_path, "in/text/notes.txt")
    told = faults(tmp_path, glob="in/*/*.png", group_by="folder")
    assert "the folder in/text has no file that matches" in told
    assert "use glob: in/*/*" in faults(tmp_path, folder="in")
    (tmp_path / "rows.csv").write_text("id,kind\na,color\nb,\nc,  \n")
    told = faults(tmp_path, csv="rows.csv", group_by="kind")
    assert "each of 2 items ('b', 'c') has nothing in its column 'kind'" in told


def test_a_table_adds_columns_by_id(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.png", "in/b.png")
    (tmp_path / "truth").mkdir()
    (tmp_path / "truth" / "t.csv").write_text("id,sigma,clean\na,0.10,clean/a.png\nz,0.2,clean/z.png\n")
    typed = {"paths": ("path", "clean"), "types": {"sigma": "number"}}
    (_, first), (_, second) = read(tmp_path, folder="in", table="truth/t.csv", **typed)
    assert first["sigma"] == 0.1
    assert first["clean"] == str(tmp_path / "truth" / "clean" / "a.png")
    assert second == {"path": str(tmp_path / "in" / "b.png")}


def test_rows_of_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 7, "path": "x.png", "kind": "cat"}, {"id": "a/b", "path": "/y.png", "kind": "dog"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    items = read(tmp_path, jsonl="rows.jsonl", group_by="kind")
    assert [(item.id, item.group) for item, _ in items] == [("7", "cat"), ("a/b", "dog")]
    assert [values["path"] for _, values in items] == [str(tmp_path / "x.png"), "/y.png"]


def test_rows_of_csv_keep_texts_that_only_look_like_numbers(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "\ufeffid,n,zip,x,empty\n007,12,01234,0.001,\n1.50,-3,56789,1e-05,\n", encoding="utf-8"
    )
    items = read(tmp_path, csv="rows.csv")
    assert [item.id for item, _ in items] == ["007", "1.50"]
    assert [values for _, values in items] == [
        {"n": 12, "zip": "01234", "x": 0.001},
        {"n": -3, "zip": "56789", "x": 0.00001},
    ]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"folder": "in"}, "there is no file in"),
        ({"folder": "nowhere"}, "there is no file in"),
        ({"glob": "*.png"}, "there is no file that matches *.png"),
        ({"csv": "rows.csv"}, "there is no row in"),
        ({"jsonl": "rows.jsonl"}, "there is no row in"),
        ({"csv": "no.csv"}, "cannot read"),
        ({"csv": "binary.csv"}, "cannot read"),
    ],
)
def test_nothing_to_do_is_said(tmp_path: Path, inputs: dict, said: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "rows.csv").write_text("id,x\n")
    (tmp_path / "rows.jsonl").write_text("\n")
    (tmp_path / "binary.csv").write_bytes(b"id\n\xff\xfe\n")
    assert said in faults(tmp_path, **inputs)


def test_ids_given_twice_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id\na\nb\na\nb\n")
    said = faults(tmp_path, csv="rows.csv")
    assert "'a' is given twice, to items 1 and 3" in said
    assert "'b' is given twice" in said


def test_files_that_differ_by_suffix_have_it_in_their_ids(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jpg", "in/a.txt", "in/b.jpg", "in/x/a.jpg")
    (tmp_path / "t.csv").write_text("id,n\na,1\na.txt,2\nb,3\n")
    items, found, notes = find_items(InputsSection(folder="in", table="t.csv"), tmp_path, 0)
    assert found == []
    assert [(item.id, values["n"]) for item, values in items] == [("a.jpg", 1), ("a.txt", 2), ("b", 3)]
    [note] = notes
    assert "2 files differ" in note
    assert "'a.jpg', 'a.txt'" in note
    assert [item.id for item, _ in read(tmp_path, glob="in/**/*.jpg")] == ["a", "b", "x/a"]


@given(names=st.sets(st.from_regex(r"[ab]{1,2}(\.[ab]){0,3}", fullmatch=True), min_size=1, max_size=12))
def test_each_file_of_a_folder_is_an_item(names: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """The oracle is the list of files: each is there once, under its own name or that without its suffix."""
    root = tmp_path_factory.mktemp("files")
    touch(root, *(f"in/{name}" for name in names))
    found = {Path(values["path"]).name: item.id for item, values in read(root, folder="in")}
    assert found.keys() == names
    assert len(set(found.values())) == len(names)
    stems = [Path(name).stem for name in names]
    for name, given_id in found.items():
        assert given_id in (name, Path(name).stem)
        if stems.count(Path(name).stem) > 1:
            assert given_id == name


def test_links_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jpg")
    (tmp_path / "in/b.jpg").symlink_to("gone.jpg")
    (tmp_path / "in/.hidden").symlink_to("gone.jpg")
    for inputs in ({"folder": "in"}, {"glob": "in/*.jpg"}, {"glob": "in/**"}):
        items, found, notes = find_items(InputsSection(**inputs), tmp_path, 0)
        assert ([item.id for item, _ in items], found) == (["a"], [])
        assert notes == ["1 link to files that are not there left out: 'b.jpg'"]
    (tmp_path / "in/a.jpg").unlink()
    assert "1 link to files that are not there" in faults(tmp_path, folder="in")


def test_every_bad_row_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n{"id": \n[1]\n{"name": 2}\n{"id": " "}\n')
    said = faults(tmp_path, jsonl="rows.jsonl")
    assert "line 2: is not JSON" in said
    assert "line 3: is not a JSON object" in said
    assert "lines 4, 5: has no 'id'; columns: name (job.inputs.id) (2 of 5 rows)" in said
    (tmp_path / "rows.csv").write_text("id,x\n1,2,3\n4\n")
    said = faults(tmp_path, csv="rows.csv")
    assert "line 2: does not have the header's 2 fields" in said
    assert "line 3: does not have" in said


def test_a_flood_of_faults_is_cut(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("x\n" * 100)
    with pytest.raises(SpecError) as caught:
        read(tmp_path, jsonl="rows.jsonl")
    assert len(caught.value.faults) == 21
    assert caught.value.faults[-1] == ("...", "and 80 more")


def test_a_missing_group_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "kind": "cat"}\n{"id": 2}\n')
    assert "item '2' has nothing in its column 'kind'" in faults(
        tmp_path, jsonl="rows.jsonl", group_by="kind"
    )
    said = faults(tmp_path, jsonl="rows.jsonl", group_by="kin")
    assert said.count("no column") == 1
    assert "each of 2 items ('1', '2') has no column 'kin'; did you mean 'kind'? columns: kind" in said


def test_columns_of_paths_are_there(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "clean": "a.png"}\n{"id": 2}\n')
    assert "did you mean 'clean'?" in faults(tmp_path, jsonl="rows.jsonl", paths=("claen",))
    assert len(read(tmp_path, jsonl="rows.jsonl", paths=("clean",))) == 2
    assert len(read(tmp_path, jsonl="rows.jsonl")) == 2  # ``path``, which is not named, need not be there


@given(
    seed=st.integers(0, 2**63 - 1), ids=st.lists(st.text(min_size=1), unique=True, min_size=2, max_size=30)
)
def test_seeds_differ_and_depend_on_nothing_else(seed: int, ids: list[str]) -> None:
    seeds = [item_seed(seed, name) for name in ids]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= found < 2**63 for found in seeds)
    assert seeds[::-1] == [item_seed(seed, name) for name in ids[::-1]]
    assert item_seed(seed, ids[0], sample=1) != seeds[0]


def test_seeds_stay_what_they_are() -> None:
    """Results of old runs must be reproducible: these numbers may never change."""
    assert item_seed(42, "astronaut-05") == 6726383520093875424


def test_ids_that_are_no_utf_8_have_seeds(tmp_path: Path) -> None:
    touch(tmp_path, "in/a\udcff.txt")
    (tmp_path / "rows.jsonl").write_text('{"id": "a\\ud800"}\n')
    [(from_file, _)] = read(tmp_path, folder="in")
    [(from_row, _)] = read(tmp_path, jsonl="rows.jsonl")
    assert (from_file.id, from_row.id) == ("a\udcff", "a\ud800")
    assert from_file.seed != from_row.seed


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[[str, dict], None]:
    arrow = pytest.importorskip("pyarrow", reason="needs the extra files")
    import pyarrow.parquet as parquet

    return lambda name, columns: parquet.write_table(arrow.table(columns), tmp_path / name)


def test_rows_of_parquet_with_paths_and_nothing_where_null(tmp_path: Path, write_parquet: Callable) -> None:
    columns = {"id": ["a", "b"], "path": ["in/a.png", "in/b.png"], "sigma": [0.5, None], "tags": [["x"], []]}
    write_parquet(
        "rows.parquet", columns | {"kind": ["x", "y"], "zip": [1234, 5], "version": ["3.10", "3.9"]}
    )
    items = read(
        tmp_path, parquet="rows.parquet", group_by="kind", types={"zip": "text", "version": "number"}
    )
    assert [(item.id, item.group) for item, _ in items] == [("a", "x"), ("b", "y")]
    assert items[0][1] == {"path": str(tmp_path / "in/a.png"), "sigma": 0.5, "tags": ["x"], "kind": "x",
                           "zip": "1234", "version": 3.1}  # fmt: skip
    assert "sigma" not in items[1][1]
    touch(tmp_path, "in/a.png")
    (_, values), *_ = read(tmp_path, folder="in", table="rows.parquet", paths=())
    assert values["sigma"] == 0.5


def test_what_is_no_parquet_and_what_json_cannot_hold(tmp_path: Path, write_parquet: Callable) -> None:
    touch(tmp_path, "empty.parquet")
    assert "no parquet file that can be read" in faults(tmp_path, parquet="empty.parquet")
    write_parquet("raw.parquet", {"id": ["a"], "raw": [b"\xff"]})
    said = faults(tmp_path, parquet="raw.parquet")
    assert "raw.parquet line 1" in said
    assert "values that JSON cannot hold: raw (bytes)" in said
    write_parquet("named.parquet", {"id": ["a"]})
    assert "has no 'name'" in faults(tmp_path, parquet="named.parquet", id="name")


TWISTED = (
    "3.10",
    "3.1",
    "12e4567",
    "7e1",
    "1_000",
    " 1",
    "nan",
    "inf",
    "-0",
    "007",
    "1e16",
    "1e+16",
    "\u0661",
)
FIELDS = st.one_of(
    st.sampled_from(TWISTED),
    st.integers().map(str),
    st.floats().map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\n"), min_size=1, max_size=8),
)


@given(
    column=st.lists(FIELDS, min_size=1, max_size=6),
    numbers=st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1),
)
def test_what_is_read_from_csv_is_written_as_the_same_text(
    column: list[str], numbers: list[int | float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The oracle is the text that Python's own csv module wrote into the file."""
    root = tmp_path_factory.mktemp("csv")
    with (root / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "v"], *([number, text] for number, text in enumerate(column))])
    values = [values["v"] for _, values in read(root, csv="rows.csv")]
    assert [str(value) for value in values] == column
    assert len({isinstance(value, str) for value in values}) == 1, "a column is one type throughout"
    as_text = [values["v"] for _, values in read(root, csv="rows.csv", types={"v": "text"})]
    assert as_text == column
    (root / "rows.csv").write_text("id,v\n" + "".join(f"{n},{v}\n" for n, v in enumerate(numbers)))
    assert [repr(values["v"]) for _, values in read(root, csv="rows.csv")] == [repr(v) for v in numbers]


def test_a_column_of_versions_stays_text_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,version,sha\na,3.1,deadbeef\nb,3.10,12e4567\n")
    items, found, notes = find_items(InputsSection(csv="rows.csv", group_by="version"), tmp_path, 0)
    assert [item.group for item, _ in items] == ["3.1", "3.10"]
    assert items[1][1] == {"version": "3.10", "sha": "12e4567"}
    assert found == []
    [note] = notes
    assert "rows.csv: column 'version' is text, as '3.10' would change" in note
    (tmp_path / "long.csv").write_text(f"id,n\na,{'1' * 5000}\nb,15\n")
    assert [values for _, values in read(tmp_path, csv="long.csv")] == [{"n": "1" * 5000}, {"n": "15"}]
    typed = read(tmp_path, csv="rows.csv", types={"version": "number"})
    assert [values["version"] for _, values in typed] == [3.1, 3.1]


def test_declared_types_are_kept_or_refused(tmp_path: Path) -> None:
    rows = "id,n,flag\na,12e4567,yes\nb,1_000,TRUE\nc,+1.50,false\nd,1e-999,\ne,007,\n"
    (tmp_path / "rows.csv").write_text(rows)
    said = faults(tmp_path, csv="rows.csv", types={"n": "number", "flag": "boolean"})
    for line, text in ((2, "'12e4567' in"), (2, "'yes' in"), (3, "'1_000' in"), (5, "'1e-999' in")):
        assert f"line {line}: {text}" in said
    assert "line 4" not in said
    assert "line 6" not in said
    assert "did you mean 'flag'" in faults(tmp_path, csv="rows.csv", types={"flg": "boolean"})
    (tmp_path / "rows.csv").write_text("id,n,n\na,1,2\n")
    assert "names 'n' twice" in faults(tmp_path, csv="rows.csv")


def test_numbers_of_json_lines_as_texts_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "v": 3.10, "w": [1.0]}\n{"id": 2, "v": "x", "w": 3.10}\n')
    values = [values for _, values in read(tmp_path, jsonl="rows.jsonl", types={"v": "text"})]
    assert values == [{"v": "3.10", "w": [1.0]}, {"v": "x", "w": 3.1}]
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "v": 12e4567}\n{"id": 2, "v": [1]}\n')
    assert "'12e4567' is beyond a float" in faults(tmp_path, jsonl="rows.jsonl")
    assert "[1] in column 'v' is no text" in faults(tmp_path, jsonl="rows.jsonl", types={"v": "text"})
