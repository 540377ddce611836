"""What functions hold beside their arguments, and whether it changed while a client was trained.

A copy of the model puts back what it remembers; a function has one closure for all clients. A counter in it
would go on from one client to the next, and would count the probes, too.
"""

import dis
import functools
import itertools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload.clients.values.recipe import Recipe
from evenload.errors import ConfigError, quoted

METHODS = ("__getitem__", "__getitems__", "__call__")
NAMES = ("loss", "objective", "augment", "step")
DEPTH = 6  # of objects within objects
FEW = 64  # entries of a container that are looked through for generators
MOST = 1000  # entries of a container, or numbers of a tensor, that are compared one by one
ATOMS = (type(None), bool, int, float, complex, str, bytes)
LEAVES = (*ATOMS, Tensor, np.ndarray, type, types.ModuleType)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
LOOKED_AT = (*ATOMS[1:4], list, dict, set, Tensor, np.ndarray, *GENERATORS)  # of a module's own variables


class SharedByClients(ConfigError):
    """Something that clients share has changed: their results, also those that are there, say nothing."""


class FunctionState:
    """A memory of what the functions of ``recipe`` held when this was made, or was last asked."""

    def __init__(self, recipe: Recipe):
        self._functions = {
            name: fn for name in NAMES if callable(fn := getattr(recipe, name)) and not isinstance(fn, type)
        }
        self._before = self._now()

    def refuse_changed(self) -> None:
        """Raise SharedByClients if something is another since, but for filled caches and longer lists.

        A list that numbers were appended to is a log. A cache is filled by the probes of a step, in other
        processes by the first client; what a step of one's own fills in is the client's.
        """
        if not self._functions:
            return
        before, self._before = self._before, self._now()
        for name, was in before.items():
            at = _changed(was, self._before[name], name != "step")
            if at is not None:
                fn, what = self._functions[name], at or "what it holds"
                raise SharedByClients(
                    f"{name}={quoted(getattr(fn, '__qualname__', fn))} changed {what} while a client "
                    "was trained: the next client would go on from there",
                    hint="keep what changes on the model, which each client has for itself: a buffer, or "
                    "model.count in a step (there a second optimizer, too)",
                )

    def _now(self) -> dict[str, Any]:
        return {name: _print(fn, DEPTH, set()) for name, fn in self._functions.items()}


def generator_states(value: Any, depth: int = DEPTH, seen: set[int] | None = None) -> list[Any]:
    """The states of the random number generators that an object holds, or that its functions name."""
    seen = set() if seen is None else seen
    if isinstance(value, GENERATORS):
        states = [] if id(value) in seen else [_state_of(value)]
        seen.add(id(value))
        return states
    if id(value) in seen or not depth or isinstance(value, LEAVES):
        return []
    seen.add(id(value))
    parts = itertools.islice(_parts(value), FEW)
    return [state for _, part in parts for state in generator_states(part, depth - 1, seen)]


def _named_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of its module that a function names and that may change, and its module's functions."""
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        is_own = isinstance(value, types.FunctionType) and value.__globals__ is function.__globals__
        if is_own or isinstance(value, LOOKED_AT):
            yield name, value


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return tuple(sorted(found.union(*map(_global_names, inner))))


class _Entries(dict):
    """What an object, a function or a container holds, by name."""

    is_list = False


def _print(value: Any, depth: int, seen: set[int]) -> Any:
    """What stays equal as long as nothing is written into ``value``."""
    if isinstance(value, ATOMS):
        return repr(value)
    if id(value) in seen or not depth or isinstance(value, type | types.ModuleType):
        return None
    seen.add(id(value))
    if isinstance(value, GENERATORS):
        return _state_of(value)
    if isinstance(value, Tensor):
        return _print_of(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.size <= MOST else id(value)
    pairs = list(_parts(value))[:MOST]
    found = _Entries((name, _print(part, depth - 1, seen)) for name, part in pairs)
    found.is_list = isinstance(value, list)
    return found


def _print_of(t: Tensor) -> tuple:
    if t.numel() > MOST:
        return t, t._version
    try:
        return t.tolist(), t.dtype
    except RuntimeError:  # of a fused step that is over
        return (t,)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of what an object holds."""
    if isinstance(value, dict):
        yield from ((str(name), one) for name, one in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(at), one) for at, one in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from zip(value.__code__.co_freevars, closure_of(value), strict=True)
        yield from (("a default", one) for one in value.__defaults__ or ())
        yield from vars(value).items()
        yield from _named_globals(value)
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), (value.__name__, value.__func__))
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, nn.Module):
        yield from [*value.named_parameters(), *value.named_buffers()]
        if not type(value).__module__.startswith("torch."):
            own = {name: one for name, one in vars(value).items() if not name.startswith("_")}
            yield from own.items()
    else:
        yield from getattr(value, "__dict__", {}).items()
        methods = (vars(kind).get(name) for kind in type(value).__mro__ for name in METHODS)
        yield from (("itself", one) for one in methods if _is_of_user(one))
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))


def _is_of_user(function: Any) -> bool:
    is_function = isinstance(function, types.FunctionType)
    return is_function and function.__module__.split(".")[0] not in ("torch", "torchvision", "datasets")


def closure_of(function: types.FunctionType) -> Iterator[Any]:
    """The variables of the function's closure; None for one that is not assigned yet."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    return repr(bits.state if bits is not generator else generator.get_state(legacy=False))


def _changed(was: Any, now: Any, may_fill: bool) -> str | None:
    """The name of something that is another now, "" if that is all of it, or None."""
    if not isinstance(was, _Entries) or not isinstance(now, _Entries):
        is_filled = may_fill and was in (None, repr(None))
        return None if is_filled or _is_same(was, now) else ""
    for name, one in was.items():
        if _changed(one, now.get(name), may_fill) is not None:
            return quoted(name)
    added = [one for name, one in now.items() if name not in was and not may_fill]
    return "" if any(not (now.is_list and isinstance(one, str)) for one in added) else None


def _is_same(was: Any, now: Any) -> bool:
    if isinstance(was, tuple) and isinstance(was[0], Tensor):
        return isinstance(now, tuple) and now[0] is was[0] and now[1:] == was[1:]
    return bool(was == now)
