"""What makes a stage's results beside its inputs: named facts, and one digest of them all.

Code, parameters, weights, types of outputs, versions of packages. Devices, schedule, and who enters a stage
or leaves it are no part of it: they change no result.
"""

import ast
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload._version import __version__
from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.file_types import is_file_type
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.model.model_size import find_model
from evenload.pipeline.problem import LOSSY
from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.target import CodeTarget, LiveCode, locate_target
from evenload.same_code.code_facts import CodeFacts, facts_of_reach
from evenload.same_code.module_reach import ModuleReach
from evenload.same_code.package_versions import MODEL_PACKAGES, environment_of, versions_of

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import StageSpec

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


_PLAIN_PACKAGES = {"numpy", "PIL"}
_ENCODER = "evenload.pipeline.file_types:encode_artifact"
_MOST_PLACES = 10_000  # of params that are looked at for names of files


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """The facts that make a stage's results, and their digest. ``sources``: as of ``StageSetup``."""

    digest: str
    facts: Mapping[str, str]
    sources: tuple[tuple[str, str], ...] = ()


def identify_stage(stage: "StageSpec", folder: Path, digests: ContentDigests) -> StageIdentity:
    """Return what makes the results of one stage; reads code and weights, runs nothing.

    ``folder`` is that of the job file.
    """
    targets = list(_targets(stage, folder))
    code = read_code(targets, folder)
    facts = {"target": targets[0].name, "evenload": __version__ if stage.kind in BUILTIN_STAGES else ""}
    facts |= code.facts
    packages = set(code.packages) | _PLAIN_PACKAGES
    if stage.model is not None or packages - _PLAIN_PACKAGES:  # another may use models
        packages |= MODEL_PACKAGES
    if stage.python is None:
        facts |= {f"version {name}": version for name, version in versions_of(packages).items()}
    else:
        found = environment_of(stage.python, folder)
        facts |= {f"version {name}": digest_of(text.encode()) for name, text in found.items()}
    kind = BUILTIN_STAGES.get(stage.kind or "")
    params = {n: value for n, value in stage.params.items() if kind is None or n not in kind.manners}
    for section, given in (("params", params), ("call", stage.call)):
        for name, value in given.items():
            if isinstance(value, LiveCode):  # ``read_code`` tells what it is
                continue
            facts[f"{section}.{name}"] = json_text(value, allow_nan=True)
            for file, digest in _files(value, folder, digests):
                facts[f"{section}.{name} {file}"] = digest
    facts["outputs"] = json_text(stage.outputs)
    if stage.expand is not None:  # else what it gave, or why it failed, would be kept as of one that does not
        facts["expand"] = stage.expand
    facts |= _model_facts(stage, folder, digests)
    if stage.batch_changes_bits == "allow" and stage.n_in_flight == 1:  # else a batch makes no difference
        facts["batch"] = str(stage.batch)
        if stage.batch_key is not None:
            facts["batch_key"] = json_text(stage.batch_key)
    return StageIdentity(digest_of(json_text(sorted(facts.items())).encode()), facts, code.sources)


def _targets(stage: "StageSpec", folder: Path) -> Iterator[CodeTarget]:
    """Yield the places of all code that makes a result: the stage's own first."""
    for target in dict.fromkeys((stage.target, *(code for _, code in stage.code))):
        yield locate_target(target, folder)
    if any(map(is_file_type, stage.outputs.values())):
        yield locate_target(_ENCODER, folder)


def _files(value: Any, folder: Path, digests: ContentDigests) -> Iterator[tuple[str, str]]:
    """Yield the files and folders that a parameter names, with the digests of their contents."""
    todo, n_seen = [value], 0
    while todo and n_seen < _MOST_PLACES:
        one, n_seen = todo.pop(), n_seen + 1
        if isinstance(one, Mapping):
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
        elif isinstance(one, str) and one.strip("./ ") and "\0" not in one and "\n" not in one:
            digest = digests.of(folder / one)
            if digest:
                yield one, digest


def _model_facts(stage: "StageSpec", folder: Path, digests: ContentDigests) -> dict[str, str]:
    model = stage.model
    if model is None:
        return {}
    facts = {
        "model.dtype": model.dtype,
        "model.components": json_text(model.components),
        "fit": json_text([fit for fit in stage.fit if fit in LOSSY]),
    }
    if stage.params.get("download") is True:  # it may come only when it is loaded: known by its name
        return {**facts, "model.path": model.path}
    found = find_model(model.path, folder)
    weights = digests.of(found) if found is not None else ""
    return {**facts, "weights": weights} if weights else {**facts, "model.path": model.path}


def change_of(was: Mapping[str, str] | None, now: Mapping[str, str]) -> str:
    """Say which facts differ, for a person: "`questions` changed"; "" if none does."""
    if was is None:
        return "another version of evenload made it"
    if any(" " not in digest for name, digest in was.items() if name.startswith("code ")):
        return "another version of evenload made it, which looked at code in another way"
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if len(names) > 1:  # the others say what differs in it
        names = [name for name in names if name != "function"]
    said = list(dict.fromkeys(_named(name, was, now) for name in names))
    if len(said) > 3:
        said = [*said[:3], "more"]
    return (
        f"{' and '.join([', '.join(said[:-1]), said[-1]] if len(said) > 1 else said)} changed" if said else ""
    )


def _named(name: str, was: Mapping[str, str], now: Mapping[str, str]) -> str:
    if name.startswith(("the ", "`")):  # what live code uses, in words
        return name
    kind, _, rest = name.partition(" ")
    if kind == "code":
        return f"`{rest}`"
    if kind in ("version", "missing", "evenload"):
        return f"the version of {rest or kind}"
    section, _, key = kind.partition(".")
    if section in ("params", "call"):
        return f"`{rest or key}`"
    return {"weights": "the weights", "function": "its code"}.get(kind, f"`{kind}`")
