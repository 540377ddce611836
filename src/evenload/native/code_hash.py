"""Hashes of code rather than of files: a comment, a docstring or a line break does not change them.

They are the same under every version of Python that can parse the source.
"""

import ast
import functools
import hashlib
import linecache
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Fields that say nothing about what the code does, or that not every version of Python has.
_UNSAID = {"type_comment", "type_params", "kind", "type_ignores", "ctx", "annotation", "returns"}


def hash_of_files(paths: tuple[str, ...]) -> str:
    """Hash all code in these files, wherever they lie; of their bytes where they are not Python."""
    return _digest(sorted(_text_of_file(path, os.stat(path).st_mtime_ns) for path in paths))


@functools.cache
def _text_of_file(path: str, changed_ns: int) -> str:
    content = Path(path).read_bytes()
    try:
        return _text.__wrapped__(ast.parse(content))  # whose tree is not kept
    except SyntaxError:
        return repr(content)


def hash_of_function(function: Callable[..., Any]) -> str:
    """Hash a function, and all that it takes from its module: constants, tuples' fields, other functions.

    A function that cannot be read as source (there is none) is hashed by its bytecode.
    """
    parts: dict[str, str] = {}
    _collect(function, parts)
    return _digest(f"{name}={text}" for name, text in sorted(parts.items()))


def _collect(function: Any, parts: dict[str, str]) -> None:
    name = f"{function.__module__}.{function.__qualname__}"
    if name in parts:
        return
    node = _definitions(function.__code__.co_filename).get(function.__code__.co_firstlineno)
    parts[name] = _text(node) if node else function.__code__.co_code.hex() + repr(function.__code__.co_consts)
    for used in function.__code__.co_names:
        if used in function.__globals__:
            value = function.__globals__[used]
            inner = getattr(value, "py_func", value)
            if isinstance(inner, types.FunctionType):
                _collect(inner, parts)
            parts[f"{name}:{used}"] = _of_value(inner)


def _of_value(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    fields = getattr(value, "_fields", "")
    return (
        f"{getattr(value, '__module__', '')}.{value.__qualname__}{fields}" if callable(value) else repr(value)
    )


def _digest(texts: Any) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@functools.cache
def _definitions(path: str) -> dict[int, ast.AST]:
    """The functions of a file by the line of their first decorator, as in ``co_firstlineno``."""
    found: dict[int, ast.AST] = {}
    todo: list[Any] = [ast.parse("".join(linecache.getlines(path)))]
    for node in todo:  # statements alone: a function is in no expression
        if isinstance(node, ast.FunctionDef):
            found[min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])] = node
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            todo += getattr(node, block, ())
    return found


@functools.cache  # a function is often a piece of several kernels
def _text(node: ast.AST) -> str:
    words: list[str] = []
    _add_words(node, words.append)
    return " ".join(words)


def _add_words(node: Any, add: Callable[[str], None]) -> None:
    if isinstance(node, ast.AST):
        add(f"({type(node).__name__}")
        for field in node._fields:
            value = getattr(node, field, None)
            if field in _UNSAID or value is None or value == []:
                continue
            if field == "body" and isinstance(value, list) and _is_docstring(value[0]):
                value = value[1:]
            add(f"{field}:")
            _add_words(value, add)
        add(")")
    elif isinstance(node, list):
        for item in node:
            _add_words(item, add)
    else:
        add(repr(node))


def _is_docstring(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)
