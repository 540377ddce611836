"""Find a stage's class and check it without running its code.

A target is ``file.py:Class`` (a path relative to the job file) or ``module:Class`` (anything importable). The
source is parsed, not imported: the process that reads job files stays free of torch, and a typo is found
before a worker starts.
"""

import ast
import difflib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError, UnknownName, quoted
from evenload.executor.task.user_file import import_file
from evenload.pipeline.artifacts import digest_of

__all__ = [
    "CodeTarget",
    "ReturnedNames",
    "check_arguments",
    "find_returned_names",
    "has_sources",
    "load_target",
    "locate_target",
]

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = FUNCTIONS | ast.ClassDef


@dataclass(frozen=True, slots=True)
class CodeTarget:
    """The place of a class or function: ``name`` in ``file``, or in ``module`` if that is None."""

    module: str
    name: str
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments that a callable takes from the job file; ``is_open``: it takes any name."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class ReturnedNames:
    """The names of a stage's outputs, as far as its source says.

    names      keys of the dicts that its returns are written as
    mentioned  all texts in its source, any of which may be the name of an output
    is_all     every return is such a dict, so that ``names`` are all there are
    """

    names: frozenset[str] = frozenset()
    mentioned: frozenset[str] = frozenset()
    is_all: bool = False


def locate_target(target: str, folder: Path) -> CodeTarget:
    """Find ``file.py:Name`` or ``module:Name``; relative files are looked up in ``folder``.

    Raises ConfigError (with the nearest name where there is one) if the text is malformed, the file or module
    is missing or has a syntax error, or no such class is in it.
    """
    module, colon, name = target.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise ConfigError(
            f"{quoted(target)} is not module:Class", hint="write file.py:Class or package.module:Class"
        )
    if module.endswith(".py") or "/" in module:
        file = (folder / module).resolve()
        if not file.is_file():
            raise ConfigError(f"there is no file {file}{_nearest_file(file)}")
        found = CodeTarget(file.stem, name, file)
        _check_name(found, file)
        return found
    origin = _origin(module, folder)
    found = CodeTarget(module, name)
    if origin is not None:
        _check_name(found, origin)
    return found


def _nearest_file(file: Path) -> str:
    siblings = [path.name for path in file.parent.glob("*.py")] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, siblings, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _origin(module: str, folder: Path) -> Path | None:
    """Return the source file of an importable module; None for an extension module, which has none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        beside = folder / f"{module}.py"
        hint = f"write {beside.name}:..." if beside.is_file() else "install it, or write file.py:Class"
        raise ConfigError(f"no module named {quoted(module)}", hint=hint)
    is_source = spec.origin is not None and spec.origin.endswith(".py")
    return Path(spec.origin) if is_source and spec.origin else None


def _check_name(target: CodeTarget, source: Path) -> None:
    """Raise UnknownName if the module's source defines and imports no such name."""
    own: list[str] = []
    others: set[str] = set()
    for node in _statements(_parsed(source).body):
        if isinstance(node, DEFINITIONS):
            own.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            others |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            places = node.targets if isinstance(node, ast.Assign) else [node.target]
            others |= {place.id for place in places if isinstance(place, ast.Name)}
    is_open = (
        "*" in others or "__getattr__" in own
    )  # the name may come from elsewhere; the worker will find out
    if not is_open and target.name not in own and target.name not in others:
        raise UnknownName(f"name in {source.name}:", target.name, own)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those inside its if, try, with, match and loops."""
    todo = body[::-1]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, DEFINITIONS):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [arm.body for name in ("handlers", "cases") for arm in getattr(node, name, [])]
            todo += [one for part in reversed(parts) for one in reversed(part)]


def _parsed(source: Path) -> ast.Module:
    try:
        return _parse(source.read_bytes(), str(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{source}{where} is not valid Python: {error}") from error


@functools.lru_cache(64)  # each stage asks for several things of a file, and the stages of a job share files
def _parse(content: bytes, name: str) -> ast.Module:
    return ast.parse(content, filename=name)


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef, n_own: int) -> _Signature:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    n_required = len(positional) - len(arguments.defaults)
    required = [a.arg for a in positional[n_own:n_required]]
    required += [
        a.arg
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    names = [a.arg for a in [*positional[n_own:], *arguments.kwonlyargs]]
    return _Signature(tuple(names), tuple(required), arguments.kwarg is not None)


def check_arguments(target: CodeTarget, given: dict[str, Any], method: str, n_own: int) -> list[str]:
    """Check the keyword arguments ``given`` to ``method``; its first ``n_own`` are not the user's.

    Returns one sentence for each unknown or missing name. Nothing is checked where the source does not say:
    a class that is imported from elsewhere, or that inherits the method.
    """
    source = target.file or _origin(target.module, Path())
    if source is None:
        return []
    for node in _parsed(source).body:
        if isinstance(node, ast.ClassDef) and node.name == target.name:
            for part in node.body:
                if isinstance(part, FUNCTIONS) and part.name == method:
                    return _argument_faults(_signature(part, n_own), given)
            if not node.bases and method == "__call__":
                return [f"{target.name} has no __call__(inputs, item) method"]
            if not node.bases:  # no constructor either, which takes nothing
                return _argument_faults(_Signature((), (), is_open=False), given)
    return []


def find_returned_names(target: CodeTarget) -> ReturnedNames:
    """Read the names of a stage's outputs from the source of its class (or function), without running it."""
    source = target.file or _origin(target.module, Path())
    if source is None:
        return ReturnedNames()
    found = [
        node
        for node in _statements(_parsed(source).body)
        if isinstance(node, DEFINITIONS) and node.name == target.name
    ]
    if len(found) != 1:  # imported from elsewhere, or one of several
        return ReturnedNames()
    node = found[0]
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    mentioned = frozenset(text for text in texts if isinstance(text, str))
    methods = [node] if isinstance(node, FUNCTIONS) else node.body
    called = "__call__" if isinstance(node, ast.ClassDef) else target.name
    calls = [part for part in methods if isinstance(part, FUNCTIONS) and part.name == called]
    if len(calls) != 1 or calls[0].decorator_list or node.decorator_list:
        return ReturnedNames(mentioned=mentioned)
    keys = [_literal_keys(part.value) for part in _own_returns(calls[0])]
    names = frozenset(name for some in keys for name in some or ())
    return ReturnedNames(names, mentioned, bool(keys) and None not in keys)


def _own_returns(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Return]:
    """Yield the returns of a function, without those of functions and classes inside it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, DEFINITIONS | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _literal_keys(value: ast.expr | None) -> list[str] | None:
    """Return the keys of a dict that is written out, ``{"score": ...}``; None for anything else."""
    if not isinstance(value, ast.Dict):
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
    names = [key for key in keys if isinstance(key, str)]
    return names if len(names) == len(keys) else None


def _argument_faults(signature: _Signature, given: dict[str, Any]) -> list[str]:
    faults = [f"{quoted(name)} is required" for name in signature.required if name not in given]
    if signature.is_open:
        return faults
    for name in given:
        if name not in signature.names:
            near = difflib.get_close_matches(name, signature.names, n=1, cutoff=0.5)
            known = ", ".join(signature.names) or "none"
            faults.append(
                f"unknown {quoted(name)}; "
                + (f"did you mean {quoted(near[0])}? " if near else "")
                + f"known: {known}"
            )
    return faults


def load_target(target: CodeTarget, sources: Sequence[tuple[str, str]] = ()) -> Any:
    """Import and return the object; a file's folder is put first on ``sys.path``, as for a script.

    sources  files of its code and their digests; what this process has imported of others is imported again
    Raises what the import raises, and UnknownName if the module has no such name.
    """
    name = target.module if target.file is None else f"evenload_job:{target.file}"  # no importable name
    _forget_changed(name, sources)
    module = importlib.import_module(name) if target.file is None else _module_of(target.file, name)
    if sources:
        vars(module)[_SOURCES] = tuple(sources)
    try:
        return getattr(module, target.name)
    except AttributeError:
        raise UnknownName(f"class in {target.module}", target.name, dir(module)) from None


def has_sources(sources: Sequence[tuple[str, str]]) -> bool:
    """Return whether each of these files still has the content of its digest."""
    try:
        return all(digest_of(Path(file).read_bytes()) == digest for file, digest in sources)
    except OSError:
        return False


_SOURCES = "__evenload_sources__"  # in a module: what it was imported from


def _forget_changed(name: str, sources: Sequence[tuple[str, str]]) -> None:
    """Drop a module, and those that it imported, if their code was other than ``sources``."""
    was = vars(sys.modules[name]).get(_SOURCES) if name in sys.modules else None
    if was is None or not sources or was == tuple(sources):
        return
    files = {file for file, _ in (*was, *sources)}
    for known, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in files:
            del sys.modules[known]


def _module_of(file: Path, name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return import_file(file, name)
