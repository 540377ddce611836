"""A walk through a callable: the code of functions and classes that are the user's, and the values they use.

Comments and line numbers make no difference, the version of Python does: it compiles to other bytecode.
"""

import dis
import functools
import re
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from evenload.same_code.content import ContentWalk, cells_of, digest_of
from evenload.same_code.module_reach import MAIN, is_installed
from evenload.same_code.source_file import Import, imports_in

MOST_DEPTH = 120  # of objects inside each other in code; below that they count by their type
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement or a call
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, weakref.ref)
MADE_OF_FUNCTIONS = (staticmethod, classmethod, property)
# What uses one of these may find a name, or a module, by a text.
LOOKUPS = frozenset(("globals", "locals", "vars", "eval", "exec", "modules", "__import__", "import_module"))
ANY_MODULE = frozenset(("modules", "__import__", "import_module", "run_path", "spec_from_file_location"))
# Globals that tell where a module lies, or how it was found.
PLACES = ("__file__", "__cached__", "__spec__", "__loader__", "__path__", "__builtins__")
# Members of classes that have no effect on what they do.
NO_MATTER = {
    "__abstractmethods__", "__annotate_func__", "__annotations_cache__", "__dataclass_params__", "__dict__",
    "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__qualname__",
    "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl",
}  # fmt: skip


class CodeWalk(ContentWalk):
    """An encoder of a callable by its code and all that it uses. What has no content counts by its type.

    modules      names of modules that were met, and what of them; "" for a module itself
    imports      what functions import that have no file, with the package of their relative imports
    imports_any  such a function may import any module; the file of its program
    parts        what was encoded, in words -> a digest: "default `y` of f", "global `LIMIT`"
    """

    def __init__(self) -> None:
        super().__init__()
        self.modules: dict[str, set[str]] = {}
        self.imports: dict[tuple[Import, str], None] = {}
        self.imports_any: dict[str, None] = {}
        self.parts: dict[str, str] = {}

    def encode(self, value: Any) -> bytes:
        if len(self._path) > MOST_DEPTH and id(value) not in self._known:
            return self._opaque(value, None)
        return super().encode(value)

    def _opaque(self, value: Any, error: Exception | None) -> bytes:
        return self._text(b"o", f"{type(value).__module__}:{type(value).__qualname__}".encode())

    def _in_order(self, values: Iterable[Any]) -> Iterable[Any]:
        # By name first: what refers back to itself is encoded by the way that leads there.
        return sorted(values, key=_qualname)

    def _says(self, what: str, value: Any) -> None:
        """Note a value in words; code says for itself what it is."""
        if not callable(value) and not isinstance(value, types.ModuleType):
            self._note(what, self.encode(value))

    def _note(self, what: str, encoded: bytes) -> None:
        self.parts[what] = digest_of(self.parts.get(what, "").encode(), encoded).hex()

    def _meet(self, module: Any, name: str = "") -> None:
        if isinstance(module, str):
            self.modules.setdefault(module, set()).add(name.partition(".")[0])

    def _callable(self, value: Any) -> bytes | None:
        if isinstance(value, types.ModuleType):
            self._meet(value.__name__)
        elif isinstance(value, type):
            return self._class(value)
        elif isinstance(value, types.GeneratorType | types.CoroutineType):
            return self._all(b"G", (getattr(value, "gi_code", None) or value.cr_code,))  # pyrefly: ignore
        elif isinstance(value, types.MappingProxyType):
            return self._items(dict(value))
        elif isinstance(value, WEAK) or _is_executor(type(value)):
            return self._opaque(value, None)
        if isinstance(value, functools.partial):
            given = {f"{at + 1}": one for at, one in enumerate(value.args)} | value.keywords
            for name, one in given.items():
                self._says(f"the argument `{name}`", one)
        known = super()._callable(value)
        if known is not None:
            return known
        # A function wrapped by a cache or a compiler.
        inner = getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)
        if callable(inner):
            return self._all(b"W", (type(value).__qualname__, inner))
        if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
            return self._all(b"B", (value.__name__, value.__self__))
        return None

    def _name(self, value: Any) -> bytes:
        self._meet(value.__module__, value.__qualname__)
        return super()._name(value)

    def _function(self, fn: types.FunctionType) -> bytes:
        home = fn.__globals__
        self._meet(home.get("__name__"), fn.__code__.co_qualname)
        if not is_own(home.get("__name__"), home.get("__file__")):
            # By another's decorator, say, which keeps the user's function.
            return self._all(b"Q", (self._text(b"q", _place(fn)), cells_of(fn), fn.__defaults__, vars(fn)))
        name = fn.__qualname__.replace("<locals>.", "")
        cells = dict(zip(fn.__code__.co_freevars, cells_of(fn), strict=True))
        if isinstance(cells.get("__class__"), type):  # super(): the class, which has this function
            del cells["__class__"]
        names = sorted(_names(fn.__code__))
        used = {one: home[one] for one in names if one in home and one not in PLACES}
        if home.get("__name__") in MAIN or file_of(home.get("__name__")) is None:
            self._note(f"the code of {name}", self.encode(fn.__code__))
            self._follow(fn.__code__, home)
        given = zip(reversed(_positional(fn.__code__)), reversed(fn.__defaults__ or ()), strict=False)
        for kind, values in (("default", dict(given)), ("default", fn.__kwdefaults__ or {})):
            for one, value in values.items():
                self._says(f"the {kind} of `{one}` in {name}", value)
        for one, value in cells.items():
            self._says(f"`{one}`, which {name} closes over", value)
        for one, value in used.items():
            self._says(f"the global `{one}`", value)
        attributes = {one: value for one, value in vars(fn).items() if one != "__wrapped__"}
        reached = {one: self._reached(value, names) for one, value in used.items()}
        beside = (cells, reached, attributes, _annotations(fn), vars(fn).get("__wrapped__"))
        return self._all(b"F", (fn.__code__, fn.__defaults__, fn.__kwdefaults__, *beside))

    def _reached(self, value: Any, names: list[str]) -> Any:
        """Return a global as it is used: of a module of the user's the members whose names occur."""
        if not isinstance(value, types.ModuleType) or not is_own(value.__name__, _file(value)):
            return value
        self._meet(value.__name__)
        members = vars(value)
        inner = {one: members[one] for one in names if one in members and one not in PLACES}
        used: dict[str, Any] = {}
        for one, member in inner.items():
            if isinstance(member, types.ModuleType) and member is not value:
                used[one] = self._reached(member, [other for other in names if other != one])
            else:
                used[one] = member
        return used

    def _follow(self, code: types.CodeType, home: dict[str, Any]) -> None:
        """Note what code without a file of its own imports when it runs."""
        package = home.get("__package__") or ""
        for one in _imports(code):
            self.imports[one, package] = None
        if ANY_MODULE & set(code.co_names):
            self.imports_any[str(home.get("__file__") or "")] = None
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._follow(constant, home)
            elif isinstance(constant, str):
                texts = imports_in(constant)[0] if "import" in constant else ()
                named = ANY_MODULE & set(code.co_names) and constant.replace(".", "").isidentifier()
                for one in (*texts, *((Import(constant, 0, ""),) if named else ())):
                    self.imports[one, package] = None

    def _class(self, cls: type) -> bytes:
        self._meet(cls.__module__, cls.__qualname__)
        if not _is_own_class(cls):
            return self._name(cls)
        parts: list[Any] = [cls.__qualname__, type(cls)]
        for base in cls.__mro__:
            if not _is_own_class(base):
                parts.append(self._name(base))
                continue
            self._meet(base.__module__, base.__qualname__)
            members = {name: vars(base)[name] for name in sorted(vars(base)) if name not in NO_MATTER}
            for name, member in members.items():
                if not name.startswith("__") and not isinstance(member, MADE_OF_FUNCTIONS):
                    self._says(f"`{base.__qualname__}.{name}`", member)
            parts.append(members)
        return self._all(b"C", parts)


def _names(code: types.CodeType) -> set[str]:
    """Return the names that the code, or code inside it, may look up in its module."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
        elif isinstance(constant, str) and LOOKUPS & set(code.co_names):
            names |= set(re.findall(r"\w+", constant))
    return names


def _imports(code: types.CodeType) -> Iterator[Import]:
    """Yield what the import statements of a piece of code name."""
    if not any(one.opname == "IMPORT_NAME" for one in dis.get_instructions(code)):
        return
    before: list[Any] = [0, None]
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            level, names = before[-2] if isinstance(before[-2], int) else 0, before[-1]
            yield from (Import(one.argval, level, name) for name in (names or ("",)))
        elif one.opname.startswith("LOAD_"):
            before.append(one.argval)


def _is_executor(kind: type) -> bool:
    """Whether instances run the code of others: their workers change no result."""
    return all(callable(getattr(kind, name, None)) for name in ("submit", "map"))


def _positional(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount]


def _annotations(fn: types.FunctionType) -> Any:
    try:
        return fn.__annotations__
    except Exception:  # a name that is not there, since Python 3.14
        return None


def _place(fn: types.FunctionType) -> bytes:
    return f"{fn.__globals__.get('__name__')}:{fn.__code__.co_qualname}".encode()


def _qualname(value: Any) -> str:
    return str(getattr(value, "__qualname__", ""))


def _file(module: types.ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


def file_of(module: Any) -> str | None:
    known = sys.modules.get(module) if isinstance(module, str) else None
    return None if known is None else _file(known)


def _is_own_class(cls: type) -> bool:
    """Whether a class is the user's: also one that a library's function made, and that is not found there."""
    if is_own(cls.__module__, file_of(cls.__module__)):
        return True
    module = sys.modules.get(cls.__module__)
    is_made = cls.__flags__ & HEAP_TYPE and "<" not in cls.__qualname__ and module is not None
    return bool(is_made) and "." not in cls.__qualname__ and getattr(module, cls.__name__, None) is None


def is_own(module: Any, file: Any) -> bool:
    """Whether a module is the user's, not Python's, an installed package's or evenload's."""
    top = module.partition(".")[0] if isinstance(module, str) else ""
    if top in ("evenload", "builtins") or top in sys.builtin_module_names:
        return False
    return not isinstance(file, str) or not is_installed(file)
