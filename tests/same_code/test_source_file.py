"""What counts of a source file, and which imports are found in it."""

import ast
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.same_code.source_file import Import, imports_in, read_source

MODULE = '''
import numpy as np
LIMIT = 3
TEXT = """
def example(): pass
"""
def helper(x):
    return x + LIMIT
class Base:
    pass
class Draw(Base):
    def __call__(self, inputs, item):
        return {"n": helper(inputs["a"])}
class Other(
    Base
):
    def __call__(self, inputs, item):
        return {"n": 4}
@Draw
def registered(): return 5
class Noted(np.ndarray): kind = 6
'''


def digest(folder: Path, text: str, name: str = "Draw") -> str:
    (folder / "stages.py").write_text(text)
    return read_source(folder / "stages.py", frozenset([name]))[0].digest


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("LIMIT = 3", "LIMIT = 3  # a comment", True),
        ('{"n": 4}', '{"n": 5}', True),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("x + LIMIT", "x - LIMIT", False),
        ("    pass\nclass Draw", "    more = 1\nclass Draw", False),
        ("def example(): pass", "def example(): None", False),
        ("return 5", "return 6", False),
        ("kind = 6", "kind = 7", False),
        ('inputs["a"]', 'inputs["b"]', False),
        ('{"n": 4}', 'globals()["helper"]', False),
        ("LIMIT = 3", "LIMIT = 3\nfor LIMIT in (1, 2): pass", False),
    ],
)
def test_of_a_stage_s_own_file_others_do_not_count(tmp_path: Path, before, after, is_same) -> None:
    assert before in MODULE
    assert (digest(tmp_path, MODULE) == digest(tmp_path, MODULE.replace(before, after))) == is_same


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_an_edit_outside_of_all_that_is_called_is_none(tmp_path_factory, seed: int, n: int) -> None:
    """Functions that call each other at random; the oracle follows the calls one by one."""
    rng, folder = random.Random(seed), tmp_path_factory.getbasetemp()
    calls = {at: {other for other in range(n) if rng.random() < 0.25} for at in range(n)}
    reached, todo = {0}, [0]
    while todo:
        new = calls[todo.pop()] - reached
        reached |= new
        todo += new
    edited = rng.randrange(n)

    def text(value: int) -> str:
        functions = []
        for at, called in calls.items():
            calling = "".join(f" + f{one}(x)" for one in sorted(called))
            functions.append(f"def f{at}(x):\n    return {value if at == edited else 0}{calling}")
        return "\n".join(functions)

    assert (digest(folder, text(1), "f0") != digest(folder, text(2), "f0")) == (edited in reached)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import a.b as c, d", {("a.b", 0, ""), ("d", 0, "")}),
        ("x = 1; import a", {("a", 0, "")}),
        ("from .. import a", {("", 2, "a")}),
        ("from .a.b import (c as d, # import e\n  f,)", {("a.b", 1, "c"), ("a.b", 1, "f")}),
        ("from.a import*", {("a", 1, "*")}),
        ("def g():\n    yield from x\nimport a", {("a", 0, "")}),
        ("exec('import a')", {("a", 0, "")}),
        ("from a \\\n  import b", {("a", 0, "b")}),
        ("importlib.import_module('a.b')", {("a.b", 0, "")}),
    ],
)
def test_imports_are_found(tmp_path: Path, text: str, found: set) -> None:
    (tmp_path / "a.py").write_text(text)
    source, _ = read_source(tmp_path / "a.py")
    assert set(source.imports) == {Import(*one) for one in found}
    assert not source.imports_any


@pytest.mark.parametrize(
    "text",
    [
        "importlib.import_module(n)",
        "from importlib import import_module as i",
        "f = __import__",
        "sys.modules[n]",
    ],
)
def test_who_may_import_anything_is_known(text: str) -> None:
    assert imports_in(text)[1]


def test_all_imports_of_real_sources_are_found() -> None:
    """Of this package, against Python's own parser."""
    folder = Path(__file__).parents[2] / "src" / "evenload"
    for file in sorted(folder.rglob("*.py"))[::7]:
        expected = set()
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                expected |= {Import(one.name, 0, "") for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                expected |= {Import(node.module or "", node.level, one.name) for one in node.names}
        assert expected <= set(read_source(file)[0].imports), file
