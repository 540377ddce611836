"""Whether a source may change what is imported after it: environment variables, folders, finders."""

import ast
import functools
from collections.abc import Iterator, Sequence

__all__ = ["prepares_imports"]

# What a later import may depend on, and who may change it; environment variables that are only read do not.
_PREPARES = frozenset(["environ", "environb", "putenv", "unsetenv", "setenv", "load_dotenv", "read_env"])
_PREPARES |= frozenset(["meta_path", "path_hooks", "addsitedir", "setdlopenflags", "CDLL", "LoadLibrary"])
_READS = frozenset(["get", "items", "keys", "values", "copy"])


@functools.lru_cache(256)  # files: the stages of a job have many in common, and jobs of one process
def prepares_imports(text: bytes) -> bool:
    """Return whether a module may; of what is no Python, or nested too deeply to be told, too."""
    try:
        return any(_prepares(node) for node in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def _prepares(node: ast.stmt) -> bool:
    """Return whether a statement may change what is imported after it, or what that finds."""
    parts = list(ast.walk(node))
    read = {id(one) for part in parts for one in _read_only(part)}
    changed = [part for part in parts if id(part) not in read]
    return any(_is_path(part) or not _PREPARES.isdisjoint(_words_of(part)) for part in changed)


def _words_of(part: ast.AST) -> Iterator[str]:
    if isinstance(part, ast.Name):
        yield part.id
    elif isinstance(part, ast.Attribute):
        yield part.attr
    elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
        yield part.value
    elif isinstance(part, ast.ImportFrom | ast.Import):
        yield from (alias.name.rpartition(".")[2] for alias in part.names)


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
