"""The sources of the package and of the tests, each file parsed once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "evenload", ROOT / "tests"


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, the module first, as ``ast.walk`` gives them."""
    return tuple(ast.walk(ast.parse(text_of(path))))


def tree_of(path: Path) -> ast.Module:
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    return module
