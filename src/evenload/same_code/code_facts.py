"""Facts of a callable: all that makes two runs of it the same code, by name; and what differs, in words."""

import functools
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from evenload.same_code.code_walk import MAIN, CodeWalk, file_of, is_own
from evenload.same_code.content import ContentWalk, digest_of
from evenload.same_code.module_reach import ModuleReach
from evenload.same_code.package_versions import versions_of
from evenload.same_code.source_file import first_other_line

_MOST_SAID = 3


class CodeFacts:
    """The code of a callable as named facts, and the digest of them all.

    facts    "function": what it is and uses; "code own.py": a file of the user's that it can reach;
             "version numpy": of a package; others in words, such as "the default of `y` in f"
    reach    the files and packages behind these
    """

    def __init__(self, fn: Any, *, reads_maps: bool = True):
        walk = CodeWalk()
        walk.reads_maps = reads_maps
        whole = blake2b(walk.encode(fn), digest_size=16).hexdigest()
        self.reach = ModuleReach(sys.path, sys.modules)
        home = _home_of(fn)
        for name, used in walk.modules.items():
            _take(self.reach, name, used if name == home and "" not in used else ())
        for one, package in walk.imports:
            self.reach.take_import(one, package)
        for file in walk.imports_any:
            self.reach.take_everything(Path(file).parent if file else None)
        self.facts = {"function": whole, **walk.parts, **facts_of_reach(self.reach)}
        self.facts |= {f"version {name}": text for name, text in versions_of(self.reach.packages).items()}

    @property
    def digest(self) -> str:
        return _digest(self.facts)

    def change_since(self, was: Mapping[str, str]) -> str:
        """Say what differs from facts of an earlier run: "own.h, own.py line 1"; "" if nothing does."""
        return change_in_words(was, self.facts, self.reach)


class ItemFingerprints:
    """Fingerprints of items: of their content, and of the code behind the functions and classes in them.

    What the code of a module is, is found out once: the files may change while a run goes on, what was loaded
    does not.
    """

    def __init__(self) -> None:
        self._known: dict[Any, bytes] = {}  # a code object, a class or the name of a module -> its code

    def __call__(self, item: Any) -> bytes:
        """Return 16 bytes. Raises ConfigError for an object that cannot be reduced to content."""
        return digest_of(_ItemWalk(self.code_behind).encode(item))

    def code_behind(self, value: Any) -> bytes:
        """Return what identifies the code of a module, function or class; b"" if it is not the user's."""
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        if name in self._known:
            return self._known[name]
        if not is_own(name, file_of(name)):
            return self._known.setdefault(name, b"")
        is_of_file = name not in MAIN and file_of(name) is not None
        key = name if is_of_file else getattr(value, "__code__", value)
        if key not in self._known:
            facts = _module_facts(name) if is_of_file else CodeFacts(value).facts
            self._known[key] = _digest(facts).encode()
        return self._known[key]


class _ItemWalk(ContentWalk):
    """An encoder of an item; ``code_behind`` tells the code of functions and classes."""

    def __init__(self, code_behind: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._code_behind = code_behind

    def _name(self, value: Any) -> bytes:
        return super()._name(value) + self._code_behind(value)

    def _callable(self, value: Any) -> bytes | None:
        known = super()._callable(value)
        if isinstance(value, types.ModuleType):
            return (known or b"") + self._code_behind(value)
        inner = getattr(value, "__wrapped__", None)  # a function in a cache
        if known is None and callable(inner):
            return self._all(b"W", (type(value).__qualname__, inner))
        return known

    def _function(self, fn: types.FunctionType) -> bytes:
        encoded = super()._function(fn)
        return encoded if "<" not in fn.__qualname__ else encoded + self._code_behind(fn)


def _module_facts(name: str) -> dict[str, str]:
    """Return the facts of all that a loaded module can reach."""
    reach = ModuleReach(sys.path, sys.modules)
    reach.take_module(name, frozenset())
    versions = versions_of(reach.packages).items()
    return facts_of_reach(reach) | {f"version {one}": text for one, text in versions}


def _digest(facts: Mapping[str, str]) -> str:
    whole = blake2b(digest_size=16)
    for name, text in sorted(facts.items()):
        whole.update(f"{name}\0{text}\0".encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def facts_of_reach(reach: ModuleReach) -> dict[str, str]:
    """Return a fact for each file of the user's, and for each module that is not there."""
    facts = {f"code {name}": f"{one.digest} {one.marks}" for name, one in reach.files().items()}
    return facts | {f"missing {name}": "not installed" for name in sorted(reach.missing)}


def change_in_words(was: Mapping[str, str], now: Mapping[str, str], reach: ModuleReach) -> str:
    """Say which facts differ, files first: "own.h, own.py line 1 and numpy 2.1 -> 2.2"; "" if none does."""
    names = [name for name in {**now, **was} if was.get(name) != now.get(name) and name != "function"]
    names.sort(key=lambda name: not name.startswith("code "))
    said = list(dict.fromkeys(_said(name, was.get(name), now.get(name), reach) for name in names))
    if len(said) > _MOST_SAID:
        said = [*said[:_MOST_SAID], "more"]
    return f"{', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else "".join(said)


def _said(name: str, was: str | None, now: str | None, reach: ModuleReach) -> str:
    kind, _, rest = name.partition(" ")
    if kind == "version":
        return f"{rest} {was or 'none'} -> {now or 'none'}"
    if kind == "missing":
        return f"{rest} is {'no longer ' if now else ''}there"
    if kind != "code":
        return name
    if was is None or now is None:
        return f"{rest} ({'not used before' if was is None else 'not used any more'})"
    file, marks = reach.path_of(rest), was.partition(" ")[2]
    found = (
        first_other_line(reach.sources[file][1], reach.sources[file][0], marks) if file and marks else None
    )
    if found is None:
        return rest
    line, inside = found
    return f"{f'{Path(rest).stem}.{inside}, ' if inside else ''}{rest} line {line}"


def _take(reach: ModuleReach, name: str, used: Iterable[str]) -> None:
    """Take the file of a loaded module, or the part of it that is used, or the version of its package."""
    if name in sys.modules and name not in MAIN:
        reach.take_module(name, frozenset(used))


def _home_of(fn: Any) -> str | None:
    """Return the name of the module in which the task itself is written."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    return getattr(fn if isinstance(fn, type) or hasattr(fn, "__code__") else type(fn), "__module__", None)
