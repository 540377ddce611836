"""The code that a stage runs: slices of its module and of those that it imports, and the packages beside.

A module is the user's if it is neither of Python nor installed: then its source counts. Of installed packages
the version does.
"""

import contextlib
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.reuse.code_slice import ImportedName, ModuleSlice
from evenload.pipeline.target import CodeTarget

__all__ = ["StageCode", "read_code"]

# Parts of evenload that decide what a stage's result is.
_OUR_OWN = ("evenload.pipeline.stages", "evenload.pipeline.artifacts")
_PACKAGES = ("site-packages", "dist-packages")  # names of folders of installed packages
_MOST_FILES = 2000  # of a folder that is taken whole


@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of one stage.

    digests           file -> digest of the part of it that the stage depends on
    sources           the user's files and the digest of all their bytes
    packages          top names of the packages that are imported
    missing           names of modules that are not there
    prepares_imports  it may set environment variables, or change where modules are looked for
    """

    digests: dict[str, str]
    sources: tuple[tuple[str, str], ...]
    packages: frozenset[str]
    missing: frozenset[str]
    prepares_imports: bool


def read_code(targets: Sequence[CodeTarget], folder: Path) -> StageCode:
    """Read the code that ``targets`` depend on; ``folder`` is that of the job file. Runs none of it."""
    reader = _CodeReader(folder, [target.file.parent for target in targets if target.file is not None])
    for target in targets:
        reader.take_target(target)
    return reader.code()


@dataclass(slots=True)
class _Module:
    """A module of the user's: its slice, and where its relative imports begin."""

    file: Path
    content: bytes
    slice: ModuleSlice | None
    package: str


class _CodeReader:
    """Follows imports from one slice to the next."""

    def __init__(self, folder: Path, folders: Sequence[Path]):
        self._folder = folder
        self._path = [str(one) for one in dict.fromkeys(folders)] + sys.path
        self._modules: dict[Path, _Module] = {}
        self._specs: dict[str, ModuleSpec | None] = {}
        self._done: set[tuple[Path, ImportedName]] = set()
        self._packages: set[str] = set()
        self._missing: set[str] = set()
        self._has_all = False

    def take_target(self, target: CodeTarget) -> None:
        file = target.file
        module = self._module(file, "") if file is not None else self._imported(target.module)
        if module is not None and module.slice is not None:
            module.slice.take(target.name)
        self._follow()

    def code(self) -> StageCode:
        digests, sources = {}, []
        for file, module in sorted(self._modules.items()):
            digests[self._shown(file)] = digest_of(
                "\n".join(_parts(module)).encode("utf-8", "backslashreplace")
            )
            if not _is_ours(file):
                sources.append((str(file), digest_of(module.content)))
        slices = [module.slice for file, module in self._modules.items() if not _is_ours(file)]
        prepares = any(one is None or one.prepares_imports for one in slices)
        found = frozenset(self._packages), frozenset(self._missing)
        return StageCode(digests, tuple(sources), *found, prepares)

    def _shown(self, file: Path) -> str:
        return str(file.relative_to(self._folder)) if file.is_relative_to(self._folder) else file.name

    def _follow(self) -> None:
        """Take what the slices import, until that gives nothing new."""
        is_new = True
        while is_new:
            is_new = False
            for module in list(self._modules.values()):
                if module.slice is None:
                    continue
                for one in module.slice.imports:
                    if (module.file, one) not in self._done:
                        self._done.add((module.file, one))
                        self._take_import(module, one)
                        is_new = True
                if not _is_ours(module.file):
                    n_before = len(self._modules)
                    for one in module.slice.loaded:
                        self._found(module, one)  # what it does when it is imported counts
                    is_new |= len(self._modules) > n_before
                    is_new |= module.slice.imports_anything and self._take_folder(module.file.parent)

    def _take_import(self, module: _Module, one: ImportedName) -> None:
        found, part = self._found(module, one)
        if part is not None:
            self._take_all(part)
        elif found is not None and found.slice is not None and found.slice.has(one.name):
            found.slice.take(one.name)
        elif found is not None:
            self._take_all(found)

    def _found(self, module: _Module, one: ImportedName) -> tuple[_Module | None, _Module | None]:
        """Return the user's module that an import names, and the one in it if the name is of a module."""
        name = one.module
        if one.level:
            parents = module.package.split(".")
            base = ".".join(parents[: len(parents) - one.level + 1])
            name = f"{base}.{one.module}" if one.module else base
        found = self._imported(name)  # None also for a folder without __init__.py
        if one.name in ("", "*"):
            return found, None
        has_it = found is not None and found.slice is not None and found.slice.has(one.name)
        if has_it and found is not module:  # its own __init__.py binds the name of a part by this import
            return found, None
        return found, self._imported(f"{name}.{one.name}", may_miss=True)

    def _take_all(self, module: _Module) -> None:
        if module.slice is not None:
            module.slice.take_all()

    def _take_folder(self, folder: Path) -> bool:
        """Take all modules beside one that imports by names made while it runs."""
        if self._has_all:
            return False
        self._has_all = True
        for _, file in zip(range(_MOST_FILES), sorted(folder.rglob("*.py")), strict=False):
            self._take_all(self._module(file, ""))
        return True

    def _imported(self, name: str, *, may_miss: bool = False) -> _Module | None:
        """Return a module of the user's by name, with the packages that it is in; None for any other."""
        top = name.partition(".")[0]
        is_ours = name.startswith(_OUR_OWN)
        if (
            top in sys.builtin_module_names
            or top in sys.stdlib_module_names
            or (top == "evenload" and not is_ours)
        ):
            return None
        found, path = None, self._path
        for depth in range(1, name.count(".") + 2):
            at = ".".join(name.split(".")[:depth])
            spec = self._spec(at, path)
            if spec is None:
                if not may_miss:
                    self._missing.add(at)
                return None
            path = list(spec.submodule_search_locations or ())
            origin = spec.origin if spec.has_location else None
            if origin is not None and not is_ours and _is_installed(origin):
                self._packages.add(top)
                return None
            if origin is not None and (not is_ours or at.startswith(_OUR_OWN)):
                is_package = spec.submodule_search_locations is not None
                found = self._module(Path(origin), at if is_package else at.rpartition(".")[0])
                if is_package and depth <= name.count("."):
                    self._take_all(found)
        return found

    def _spec(self, name: str, path: list[str]) -> ModuleSpec | None:
        if name not in self._specs:
            self._specs[name] = PathFinder.find_spec(name, path)
        return self._specs[name]

    def _module(self, file: Path, package: str) -> _Module:
        if file not in self._modules:
            content = file.read_bytes()
            try:
                known = ModuleSlice(content) if file.suffix == ".py" else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                known = None
            self._modules[file] = _Module(file, content, known, package)
        return self._modules[file]


def _parts(module: _Module) -> list[str]:
    """Return the statements that count; the content if it is no Python, or nested too deeply to be told."""
    with contextlib.suppress(RecursionError):
        if module.slice is not None:
            return module.slice.parts
    return [repr(module.content)]


def _is_ours(file: Path) -> bool:
    return file.is_relative_to(Path(__file__).parents[1])


def _is_installed(origin: str) -> bool:
    """Return whether a file is Python's, or of an installed package, perhaps only for this user."""
    own = sysconfig.get_paths()
    folders = [own[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [str(entry) for entry in sys.path if Path(entry).name in _PACKAGES]
    return origin.startswith(tuple(f"{folder}/" for folder in folders))
