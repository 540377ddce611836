"""Code of the running program as a stage's target: of a notebook, a script, a closure, a lambda.

It travels to workers by value, as the functions of ``evenload.map`` do.
"""

import ast
import inspect
import pickle
from typing import Any

from evenload.errors import ConfigError
from evenload.executor.task.prepare import pickle_callable

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

    def load(self) -> Any:
        """Return the class or function; in a worker it is unpickled, which may raise anything."""
        return self._code

    @property
    def fault(self) -> str:
        """Why it cannot be sent to a worker; "" if it can."""
        try:
            pickle_callable(self._code)
        except ConfigError as error:
            return f"{error.message}; {error.hint}"
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        body, buffers = pickle_callable(self._code)
        return _Packed, (self.name, body, [bytes(buffer) for buffer in buffers])

    def __str__(self) -> str:
        return f"{IN_PROGRAM}:{self.name}"

    __repr__ = __str__


class _Packed(LiveCode):
    """Live code as a worker gets it: unpickled where it is needed, so that its faults are its stage's."""

    def __init__(self, name: str, body: bytes, buffers: list[bytes]):
        self.name, self.text, self._pickled = name, "", (body, buffers)

    def load(self) -> Any:
        if not hasattr(self, "_code"):
            self._code = pickle.loads(self._pickled[0], buffers=self._pickled[1])
        return self._code

    def __reduce__(self) -> tuple[Any, ...]:
        return _Packed, (self.name, *self._pickled)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Packed) and self._pickled == other._pickled

    __hash__ = None


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
