"""Why a file cannot be used is said by ``errors.reason_of``: without "[Errno 2]" and the path once more."""

import ast
import builtins
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from parsed_sources import SOURCE, nodes_of

from evenload.errors import reason_of

OS_ERRORS = {
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, OSError)
}


def named_errors(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str, ast.expr]]:
    """Handlers with what they catch, and functions with their arguments: where, name, type."""
    for node in nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is not None and node.name is not None:
            yield node, node.name, node.type
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in (*node.args.args, *node.args.kwonlyargs):
                if one.annotation is not None:
                    yield node, one.arg, one.annotation


def plain_words(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Lines where an OSError that was caught or handed on is shown as it is, in an f-string or by ``str``."""
    for place, name, kind in named_errors(nodes):
        names = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(kind)}
        for node in ast.walk(place) if names & OS_ERRORS else ():
            shown = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and node.args:
                shown = node.args[0]
            if isinstance(shown, ast.Name) and shown.id == name:
                yield node.lineno


def test_no_message_shows_an_error_of_the_system_as_it_is() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{line}"
        for path in SOURCE.rglob("*.py")
        for line in plain_words(nodes_of(path))
    }
    assert not found, f"say {{reason_of(error)}}: {sorted(found)}"


def test_what_is_found_and_what_is_said(tmp_path: Path) -> None:
    source = "try: pass\nexcept (ValueError, FileNotFoundError) as e:\n f'{e}'\n str(e)\n f'{e.strerror}'"
    assert sorted(plain_words(ast.walk(ast.parse(source)))) == [3, 4]
    assert list(plain_words(ast.walk(ast.parse("def f(e: OSError): return f'{e}'")))) == [1]
    with pytest.raises(OSError, match="Errno") as caught:
        (tmp_path / "x\x1b[2J").read_bytes()
    assert reason_of(caught.value) == "No such file or directory"
    named = reason_of(caught.value, with_path=True)
    assert named.startswith("No such file or directory: '/")
    assert "\x1b" not in named
    for error in (OSError("cannot identify image file"), ValueError("7 is no depth")):
        assert reason_of(error) == str(error)
