"""Fingerprints of content: equal for equal things, in every process.

Pickled bytes are no fingerprint: they differ between runs for equal objects (the order of sets, shared
objects), and a function is pickled by its name, whatever it does.
Functions and classes count by name.
"""

import copyreg
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import PurePath
from struct import Struct
from typing import Any

from evenload.errors import ConfigError

FLOAT = Struct("<d")
MOST_BYTES = 64  # longer encodings are hashed


def digest_of(*pieces: bytes | memoryview) -> bytes:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


class ContentWalk:
    """An encoder of objects by content.

    reads_maps  memory maps of files count by content, too; False: by file, size and time, which does not do
                for results that are kept, as what was written to a map shows in its file's time only later
    """

    reads_maps = True

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # the object is kept, so that no other gets its id
        self._path: dict[int, int] = {}

    def encode(self, value: Any) -> bytes:
        kind = type(value)
        if kind is str:
            return self._text(b"s", value.encode("utf-8", "surrogatepass"))
        if kind is int or kind is bool or value is None or value is ...:
            return self._text(b"i", repr(value).encode()) if kind is not int else b"n%x" % value
        if kind is float:
            return b"f" + FLOAT.pack(value)
        if kind is bytes:
            return self._text(b"b", value)
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._path:
            return b"up%d" % (len(self._path) - self._path[id(value)])
        self._path[id(value)] = len(self._path)
        try:
            encoded = self._compound(value, kind)
        finally:
            del self._path[id(value)]
        self._known[id(value)] = value, encoded
        return encoded

    def _text(self, tag: bytes, text: bytes) -> bytes:
        return tag + b"%d:" % len(text) + text if len(text) <= MOST_BYTES else tag + b"#" + digest_of(text)

    def _all(self, tag: bytes, values: Iterable[Any]) -> bytes:
        return tag + digest_of(*self._framed(map(self.encode, values)))

    def _framed(self, encoded: Iterable[bytes]) -> Iterator[bytes]:
        for one in encoded:
            yield b"%d:" % len(one)
            yield one

    def _compound(self, value: Any, kind: type) -> bytes:
        if kind is tuple or kind is list:
            return self._all(b"t" if kind is tuple else b"l", value)
        if kind is dict:
            return self._items(value)
        if kind is set or kind is frozenset:
            return b"e" + digest_of(*self._framed(sorted(map(self.encode, self._in_order(value)))))
        if isinstance(value, set | frozenset):  # of a class of its own: the order is no matter either
            elements = sorted(map(self.encode, self._in_order(value)))
            return self._all(b"E", (kind, _by_name(getattr(value, "__dict__", {})))) + digest_of(
                *self._framed(elements)
            )
        place = _place_in_file(value, must_read=self.reads_maps)
        if place is not None:
            return self._text(b"M", repr(place).encode("utf-8", "surrogatepass"))
        array = _as_array(value)
        if array is not None:
            name, shape, raw = array
            return b"a" + digest_of(f"{name} {shape}".encode(), raw)
        if isinstance(value, PurePath) and kind.__reduce__ is PurePath.__reduce__:
            # Since Python 3.12, equal ones may be reduced to different pieces: those that they were made of.
            return self._all(b"r", (kind, value.parts, None, [], {}))
        return self._callable(value) or self._other(value)

    def _in_order(self, values: Iterable[Any]) -> Iterable[Any]:
        return values

    def _items(self, items: dict) -> bytes:
        pairs = (self.encode(key) + b"=" + self.encode(one) for key, one in items.items())
        return b"d" + digest_of(*self._framed(pairs))  # in their order, in which a task may go through them

    def _callable(self, value: Any) -> bytes | None:
        """Encode a module, function, class or wrapper; None for any other object."""
        if isinstance(value, types.ModuleType):
            return self._text(b"m", value.__name__.encode())
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._name(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MethodType):
            return self._all(b"h", (value.__func__, value.__self__))
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            bound = () if owner is None or isinstance(owner, types.ModuleType) else (owner,)
            return self._all(b"B", (value.__module__, value.__qualname__, *bound))
        if isinstance(value, functools.partial):
            return self._all(b"p", (value.func, value.args, value.keywords))
        if isinstance(value, staticmethod | classmethod):
            return self._all(b"w", (type(value).__name__, value.__func__))
        if isinstance(value, property):
            return self._all(b"y", (value.fget, value.fset, value.fdel))
        return None

    def _name(self, value: Any) -> bytes:
        return self._text(b"q", f"{value.__module__}:{value.__qualname__}".encode())

    def _function(self, fn: types.FunctionType) -> bytes:
        if "<" not in fn.__qualname__:
            return self._name(fn)
        return self._all(b"F", (fn.__code__, fn.__defaults__, fn.__kwdefaults__, cells_of(fn)))

    def _code(self, code: types.CodeType) -> bytes:
        facts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_freevars, code.co_cellvars, code.co_exceptiontable)
        return self._all(b"c", (code.co_code, code.co_consts, facts, names))

    def _other(self, value: Any) -> bytes:
        """Encode an object by the parts that pickle would reduce it to."""
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            parts = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        except Exception as error:
            return self._opaque(value, error)
        if isinstance(parts, str):
            return self._text(b"g", f"{type(value).__module__}:{parts}".encode())
        made, args, state, elements, pairs, *_ = (*parts, None, None, None, None)
        state = _by_name(state) if type(state) is dict else state
        return self._all(b"r", (made, args, state, list(elements or ()), dict(pairs or ())))  # pyrefly: ignore

    def _opaque(self, value: Any, error: Exception) -> bytes:
        raise ConfigError(
            f"a {type(value).__qualname__} has no content to compare: {error}",
            hint="make items of plain values or arrays, and open files or handles inside the function",
        ) from error


def _place_in_file(value: Any, *, must_read: bool) -> tuple[Any, ...] | None:
    """Return what tells a memory map of a file from others, without reading it; None for anything else.

    Also None for a map that ``must_read``, unless its file was cut short: reading it would end the process.
    """
    memmap = getattr(sys.modules.get("numpy"), "memmap", None)
    if memmap is None or not isinstance(value, memmap) or value.filename is None:
        return None
    base: Any = value
    while isinstance(base.base, memmap):
        base = base.base
    at = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    shown = value.offset, at, value.shape, value.strides, value.dtype.str, str(value.dtype.descr)
    try:
        status = os.stat(value.filename)
    except OSError:  # its name is gone; what is mapped is still there
        return None if must_read else (os.path.basename(value.filename), None, *shown)
    if must_read and status.st_size >= base.offset + base.nbytes:
        return None
    return os.path.basename(value.filename), (status.st_size, status.st_mtime_ns), *shown


def _as_array(value: Any) -> tuple[str, tuple, memoryview] | None:
    """Return type, shape and bytes of a numpy array or a torch tensor; None for anything else."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    name = "numpy"
    if isinstance(value, bytearray | memoryview):
        return type(value).__name__, (), memoryview(bytes(value))
    # While another thread imports one, it is there without its names.
    tensors = (torch.Tensor, torch.nn.Parameter) if torch is not None and hasattr(torch, "nn") else ()
    if torch is not None and type(value) in tensors and not value.is_sparse:
        name, shape = f"torch {value.dtype}", tuple(value.shape)
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return name, shape, memoryview(value)
    array: Any = getattr(numpy, "ndarray", None)
    if numpy is None or not array or type(value) is not array or value.dtype.hasobject:
        return None
    name = f"numpy {value.dtype.str if value.dtype.names is None else value.dtype.descr}"
    return name, value.shape, memoryview(numpy.ascontiguousarray(value).reshape(-1).view("u1"))


def _by_name(attributes: dict[Any, Any]) -> dict[Any, Any]:
    """Return attributes in the order of their names: when each was set is no matter."""
    return dict(sorted(attributes.items(), key=lambda item: str(item[0])))


def cells_of(fn: types.FunctionType) -> list[Any]:
    """Return the values that a function closes over; ... for a variable that has none yet."""
    cells = []
    for cell in fn.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            cells.append(...)
    return cells
