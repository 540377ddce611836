"""Digests of what a stage has read: equal exactly if it read the same, wherever files lie."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.reuse.read_digests import ALL_READS, JobFacts, TaskValues, digest_reads, result_key
from evenload.pipeline.stage import Item
from evenload.pipeline.stage_reads import UNSETTLED

FAR = 2**62
value = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2)


def digests_of(
    reads, values: TaskValues, folder: Path = Path("/nowhere"), seed: int = 0, began_ns: int = FAR
):
    return digest_reads(reads, values, JobFacts(seed, folder, began_ns), ContentDigests())


def of_columns(**columns) -> TaskValues:
    return TaskValues(Item(0, "i", 5), columns, {}, {})


@given(value, value)
def test_a_value_counts_only_if_it_is_read(a, b) -> None:
    one, two = of_columns(a=a, c=1), of_columns(a=b, c=1)
    same = type(a) is type(b) and a == b
    assert (digests_of(["value:a"], one) == digests_of(["value:a"], two)) == same
    assert digests_of(["value:c", "value:none", "item:id"], one) == digests_of(
        ["value:c", "value:none", "item:id"], two
    )


def test_who_has_said_nothing_has_read_everything() -> None:
    values = of_columns(a=1)
    before = digests_of(ALL_READS, values)
    for other in (of_columns(a=2), of_columns(a=1, b=None), TaskValues(Item(1, "i", 5), {"a": 1}, {}, {})):
        assert digests_of(ALL_READS, other) != before
    assert digests_of(ALL_READS, values, seed=1) != before


def test_a_file_counts_by_its_content_and_not_by_its_place(tmp_path: Path) -> None:
    for name, text in (("one", "x"), ("two", "x"), ("three", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.txt").write_text(text)
    folders = [tmp_path / name for name in ("one", "two", "three")]
    found = [
        digests_of(["value:path", "file:f.txt"], of_columns(path=str(one / "f.txt")), one) for one in folders
    ]
    assert found[0] == found[1] != found[2]
    made = [
        TaskValues(Item(0, "i"), {}, {"p": place}, {"p": [3, "digest"]}) for place in ("a/x.png", "b/y.png")
    ]
    assert digests_of(["value:p"], made[0]) == digests_of(["value:p"], made[1])


def test_a_file_that_changes_meanwhile_and_what_nobody_can_compare(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("x")
    values = of_columns(path=str(tmp_path / "f.txt"))
    for reads in (["value:path"], ["file:f.txt"], ["values"]):
        assert digests_of(reads, values, tmp_path, began_ns=0) is None
        assert digests_of(reads, values, tmp_path) is not None
    assert digests_of([UNSETTLED], values) is None
    assert digests_of(["file:missing.txt"], values, tmp_path, began_ns=0) is not None


def test_a_key_is_of_the_stage_and_of_all_reads_in_any_order() -> None:
    assert result_key("s", {"a": "1", "b": "2"}) == result_key("s", {"b": "2", "a": "1"})
    keys = [result_key("s", {"a": "1"}), result_key("t", {"a": "1"}), result_key("s", {"a": "2"})]
    assert len(set(keys)) == 3
