"""Which part of a module a stage depends on: nothing that it may use is left out, and no more than that."""

import ast
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.reuse.code_slice import ModuleSlice

MODULE = """
import numpy as np
from shapes import circle, square as box
LIMIT = 3
UNUSED = 4
def helper(x):
    return x + LIMIT
class Draw:
    def __call__(self, inputs, item):
        return {"n": helper(box(inputs["a"]))}
class Other:
    def __call__(self, inputs, item):
        return {"n": circle(UNUSED)}
"""


def slice_of(text: str, name: str = "Draw") -> list[str]:
    module = ModuleSlice(text)
    module.take(name)
    return module.parts


def names_in(parts: list[str], text: str) -> set[str]:
    wanted = {ast.dump(node): node for node in ast.parse(text).body}
    return {getattr(wanted[part], "name", "") for part in parts if part in wanted} - {""}


def test_a_slice_has_what_the_class_uses_and_not_its_neighbours() -> None:
    assert names_in(slice_of(MODULE), MODULE) == {"helper", "Draw"}
    module = ModuleSlice(MODULE)
    module.take("Draw")
    assert {(one.module, one.name) for one in module.imports} == {("shapes", "square")}
    module.take("Other")
    assert {(one.module, one.name) for one in module.imports} == {("shapes", "square"), ("shapes", "circle")}
    assert [one.module for one in module.loaded] == ["numpy", "shapes", "shapes"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 3", "LIMIT = 3  # a comment"),
        ("    return x + LIMIT", "\n    return (x +\n            LIMIT)"),
        ("UNUSED = 4", "UNUSED = 5"),
        ("circle(UNUSED)", "circle(UNUSED + 1)"),
        ("import numpy as np", "import numpy as np, json"),
    ],
)
def test_what_changes_no_result_changes_no_slice(before: str, after: str) -> None:
    assert slice_of(MODULE.replace(before, after)) == slice_of(MODULE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("x + LIMIT", "x - LIMIT"),
        ("square as box", "circle as box"),
        ('inputs["a"]', 'inputs["b"]'),
        ("UNUSED = 4", "UNUSED = 4\nLIMIT = LIMIT + 1"),
        ("UNUSED = 4", "UNUSED = 4\nprint('imported')"),
        ("UNUSED = 4", "UNUSED = 4\nfor LIMIT in (1, 2): pass"),
        ("UNUSED = 4", "UNUSED = 4\nglobals()['helper'] = UNUSED"),
        ("class Other:", "class Other(metaclass=Draw):"),
        ("class Other:", "@Draw\nclass Other:"),
        ("import numpy as np", "import numpy as np\nfrom other import *"),
    ],
)
def test_what_may_change_a_result_changes_the_slice(before: str, after: str) -> None:
    assert slice_of(MODULE.replace(before, after)) != slice_of(MODULE)


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_an_edit_outside_of_all_that_is_called_is_none(seed: int, n: int) -> None:
    """Functions that call each other at random; the slow twin follows the calls one by one."""
    rng = random.Random(seed)
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
            own = value if at == edited else 0
            functions.append(
                f"def f{at}(x):\n    return {own}" + "".join(f" + f{o}(x)" for o in sorted(called))
            )
        rng.shuffle(functions)
        return "\n".join(functions)

    changed = set(slice_of(text(1), "f0")) != set(slice_of(text(2), "f0"))
    assert changed == (edited in reached)


@pytest.mark.parametrize("text", ["class Draw(:", "\0", b"\xff\xfe\x00"])
def test_what_is_no_python_raises(text) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        ModuleSlice(text)


def test_a_name_that_nothing_binds_takes_the_whole_module() -> None:
    assert len(slice_of(MODULE, "Missing")) == len(ModuleSlice(MODULE)._body)
