"""The files and packages that code can reach by its imports. Nothing is imported to find out.

A module is the user's if it is neither Python's nor installed nor evenload's: of others only names are found.
"""

import functools
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from evenload.same_code.source_file import Import, SourceFile, read_source

MAIN = ("__main__", "__mp_main__")  # names of the module that is the program itself
_PACKAGES = ("site-packages", "dist-packages")  # names of folders of installed packages
_MOST_FILES = 2000  # of a folder that is taken whole
_MOST_FOLDERS = 500


class _Place(NamedTuple):
    """The place of a module. ``file``: None for a namespace; ``parts``: folders of its submodules."""

    file: Path | None
    parts: tuple[str, ...] | None


class ModuleReach:
    """The user's files that code can reach, which grow as modules are taken.

    path      where modules are looked for
    loaded    modules that are there already, and are what their names mean
    base      files below it are shown by their path from there, others by the module's name
    ours      modules of evenload that count as the user's
    sources   file -> what it says and its bytes
    packages  top names of the installed packages that are imported
    missing   names of modules that are not there
    """

    def __init__(
        self,
        path: Sequence[str],
        loaded: Mapping[str, ModuleType] | None = None,
        base: Path | None = None,
        ours: tuple[str, ...] = (),
    ):
        self._path = list(path)
        self._loaded = {} if loaded is None else loaded
        self._base = base
        self._ours = ours
        self.sources: dict[Path, tuple[SourceFile, bytes]] = {}
        self.packages: set[str] = set()
        self.missing: set[str] = set()
        self._shown: dict[Path, str] = {}
        self._parts: dict[Path, frozenset[str]] = {}
        self._places: dict[str, _Place | None] = {}
        self._modules: dict[tuple[str, bool], list[tuple[Path, str, str]]] = {}
        self._has_all = False

    def take_file(self, file: Path, name: str, package: str, names: frozenset[str] = frozenset()) -> None:
        """Take a file and all that it imports.

        name     of its module
        package  from which its relative imports begin
        names    of what it is taken for; none: for all of it
        """
        todo = [(file, name, package)]
        while todo:
            file, name, package = todo.pop()
            part = self._parts.get(file, frozenset())
            if file in self.sources and (not part or (names and names <= part)):
                continue
            try:
                self.sources[file] = read_source(file, names | part if names else names)
            except OSError:  # it was there a moment ago, or has no source
                self.missing.add(name)
                continue
            self._parts[file] = names | part if names else names
            names = frozenset()  # what it imports counts whole
            self._shown[file] = self._name_of(file, name)
            source = self.sources[file][0]
            for one in source.imports:
                todo += self._files(one, package)
            if source.imports_any and name.partition(".")[0] != "evenload":
                todo += self._everything(file.parent)

    def take_import(self, one: Import, package: str = "") -> None:
        """Take what an import names, and all that this imports."""
        for found in self._files(one, package):
            self.take_file(*found)

    def take_module(self, name: str, names: frozenset[str]) -> None:
        """Take a module for these names of it, or all of it, and the packages that it is in."""
        found = self._module(name)
        for at, one in enumerate(found):
            self.take_file(*one, names if at == len(found) - 1 else frozenset())

    def take_everything(self, folder: Path | None) -> None:
        """Take all of the user's modules that are loaded, and those in a folder."""
        for found in self._everything(folder):
            self.take_file(*found)

    def files(self) -> dict[str, SourceFile]:
        """The files by the names that they are shown by; those that share one are one."""
        found: dict[str, SourceFile] = {}
        for file, (source, _) in sorted(self.sources.items()):
            name = self._shown[file]
            if name in found:
                both = sorted((found[name].digest, source.digest))
                source = SourceFile(blake2b("".join(both).encode(), digest_size=16).hexdigest())
            found[name] = source
        return found

    def path_of(self, shown: str) -> Path | None:
        """Return the file that is shown by this name."""
        return next((file for file, name in self._shown.items() if name == shown), None)

    def _name_of(self, file: Path, name: str) -> str:
        if self._base is not None and file.is_relative_to(self._base):
            return str(file.relative_to(self._base))
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return file.name
        n_parts = len(parts) + (file.stem == "__init__")
        return "/".join(file.parts[-n_parts:])

    def _files(self, one: Import, package: str) -> Iterable[tuple[Path, str, str]]:
        """Yield file, name and package of the user's modules that an import runs."""
        name = one.module
        if one.level:
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - one.level + 1])
            name = f"{base}.{one.module}" if base and one.module else base or one.module
        if not name:
            return
        found = self._module(name)
        yield from found
        if one.name and one.name != "*" and (place := self._places.get(name)) is not None and place.parts:
            yield from self._module(f"{name}.{one.name}", may_miss=True)

    def _module(self, name: str, *, may_miss: bool = False) -> list[tuple[Path, str, str]]:
        """Return the user's modules that importing ``name`` runs: itself and the packages it is in."""
        if (name, may_miss) in self._modules:  # hundreds of files import the same
            return self._modules[name, may_miss]
        top, found = name.partition(".")[0], []
        self._modules[name, may_miss] = found
        is_ours = name.startswith(self._ours) if self._ours else False
        if top in sys.builtin_module_names or (top == "evenload" and not is_ours):
            return found
        for depth in range(1, name.count(".") + 2):
            at = ".".join(name.split(".")[:depth])
            place = self._place(at)
            if place is None:
                if not may_miss:
                    self.missing.add(at)
                break
            if place.file is None:
                continue
            if top == "evenload":
                if not at.startswith(self._ours):
                    continue
            elif is_installed(str(place.file)):
                if not _is_python(str(place.file)):
                    self.packages.add(top)
                break
            found.append((place.file, at, at if place.parts is not None else at.rpartition(".")[0]))
        return found

    def _place(self, name: str) -> _Place | None:
        if name not in self._places:
            module = self._loaded.get(name)
            self._places[name] = self._searched(name) if module is None else _place_of(module)
        return self._places[name]

    def _searched(self, name: str) -> _Place | None:
        parent = name.rpartition(".")[0]
        try:
            if parent:
                place = self._place(parent)
                path = list(place.parts or ()) if place is not None else []
                spec = PathFinder.find_spec(name, path) if path else None
            else:
                spec = PathFinder.find_spec(name, self._path) or importlib.util.find_spec(name)
        except Exception:  # finders of others may raise anything
            return None
        if spec is None:
            return None
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        parts = spec.submodule_search_locations
        if file is None and parts is None:  # frozen or built in
            return _Place(Path(sysconfig.get_path("stdlib"), name), None)
        return _Place(file, None if parts is None else tuple(parts))

    def _everything(self, folder: Path | None) -> Iterable[tuple[Path, str, str]]:
        if self._has_all:
            return
        self._has_all = True
        for name, module in list(self._loaded.items()):
            is_own = name != "__main__" and name.partition(".")[0] != "evenload"
            file = getattr(module, "__dict__", {}).get("__file__")  # most are installed: no more is asked
            place = _place_of(module) if is_own and isinstance(file, str) and not is_installed(file) else None
            if place is not None and place.file is not None:
                yield place.file, name, name if place.parts is not None else name.rpartition(".")[0]
        for file in _python_files(folder) if folder is not None else ():
            yield file, file.stem, ""


def _place_of(module: ModuleType) -> _Place:
    known = getattr(module, "__dict__", {})  # the module's own ``__getattr__`` may answer to any name
    file, parts = known.get("__file__"), known.get("__path__")
    if not isinstance(file, str) and parts is None:
        return _Place(Path(sysconfig.get_path("stdlib"), "built-in"), None)
    try:
        return _Place(Path(file) if isinstance(file, str) else None, None if parts is None else tuple(parts))
    except TypeError:
        return _Place(None, ())


def _python_files(folder: Path) -> list[Path]:
    """The Python files below a folder, without environments and hidden folders; so many of them at most."""
    found: list[Path] = []
    for n_folders, (at, folders, files) in enumerate(os.walk(folder)):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and name not in _PACKAGES
            and not os.path.exists(os.path.join(at, name, "pyvenv.cfg"))
        )
        found += [Path(at, name) for name in sorted(files) if name.endswith(".py")]
        if len(found) > _MOST_FILES or n_folders > _MOST_FOLDERS:
            break
    return found[:_MOST_FILES]


def is_installed(file: str) -> bool:
    """Return whether a file is Python's, or of an installed package, perhaps only for this user."""
    return file.startswith(("<frozen", *_installed())) or any(f"/{name}/" in file for name in _PACKAGES)


def _is_python(file: str) -> bool:
    """Return whether an installed file is Python's own."""
    return not any(f"/{name}/" in file for name in _PACKAGES) and not file.startswith(_installed("purelib"))


@functools.cache
def _installed(*names: str) -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = [paths[name] for name in names or ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(dict.fromkeys(f"{one}/" for path in found for one in (path, os.path.realpath(path))))
