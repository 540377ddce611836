"""Find a stage's class and check it without running its code.

A target is ``file.py:Class`` (a path relative to the job file) or ``module:Class`` (anything importable). The
source is parsed, not imported: the process that reads job files stays free of torch, and a typo is found
before a worker starts. Code that only the running program has is a ``LiveCode``.
"""

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._private_files import read_plain
from evenload.errors import ConfigError, UnknownName, did_you_mean, quoted
from evenload.executor.task.prepare import pickle_callable
from evenload.executor.task.user_file import import_file
from evenload.pipeline.artifacts import digest_of
from evenload.same_code.module_reach import MAIN, is_installed

IN_PROGRAM = "<python>"  # in the place of a module
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = FUNCTIONS | ast.ClassDef


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
        nodes = ast.walk(_parse("".join(inspect.findsource(function)[0]).encode(), ""))
        named = [one for one in nodes if isinstance(one, DEFINITIONS) and one.name == code.__name__]
        found = [one for one in named if _first_line(one) <= first <= (one.end_lineno or 0)]
        return ast.unparse(found[-1])
    except (OSError, TypeError, ValueError, LookupError, AttributeError, SyntaxError, RecursionError):
        return ""


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min(one.lineno for one in (node, *node.decorator_list))


@dataclass(frozen=True, slots=True)
class CodeTarget:
    """The place of a class or function: ``name`` in ``file``, or in the installed ``module`` if that is None.

    module  with dots if the file is part of a package and imported as such
    path    folders that its own imports are looked for in, first of all; by default the file's own
    live    the code itself, if it is of the program and of no module
    """

    module: str
    name: str
    file: Path | None = None
    path: tuple[Path, ...] = ()
    live: LiveCode | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """``path``, or the file's folder if it is not given."""
        return self.path or ((self.file.parent,) if self.file is not None else ())

    @property
    def is_module(self) -> bool:
        """Whether it is imported by the name of its module."""
        return self.file is None or "." in self.module or self.file.name == "__init__.py"


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


def locate_target(target: str | LiveCode, folder: Path) -> CodeTarget:
    """Find ``file.py:Name`` or ``module:Name``; files, and modules first of all, are looked up in ``folder``.

    Raises ConfigError (with the nearest name where there is one) if the text is malformed, the file or module
    is missing or has a syntax error, or no such class is in it.
    """
    if isinstance(target, LiveCode):
        return CodeTarget(IN_PROGRAM, target.name, live=target)
    module, colon, name = target.rpartition(":")
    if module == IN_PROGRAM:
        raise ConfigError(
            f"{quoted(name)} was given in Python, and no file holds it",
            hint="run the program again, which goes on with its run; or move the code to a file",
        )
    if not colon or not module or not name.isidentifier():
        raise ConfigError(
            f"{quoted(target)} is not module:Class", hint="write file.py:Class or package.module:Class"
        )
    if module.endswith(".py") or "/" in module:
        file = (folder / module).resolve()
        if not file.is_file():
            raise ConfigError(f"there is no file {file}{_nearest_file(file)}")
        found = _of_file(file, name, folder.resolve())
        _check_name(found, file)
        return found
    origin = beside = _beside(module, folder.resolve())
    found = CodeTarget(module, name)
    if beside is not None:
        found = CodeTarget(module, name, beside, (folder.resolve(),))
    else:
        origin = _origin(module)
    if origin is not None:
        _check_name(found, origin)
    return found


def target_of(code: Any, folder: Path) -> str | LiveCode:
    """Return a class or function as a job file in ``folder`` names it, or itself where none could."""
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    name, file = getattr(code, "__qualname__", ""), getattr(module, "__file__", None)
    if module is None or getattr(module, name, None) is not code or module.__name__ in MAIN or not file:
        return LiveCode(code)
    beside = _beside(module.__name__, folder)
    is_ours = module.__name__.partition(".")[0] == "evenload"
    if is_ours or is_installed(file) or (beside is not None and beside.samefile(file)):
        target = f"{module.__name__}:{name}"
    else:
        path = Path(file).resolve()
        target = f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{name}"
    try:
        locate_target(target, folder)
    except ConfigError:  # its source does not show the name, which was made while it ran
        return LiveCode(code)
    return target


def _of_file(file: Path, name: str, folder: Path) -> CodeTarget:
    """Return the place of a name in a file: in a package, if the file has relative imports.

    The package lies in the nearest folder above without an ``__init__.py``, at most the job file's; a file
    below that without one, in a package of that folder.
    """
    root = file.parent
    while root not in (folder, root.parent) and (root / "__init__.py").is_file():
        root = root.parent
    if root == file.parent and root.is_relative_to(folder):
        root = folder
    parts = file.relative_to(root).with_suffix("").parts
    may_be_part = len(parts) > 1 and all(part.isidentifier() for part in parts)
    relative = (one for one in ast.walk(_parsed(file)) if isinstance(one, ast.ImportFrom) and one.level)
    if may_be_part and any(relative):
        return CodeTarget(".".join(parts), name, file, tuple(dict.fromkeys((root, folder))))
    return CodeTarget(file.stem, name, file, tuple(dict.fromkeys((file.parent, root, folder))))


def _beside(module: str, folder: Path) -> Path | None:
    """Return the file of a module in the job file's folder; None if there is none, or it is one of ours."""
    if module.partition(".")[0] == "evenload":
        return None
    place = folder.joinpath(*module.split("."))
    found = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def _nearest_file(file: Path) -> str:
    siblings = [path.name for path in file.parent.glob("*.py")] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, siblings, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _origin(module: str) -> Path | None:
    """Return the source file of an importable module; None for an extension module, which has none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        raise ConfigError(f"no module named {quoted(module)}", hint="install it, or write file.py:Class")
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


def _tree(target: CodeTarget) -> ast.Module:
    """Return the parsed source that defines a target; an empty module where there is none."""
    if target.live is not None:
        return ast.parse(target.live.text)
    source = target.file or _origin(target.module)
    return _parsed(source) if source is not None else ast.Module([], [])


def _parsed(source: Path) -> ast.Module:
    try:
        return _parse(read_plain(source, _MOST_SOURCE_BYTES), str(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{source}{where} is not valid Python: {error}") from error


@functools.lru_cache(64)  # each stage asks for several things of a file, and the stages of a job share files
def _parse(content: bytes, name: str) -> ast.Module:
    return ast.parse(content, filename=name)


def check_arguments(target: CodeTarget, given: dict[str, Any], method: str, n_own: int) -> list[str]:
    """Check the keyword arguments ``given`` to ``method``; its first ``n_own`` are not the user's.

    Returns one sentence for each unknown or missing name. Nothing is checked where the source does not say:
    a class that is imported from elsewhere, or that inherits the method.
    """
    for node in _tree(target).body:
        if isinstance(node, ast.ClassDef) and node.name == target.name:
            for part in node.body:
                if isinstance(part, FUNCTIONS) and part.name == method:
                    return _argument_faults(part.args, n_own, given)
            if not node.bases and method == "__call__":
                return [f"{target.name} has no __call__(inputs, item) method"]
            if not node.bases:  # no constructor either, which takes nothing
                return _argument_faults(ast.arguments([], [], None, [], [], None, []), 0, given)
    return []


def lacks_method(target: CodeTarget, method: str) -> bool:
    """Return whether the source shows that a class has no such method and can get none from elsewhere."""
    if target.live is not None:
        return not hasattr(target.live.load(), method)
    module = _tree(target)
    kinds = ast.ClassDef | ast.FunctionDef
    found = [one for one in _statements(module.body) if isinstance(one, kinds) and one.name == target.name]
    node = found[0] if len(found) == 1 else None
    if not isinstance(node, ast.ClassDef) or node.bases or node.keywords or node.decorator_list:
        return False
    named: set[Any] = set()
    for one in ast.walk(module):  # X.batch = ..., setattr(X, "batch", ...), X = other(X)
        if isinstance(getattr(one, "ctx", None), ast.Store):
            named |= {getattr(one, key, None) for key in ("id", "attr") if _is_word(one, key)}
        elif isinstance(one, ast.Constant) and one.value != target.name:  # which __all__ has, too
            named |= {one.value} if _is_word(one, "value") else set()
    for one in (one for one in ast.walk(node) if one is not node):
        named |= {getattr(one, key) for key in ("id", "attr", "name") if _is_word(one, key)}
    return named.isdisjoint((method, target.name, "__getattr__", "__getattribute__", "setattr", "__dict__"))


def _is_word(node: ast.AST, key: str) -> bool:
    return isinstance(getattr(node, key, None), str)


def find_returned_names(target: CodeTarget) -> ReturnedNames:
    """Read the names of a stage's outputs from the source of its class (or function), without running it."""
    nodes = _statements(_tree(target).body)
    found = [node for node in nodes if isinstance(node, DEFINITIONS) and node.name == target.name]
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


_OURS = {2: ("self", "context"), 3: ("self", "inputs", "item")}  # of __init__ and __call__, by their number


def _argument_faults(taken: ast.arguments, n_own: int, given: dict[str, Any]) -> list[str]:
    positional = [*taken.posonlyargs, *taken.args]
    needed = positional[n_own : len(positional) - len(taken.defaults)]
    needed += [one for one, value in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if value is None]
    faults = [f"{quoted(one.arg)} is required" for one in needed if one.arg not in given]
    names = [one.arg for one in (*positional[n_own:], *taken.kwonlyargs)]
    for name in (one for one in given if one not in names and taken.kwarg is None):
        nearest = did_you_mean(name, names, 0.5)
        if name in [one.arg for one in positional[:n_own]] and name not in _OURS[n_own]:
            ours = ", ".join(_OURS[n_own])
            nearest = f"it stands where evenload passes another: write ({ours}, {name}); "
        faults.append(f"unknown {quoted(name)}; {nearest}known: {', '.join(names) or 'none'}")
    return faults


def load_target(target: CodeTarget, sources: Sequence[tuple[str, str]] = ()) -> Any:
    """Import and return the object; its folders are put first on ``sys.path``, as for a script.

    sources  files of its code and their digests; what this process imported of other code in them, as
             ``note_sources`` tells, is imported again
    Raises what the import raises, UnknownName if the module has no such name, ConfigError if another package
    of its name is imported already.
    """
    if target.live is not None:
        return target.live.load()
    name = target.module if target.is_module else f"evenload_job:{target.file}"  # no importable name
    _forget_changed(sources)
    for folder in map(str, reversed(target.folders)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    module = _module_of(target, name)
    try:
        return getattr(module, target.name)
    except AttributeError:
        raise UnknownName(f"class in {target.module}", target.name, dir(module)) from None


def has_sources(sources: Sequence[tuple[str, str]]) -> bool:
    """Return whether each of these files still has the content of its digest."""
    try:
        return all(
            digest_of(read_plain(Path(file), _MOST_SOURCE_BYTES)) == digest for file, digest in sources
        )
    except OSError:
        return False


_MOST_SOURCE_BYTES = 16 << 20
_DIGEST = "__evenload_digest__"  # in a module of a user's: of the code that it was imported from
_ROOT = "__evenload_root__"  # in a package of a job: the folder that it lies in


def note_sources(sources: Sequence[tuple[str, str]]) -> None:
    """Remember of which code the modules of ``sources`` are, for ``load_target`` in a later run."""
    digests = dict(sources)
    for module in _modules_in(digests).values():
        vars(module).setdefault(_DIGEST, digests[module.__file__])


def _forget_changed(sources: Sequence[tuple[str, str]]) -> None:
    """Drop the modules of ``sources`` if one was imported from other code: they import one another."""
    digests = dict(sources)
    found = _modules_in(digests)
    if any(vars(one).get(_DIGEST, digests[one.__file__]) != digests[one.__file__] for one in found.values()):
        for name in found:
            del sys.modules[name]


def _modules_in(files: Collection[str]) -> dict[str, Any]:
    """Return the imported modules of these files, by name."""
    modules = list(sys.modules.items())
    return {name: one for name, one in modules if getattr(one, "__dict__", {}).get("__file__") in files}


def _module_of(target: CodeTarget, name: str) -> Any:
    if target.file is None:
        return importlib.import_module(name)
    if not target.is_module:
        return sys.modules[name] if name in sys.modules else import_file(target.file, name)
    top, root = name.partition(".")[0], str(target.folders[0])
    if top in sys.modules and vars(sys.modules[top]).get(_ROOT, root) != root:  # of an earlier job
        sys.path.remove(root)
        sys.path.insert(0, root)
        for known in [one for one in sys.modules if one == top or one.startswith(f"{top}.")]:
            del sys.modules[known]
    module = importlib.import_module(name)
    if Path(str(module.__file__)).resolve() != target.file.resolve():
        raise ConfigError(
            f"{name} is {quoted(str(module.__file__))} here, not {quoted(str(target.file))}",
            hint=f"give the package {top} another name, or name the file",
        )
    vars(sys.modules[top])[_ROOT] = root
    return module
