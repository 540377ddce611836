"""Code of the running program as a stage's target: of a notebook, a script, a closure, a lambda.

It travels to workers by value, as the functions of ``evenload.map`` do.
"""

import ast
import inspect
import pickle
from typing import Any

from evenload.executor.task.prepare import pickle_callable

__all__ = ["IN_PROGRAM", "LiveCode"]

IN_PROGRAM = "<python>"  # in the place of a module
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class LiveCode:
    """A class or function of a running program, which no job file can name.

    name  its own, or that of its type; ``text``: its definition, "" where Python does not know the source
    """

    def __init__(self, code: Any):
        self.name = str(getattr(code, "__name__", type(code).__name__))
        self.text = _definition(code)
        self._code = code
        self._packed: tuple[bytes, list[bytes]] | None = None

    def load(self) -> Any:
        """Return the class or function; in a worker it is unpickled, which may raise anything."""
        if self._code is None and self._packed is not None:
            self._code = pickle.loads(self._packed[0], buffers=self._packed[1])
        return self._code

    def pack(self) -> tuple[bytes, list[bytes]]:
        """Return the code as it is now, pickled. Raises ConfigError if it cannot be."""
        if self._packed is not None:
            return self._packed
        body, buffers = pickle_callable(self._code)
        return body, [bytes(buffer) for buffer in buffers]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.name, self.text, self.pack())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveCode):
            return NotImplemented
        is_packed = self._packed is not None and self._packed == other._packed
        return is_packed or (self._packed is None and self._code is other._code)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"{IN_PROGRAM}:{self.name}"

    __repr__ = __str__


def _unpacked(name: str, text: str, packed: tuple[bytes, list[bytes]]) -> LiveCode:
    made = object.__new__(LiveCode)
    made.name, made.text, made._packed, made._code = name, text, packed, None
    return made


def _definition(code: Any) -> str:
    """Return the source of a class or function alone; "" if it is not known, or not sure to be its own."""
    try:
        function = inspect.unwrap(vars(code)["__call__"] if isinstance(code, type) else code)
        first = function.__code__.co_firstlineno
        nodes = ast.walk(ast.parse("".join(inspect.findsource(function)[0])))
        named = [one for one in nodes if isinstance(one, _DEFINITIONS) and one.name == code.__name__]
        found = [one for one in named if _first_line(one) <= first <= (one.end_lineno or 0)]
        return ast.unparse(found[-1])
    except (OSError, TypeError, ValueError, LookupError, AttributeError, SyntaxError, RecursionError):
        return ""


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min(one.lineno for one in (node, *node.decorator_list))
