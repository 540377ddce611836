"""The limits of the house: lines of a file and of a function, modules of a folder, what a class says it is.

Circles and the order of the rooms are held by import-linter (``make lint``).
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from parsed_sources import SOURCE, nodes_of, text_of, tree_of

FILES = sorted(SOURCE.rglob("*.py"))

MOST_LINES = 600
MOST_FUNCTION_LINES = 60
MOST_MODULES = 20
MOST_EXCEPTIONS = 20

LONG_FUNCTIONS: dict[str, str] = {
    # signatures with documented arguments: the docstring is the length
    "executor/executor.py:map": "documented arguments",
    "executor/mapping.py:map": "documented arguments",
    "moe/search/plan.py:place": "documented arguments",
    "pipeline/pipeline.py:run": "documented arguments",
    # kernels: a call costs registers, or the compiler wants one body
    "moe/routing/kernels/route.py:route_kernel": "one Triton program: each value is a block in registers",
}
"""``file:function``, and why it may be longer than the others."""

NOUN_PHRASE = re.compile(
    r"(A|An|The|One|Two|Some|All|Each|Every|Several|Many)\s"  # a determiner,
    r"|[A-Z][\w/-]+( [\w/-]+)? (of|that|which|for|in|on|by|with|from|to|as|and|between|over|at)\b"
)


POINTS_ELSEWHERE = re.compile(r"(It|Its|They|Their|These|Those|That|The same|Of|As(?! many))\b")


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of each function, nested ones and methods included."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1


def public_classes(path: Path) -> Iterator[tuple[str, str]]:
    """Name and docstring of each public class at the top of a module."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) or ""


def test_no_file_is_too_long() -> None:
    lines = {name_of(path): len(text_of(path).splitlines()) for path in FILES}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_no_function_is_too_long() -> None:
    found = {name: n for path in FILES for name, n in functions(path) if n > MOST_FUNCTION_LINES}
    assert {name: n for name, n in found.items() if name not in LONG_FUNCTIONS} == {}
    assert set(LONG_FUNCTIONS) <= set(found), "an exception that is no longer needed"
    assert len(LONG_FUNCTIONS) <= MOST_EXCEPTIONS
    assert all(LONG_FUNCTIONS.values())


def test_no_folder_is_too_wide() -> None:
    modules = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {name_of(folder): n for folder, n in modules.items() if n > MOST_MODULES} == {}


def test_a_public_class_says_what_an_instance_is() -> None:
    """By its first sentence, a noun phrase: not what it does, and not the name of a field first."""
    riddles = {
        f"{name_of(path)}:{name}": text[:80]
        for path in FILES
        for name, text in public_classes(path)
        if not NOUN_PHRASE.match(text)
    }
    assert riddles == {}


def test_no_docstring_begins_with_a_word_that_points_elsewhere() -> None:
    """Who reads one alone must know what "these" or "the same" are."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    riddles = {
        f"{name_of(path)}:{getattr(node, 'name', '')}": text[:80]
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, kinds) and POINTS_ELSEWHERE.match(text := ast.get_docstring(node) or "")
    }
    assert riddles == {}


def test_the_fast_lane_names_what_is_there():
    """`make check` runs these; in several processes pytest does not say which path is gone."""
    root = Path(__file__).parents[2]
    text = (root / "Makefile").read_text().replace("\\\n", " ")
    (paths,) = re.findall(r"^PURE := (.+)$", text, re.MULTILINE)
    assert [path for path in paths.split() if not (root / path).exists()] == []
