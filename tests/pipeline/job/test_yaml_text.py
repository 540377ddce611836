"""YAML of job files: what the two parsers read, with lines; what is too large or too deep is refused."""

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from examples_count import examples
from hypothesis import given, settings

from evenload.errors import SpecError
from evenload.pipeline.job import yaml_text
from evenload.pipeline.job.yaml_text import dump_yaml, parse_yaml

yaml = pytest.importorskip("yaml")

PIECES = (
    *("a", "b: ", "- ", "\n", "\n  ", "\n    ", "[", "]", "{", "}", ", ", ": ", "'", '"', "#", "&x ", "*x"),
    *("!!int ", "|\n", ">-\n", "1", "010", "0x1f", "1e3", "yes", "true", "~", "null", "? ", "...\n", "---\n"),
    *(
        "\\n",
        "é",
        "<<: ",
        "key: value\n",
        "- item\n",
        "  - below\n",
        "a: [1, 2]\n",
        "b: {c: d}\n",
        "\U0001f600",
    ),
)
ALIASES = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]" for n in range(1, 9))])


@pytest.fixture(params=[True, False])
def has_libyaml(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    if request.param and not yaml.__with_libyaml__:
        pytest.skip("this PyYAML has no parser in C")
    monkeypatch.setattr(yaml, "__with_libyaml__", request.param)
    yaml_text._loader.cache_clear()
    yield request.param
    yaml_text._loader.cache_clear()


def read(text: str, *, in_c: bool) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", in_c)
        yaml_text._loader.cache_clear()
        try:
            return repr(parse_yaml(text, "job"))
        except SpecError:
            return None
        finally:
            yaml_text._loader.cache_clear()


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML has no parser in C")
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_both_parsers_read_the_same_document(text: str) -> None:
    """Oracle: the parser that PyYAML has in Python, which shares nothing with libyaml."""
    in_c, in_python = read(text, in_c=True), read(text, in_c=False)
    assert in_c == in_python or None in (in_c, in_python)
    assert in_python is None or in_c is not None  # what one may write does not depend on the machine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 50_000, "nested more than 100 deep"),
        ("[" * 102 + "]" * 102, "nested more than 100 deep"),
        ("a: &a [*a]", "holds itself"),
        ("x: &a {y: *a}", "line 1: what is named there holds itself"),
        ("<<: &a {<<: *a}", "holds itself"),
        (ALIASES, "of aliases"),
        ("seed: " + "1" * 5000, "too many digits"),
        ("seed: 0x" + "f" * 5000, "too many digits"),
        ("x: !!int x", "line 1, column 4"),
        ("x: !!float x", "does not suit its tag"),
        ("x: !!bool x", "does not suit its tag"),
        ("x: !!timestamp x", "does not suit its tag"),
        ("x: !!timestamp 2026-99-99", "does not suit its tag"),
        ("x: !!int [1]", "expected a scalar"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bombs_and_what_yaml_stumbles_over_are_refused(text: str, said: str, has_libyaml: bool) -> None:
    with pytest.raises(SpecError, match=said):
        parse_yaml(text, "job")


@pytest.mark.parametrize("line", ["- {a: 1, b: 2}\n", "- a\n"])
def test_too_many_values_are_refused(line: str, has_libyaml: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of what is allowed: the parser in Python takes eight seconds for all."""
    assert yaml_text._MOST_PLACES == 100_000
    monkeypatch.setattr(yaml_text, "_MOST_PLACES", 1_000)
    with pytest.raises(SpecError, match="holds more than 100,000 values"):
        parse_yaml(line * 1_002, "job")
    assert len(parse_yaml("- a\n" * 900, "job")[0]) == 900


def test_lines_double_keys_and_values_of_1_2(has_libyaml: bool) -> None:
    text = "a: no\nb:\n  - 1e-3\n  - 010\na: 2026-01-01\n"
    document, lines, faults = parse_yaml(text, "job")
    assert document == {"a": "2026-01-01", "b": [0.001, 10]}
    assert lines == {("a",): 5, ("b",): 2, ("b", 0): 3, ("b", 1): 4}
    assert faults == [(("a",), "is given twice, first on line 1")]
    assert parse_yaml("[" * 101 + "]" * 101, "job")[0], "a hundred below the first"
    assert dump_yaml({"a": "\U0001f600"}) == "a: \U0001f600\n"
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: [*a, *a]\n", "job")[0]["c"] == [{"x": 1}] * 2, "no cycle"
