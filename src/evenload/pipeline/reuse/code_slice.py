"""The part of a module that a class or function depends on: pure, source text in, syntax out.

    module = ModuleSlice(text)
    module.take("Draw")           what Draw uses of the module, directly or not, is part of the slice now
    module.parts                  the statements of the slice, without comments, layout and line numbers
    module.imports                what they import

An edit outside of the slice changes no result. What cannot be told from the source is part of every slice:
statements that call, loop or branch, decorated definitions. A module that looks itself up by name (globals,
exec, __subclasses__, ...) is one part.
"""

import ast
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["ImportedName", "ModuleSlice"]

# Who uses one of these may reach any name of the module, or any module of the folder.
_LOOKUPS = frozenset(
    [
        "globals",
        "locals",
        "vars",
        "exec",
        "eval",
        "compile",
        "__import__",
        "__subclasses__",
        "__init_subclass__",
        "modules",
        "inspect",
    ]
)
_IMPORTERS = frozenset(["import_module", "__import__", "run_path", "run_module", "spec_from_file_location"])
# What a later import may depend on, and who may change it; environment variables that are only read do not.
_PREPARES = frozenset(["environ", "environb", "putenv", "unsetenv", "setenv", "load_dotenv", "read_env"])
_PREPARES |= frozenset(["meta_path", "path_hooks", "addsitedir", "setdlopenflags", "CDLL", "LoadLibrary"])
_READS = frozenset(["get", "items", "keys", "values", "copy"])
_ACTIONS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


class ImportedName(NamedTuple):
    """One name that a module imports: ``name`` of ``module`` ("" for the module itself, "*" for all names).

    level  number of leading dots
    """

    module: str
    level: int
    name: str


class ModuleSlice:
    """A part of one module that grows as names are taken. Raises SyntaxError or ValueError for no Python.

    imports_anything  it may import modules that the source does not name
    """

    def __init__(self, text: str | bytes):
        self._body = _statements(text)
        self.imports_anything = any(one.words & _IMPORTERS for one in self._body)
        is_whole = any(one.words & _LOOKUPS for one in self._body)
        is_whole |= any(name.name == "*" for one in self._body for name in one.imports)
        self._binds: dict[str, list[int]] = {}  # name -> statements that bind it
        self._taken: set[int] = set()
        self._todo: list[int] = []
        for at, one in enumerate(self._body):
            for name in one.bound:
                self._binds.setdefault(name, []).append(at)
        for at, one in enumerate(self._body):
            if is_whole or one.acts:
                self._take(at)
        self._settle()

    def has(self, name: str) -> bool:
        """Return whether a statement of the module binds ``name``."""
        return name in self._binds

    def take(self, name: str) -> None:
        """Make ``name``, and all that it uses, part of the slice; the whole module if it binds no such."""
        for at in self._binds.get(name, range(len(self._body))):
            self._take(at)
        self._settle()

    def take_all(self) -> None:
        """Make the slice the whole module."""
        for at in range(len(self._body)):
            self._take(at)
        self._settle()

    @property
    def parts(self) -> list[str]:
        """The statements of the slice in their order, as texts of their syntax."""
        return [self._body[at].text for at in sorted(self._taken)]

    @property
    def prepares_imports(self) -> bool:
        """Whether the slice may set environment variables, or change where modules are looked for."""
        return any(self._body[at].prepares_imports for at in self._taken)

    @property
    def imports(self) -> list[ImportedName]:
        """All that the slice imports, also inside functions."""
        return [name for at in sorted(self._taken) for name in self._body[at].imports]

    @property
    def loaded(self) -> list[ImportedName]:
        """What is imported with this module, whether the slice uses it or not."""
        return [name for one in self._body for name in one.imports_at_once]

    def _take(self, at: int) -> None:
        if at not in self._taken:
            self._taken.add(at)
            self._todo.append(at)

    def _settle(self) -> None:
        while self._todo:
            for name in self._body[self._todo.pop()].words:
                for at in self._binds.get(name, ()):
                    self._take(at)


class _Statement:
    """A statement of a module, and what it says."""

    def __init__(self, node: ast.stmt):
        self._node = node
        self.words = frozenset(_words(node))
        self.bound = frozenset(_bound(node))
        self.imports = tuple(_imports(node))
        self.imports_at_once = tuple(_imports_at_once(node))
        self.acts = _acts(node)
        self.prepares_imports = _prepares_imports(node)

    @functools.cached_property
    def text(self) -> str:
        return ast.dump(self._node)


@functools.lru_cache(256)  # files: the stages of a job have many in common, and jobs of one process
def _statements(text: str | bytes) -> tuple[_Statement, ...]:
    """Read a module. Raises SyntaxError or ValueError for no Python."""
    return tuple(_Statement(one) for node in ast.parse(text).body for one in _one_by_one(node))


def _one_by_one(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield an import of several names as one import for each."""
    if isinstance(node, ast.Import):
        yield from (ast.Import([alias]) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (ast.ImportFrom(node.module, [alias], node.level) for alias in node.names)
    else:
        yield node


def _words(node: ast.AST) -> Iterator[str]:
    """Yield every name that a statement may look up: names, attributes, and texts that could be names."""
    for part in ast.walk(node):
        yield from _words_of(part)


def _words_of(part: ast.AST) -> Iterator[str]:
    if isinstance(part, ast.Name):
        yield part.id
    elif isinstance(part, ast.Attribute):
        yield part.attr
    elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
        yield part.value
    elif isinstance(part, ast.ImportFrom | ast.Import):
        yield from (alias.name.rpartition(".")[2] for alias in part.names)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds there."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store | ast.Del):
            yield part.id
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.Import | ast.ImportFrom):
            for alias in part.names:
                yield alias.asname or alias.name.partition(".")[0]


def _acts(node: ast.stmt) -> bool:
    """Return whether a statement may do more than bind its names."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return False
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return bool(node.decorator_list) or bool(getattr(node, "keywords", ()))
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    is_plain = all(isinstance(target, ast.Name) for target in targets)
    return not is_plain or any(isinstance(part, _ACTIONS) for part in ast.walk(node))


def _prepares_imports(node: ast.stmt) -> bool:
    """Return whether a statement may change what is imported after it, or what that finds."""
    parts = list(ast.walk(node))
    read = {id(one) for part in parts for one in _read_only(part)}
    changed = [part for part in parts if id(part) not in read]
    return any(_is_path(part) or not _PREPARES.isdisjoint(_words_of(part)) for part in changed)


def _read_only(part: ast.AST) -> Sequence[ast.AST]:
    """Return what an expression only reads of: ``a`` in a.get(..), in a[..] that is not set, in x in a."""
    if isinstance(part, ast.Attribute) and part.attr in _READS:
        return [part.value]
    if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load):
        return [part.value]
    return part.comparators if isinstance(part, ast.Compare) else ()


def _is_path(part: ast.AST) -> bool:
    """Return whether it is ``sys.path``."""
    return isinstance(part, ast.Attribute) and ast.unparse(part) == "sys.path"


def _imports_at_once(node: ast.AST) -> Iterator[ImportedName]:
    """Yield what a statement imports when the module is: not what its functions do when they are called."""
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Import | ast.ImportFrom):
            yield from _imports(part)
        elif not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += reversed(list(ast.iter_child_nodes(part)))


def _imports(node: ast.AST) -> Iterator[ImportedName]:
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from (ImportedName(alias.name, 0, "") for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            yield from (ImportedName(part.module or "", part.level, alias.name) for alias in part.names)
