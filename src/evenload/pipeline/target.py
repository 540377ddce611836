"""Where a stage's class lives, found and checked without running its code.

A target is ``file.py:Class`` (a path relative to the job file) or ``module:Class`` (anything importable). The
source is parsed, not imported: the process that reads job files stays free of torch, and a typo is found
before a worker starts.
"""

import ast
import difflib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError, UnknownName

__all__ = ["Target", "check_arguments", "load_target", "locate"]


@dataclass(frozen=True, slots=True)
class Target:
    """``name`` in ``file``, or in the importable ``module`` where ``file`` is None."""

    module: str
    name: str
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Signature:
    """What a callable takes beyond its own arguments; ``is_open`` if it takes any name."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    is_open: bool


def locate(target: str, folder: Path) -> Target:
    """Find ``target``; relative files are looked up in ``folder``.

    Raises ConfigError (with the nearest name where there is one) if the text is malformed, the file or module
    is missing or has a syntax error, or no such class is in it.
    """
    module, colon, name = target.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise ConfigError(
            f"{target!r} is not module:Class", hint="write file.py:Class or package.module:Class"
        )
    if module.endswith(".py") or "/" in module:
        file = (folder / module).resolve()
        if not file.is_file():
            raise ConfigError(f"there is no file {file}{_nearest_file(file)}")
        found = Target(file.stem, name, file)
        _check_name(found, file)
        return found
    origin = _origin(module, folder)
    found = Target(module, name)
    if origin is not None:
        _check_name(found, origin)
    return found


def _nearest_file(file: Path) -> str:
    siblings = [path.name for path in file.parent.glob("*.py")] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, siblings, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _origin(module: str, folder: Path) -> Path | None:
    """The source of an importable module; None if it is there but has none (an extension module)."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        beside = folder / f"{module}.py"
        hint = f"write {beside.name}:..." if beside.is_file() else "install it, or write file.py:Class"
        raise ConfigError(f"no module named {module!r}", hint=hint)
    is_source = spec.origin is not None and spec.origin.endswith(".py")
    return Path(spec.origin) if is_source and spec.origin else None


def _check_name(target: Target, source: Path) -> None:
    body = _parsed(source).body
    own = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    brought = {
        alias.asname or alias.name
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    named = {
        place.id
        for node in body
        if isinstance(node, ast.Assign)
        for place in node.targets
        if isinstance(place, ast.Name)
    }
    # A star import, or a name made in some other way, may bring it: only a plain module is judged.
    is_plain = "*" not in brought and not any(isinstance(node, ast.If | ast.Try | ast.With) for node in body)
    if is_plain and target.name not in own | brought | named:
        raise UnknownName(f"name in {source.name}:", target.name, own)


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes(), filename=str(source))
    except (SyntaxError, ValueError) as error:
        where = f" line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{source}{where} is not valid Python: {error}") from error


def _signature(function: ast.FunctionDef, n_own: int) -> _Signature:
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


def check_arguments(target: Target, given: dict[str, Any], method: str, n_own: int) -> list[str]:
    """Faults of the keyword arguments ``given`` to ``method`` of the class, past its own ``n_own``.

    Returns one sentence for each unknown or missing name; nothing where the source does not tell (a class
    that is imported from elsewhere, or that inherits the method).
    """
    source = target.file or _origin(target.module, Path())
    if source is None:
        return []
    for node in _parsed(source).body:
        if isinstance(node, ast.ClassDef) and node.name == target.name:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == method:
                    return _argument_faults(_signature(part, n_own), given)
            if not node.bases and method == "__call__":
                return [f"{target.name} has no __call__(inputs, item) method"]
    return []


def _argument_faults(signature: _Signature, given: dict[str, Any]) -> list[str]:
    faults = [f"{name!r} is required" for name in signature.required if name not in given]
    if signature.is_open:
        return faults
    for name in given:
        if name not in signature.names:
            near = difflib.get_close_matches(name, signature.names, n=1, cutoff=0.5)
            known = ", ".join(signature.names) or "none"
            faults.append(
                f"unknown {name!r}; " + (f"did you mean {near[0]!r}? " if near else "") + f"known: {known}"
            )
    return faults


def load_target(target: Target) -> Any:
    """Import and return the object; a file's folder is put first on ``sys.path``, as for a script.

    Raises whatever the import raises, ConfigError if the module has no such name.
    """
    module = importlib.import_module(target.module) if target.file is None else _module_of(target.file)
    try:
        return getattr(module, target.name)
    except AttributeError:
        raise UnknownName(f"class in {target.module}", target.name, dir(module)) from None


def _module_of(file: Path) -> Any:
    name = f"evenload_job:{file}"  # no importable module can have this name
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
