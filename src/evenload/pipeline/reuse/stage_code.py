"""The code that a stage runs, found without running it: files of the user's, and the packages beside."""

import ast
import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.target import CodeTarget
from evenload.same_code.code_facts import CodeFacts, facts_of_reach
from evenload.same_code.module_reach import ModuleReach

# Parts of evenload that decide what a stage's result is.
_OUR_OWN = ("evenload.pipeline.stages", "evenload.pipeline.artifacts", "evenload.pipeline.file_types")


@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of one stage.

    facts     a fact for each file of the user's, and for each module that is not there (``same_code``)
    contents  the user's files and their bytes
    packages  top names of the packages that are imported
    texts     definitions of live code, "" of one that is not known
    """

    facts: dict[str, str]
    contents: tuple[tuple[Path, bytes], ...]
    packages: frozenset[str]
    texts: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The user's files and the digests of all their bytes."""
        return tuple((str(file), digest_of(content)) for file, content in self.contents)

    @property
    def prepares_imports(self) -> bool:
        """Whether it may set environment variables, or change where modules are looked for."""
        return any(not text or prepares_imports(text.encode()) for text in self.texts) or any(
            file.suffix != ".py" or prepares_imports(content) for file, content in self.contents
        )


def read_code(targets: Sequence[CodeTarget], folder: Path) -> StageCode:
    """Read the code that ``targets`` depend on; ``folder`` is that of the job file."""
    folders = [str(folder) for target in targets for folder in target.folders]
    reach = ModuleReach([*dict.fromkeys(folders), *sys.path], base=folder, ours=_OUR_OWN)
    live = [target.live for target in targets if target.live is not None]
    known = [CodeFacts(one.load()) for one in live]
    for target in (one for one in targets if one.live is None):
        names = frozenset([target.name])
        if target.file is not None and not target.is_module:
            reach.take_file(target.file, target.file.stem, "", names)
        else:
            reach.take_module(target.module, names)
    ours = Path(__file__).parents[2]
    facts, packages, sources = facts_of_reach(reach), set(reach.packages), dict(reach.sources)
    for one in known:
        facts |= one.facts
        packages |= one.reach.packages
        sources |= one.reach.sources
    read = ((file, content) for file, (_, content) in sorted(sources.items()))
    contents = tuple((file, content) for file, content in read if not file.is_relative_to(ours))
    return StageCode(facts, contents, frozenset(packages), tuple(one.text for one in live))


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
