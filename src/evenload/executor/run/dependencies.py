"""Futures among the arguments of a call: which they are, and the arguments with results in their places.

They are looked for among the arguments and in plain lists, tuples and dicts (their values) in them, however
deep; not in sets, keys or other objects.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from evenload.errors import ArgumentFailed, printable


def futures_in(arguments: Any) -> list[Future]:
    """The futures in ``arguments``, each once."""
    return list(_Walk(arguments).futures.values())


def with_results(arguments: Any) -> Any:
    """``arguments`` with the result of each future, all of which are done, in its place.

    Lists, tuples and dicts without a future stay the same objects. Raises RecursionError where they are
    nested too deep.
    """
    return _filled(arguments, _Walk(arguments).holders(), {})


def error_of_argument(failed: Future, name: str) -> ArgumentFailed:
    """Make the error of a call of ``name`` whose argument ``failed``; its cause is the first call's error."""
    error = failed.exception()
    first = error.__cause__ if isinstance(error, ArgumentFailed) else error
    said = printable(str(first.args[0] if first is not None and first.args else type(first).__name__))
    refusal = ArgumentFailed(f"{name} was not called, as the call for an argument of it failed: {said}")
    refusal.__cause__ = first
    return refusal


_PARTS: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    list: lambda value: value,
    tuple: lambda value: value,
    dict: lambda value: value.values(),
}


class _Walk:
    """The containers and futures that can be reached from a value.

    futures  by id
    """

    def __init__(self, value: Any):
        self.futures: dict[int, Future] = {}
        self._parents: dict[int, list[int]] = {id(value): []}
        waiting = [value]
        while waiting:
            container = waiting.pop()
            parts = _PARTS[type(container)](container)
            inner = []
            for part in parts:
                if issubclass(type(part), Future):  # isinstance would ask the part
                    self.futures[id(part)] = part
                elif type(part) not in _PARTS:
                    continue
                elif id(part) not in self._parents:
                    inner.append(part)
                self._parents.setdefault(id(part), []).append(id(container))
            waiting += reversed(inner)

    def holders(self) -> set[int]:
        """The containers, by id, from which a future can be reached."""
        holders: set[int] = set()
        waiting = list(self.futures)
        while waiting:
            new = set(self._parents[waiting.pop()]) - holders
            holders |= new
            waiting += new
        return holders


def _filled(value: Any, holders: set[int], copies: dict[int, Any]) -> Any:
    """Return ``value`` with results; containers of ``holders`` are copied once each, so that what is shared
    stays shared.
    """
    if issubclass(type(value), Future):
        return value.result()
    if type(value) not in _PARTS or id(value) not in holders:
        return value
    if id(value) in copies:
        return copies[id(value)]
    if type(value) is tuple:
        copies[id(value)] = value  # for a tuple that contains itself by way of a list
        copies[id(value)] = tuple(_filled(part, holders, copies) for part in value)
    elif type(value) is list:
        copies[id(value)] = parts = []
        parts.extend(_filled(part, holders, copies) for part in value)
    else:
        copies[id(value)] = values = {}
        values.update((key, _filled(part, holders, copies)) for key, part in value.items())
    return copies[id(value)]
