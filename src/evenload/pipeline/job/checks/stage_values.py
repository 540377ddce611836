"""What each stage of a job takes and gives by name, as far as it is known before the stage has run."""

import contextlib
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload.errors import EvenloadError, quoted
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES, BuiltinStage
from evenload.pipeline.job.section import one_line
from evenload.pipeline.live_code import LiveCode
from evenload.pipeline.target import ReturnedNames, find_returned_names, lacks_method, locate_target

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import StageSpec

Place = tuple[str | int, ...]
_TEXTS_ONLY = "write {{ for a brace"


class Reference(NamedTuple):
    """A name of a value that a stage takes, and the place below the stage where it stands.

    ``by_default``: what takes it, where the job does not name it.
    """

    place: Place
    name: str
    by_default: str = ""


@dataclass(frozen=True, slots=True)
class StageOutputs:
    """The names of what a stage gives.

    names     it gives these, or may do so
    is_all    it gives no others
    missing   declared, but the stage gives no such output
    """

    names: frozenset[str]
    is_all: bool
    missing: tuple[str, ...] = ()


def outputs_of(stage: "StageSpec", folder: Path) -> StageOutputs:
    """Return the outputs of ``stage``: those declared, and what its kind or its source says.

    A stage that declares outputs may also give others that its source mentions. One that declares none may
    give anything, unless all of its returns are written out as dicts.
    """
    declared = frozenset(stage.outputs)
    given = _given_names(stage, folder)
    if stage.expand is not None:  # what it declares is of each part, and nobody can see that in its source
        missing = (stage.expand,) if given.is_all and stage.expand not in given.names else ()
        return StageOutputs(
            declared | given.names | given.mentioned | {stage.expand}, bool(declared), missing
        )
    if given.is_all:
        missing = tuple(name for name in stage.outputs if name not in given.names)
        return StageOutputs(declared | given.names, True, missing)
    return StageOutputs(declared | given.names | given.mentioned, bool(declared))


def _given_names(stage: "StageSpec", folder: Path) -> ReturnedNames:
    kind, params = BUILTIN_STAGES.get(stage.kind or ""), stage.params
    if kind is None:
        return _names_in_source(stage.target, folder)
    if kind.outputs is not None:
        return ReturnedNames(frozenset(kind.outputs), is_all=True)
    if stage.kind == "torch_module":
        return ReturnedNames(frozenset([str(params.get("output", "output"))]), is_all=True)
    if stage.kind == "openai":
        also = params.get("also") or ()
        named = also.values() if isinstance(also, dict) else also if isinstance(also, list) else ()
        named = [*named, *["response"] * ("request" in params), *["cost"] * ("cost_per_million" in params)]
        names = frozenset(map(str, [params.get("output", "answer"), *named]))
        return ReturnedNames() if params.get("reads_json") else ReturnedNames(names, is_all=True)
    if stage.kind == "command":
        files = params.get("files")
        names = frozenset(map(str, files)) if isinstance(files, dict) else frozenset[str]()
        return ReturnedNames(names, is_all=not params.get("reads_json"))
    found = _names_in_source(params.get("function", ""), folder)
    output = str(params.get("output", "output"))
    return found if found.is_all else replace(found, mentioned=found.mentioned | {output})


def _names_in_source(target: str | LiveCode, folder: Path) -> ReturnedNames:
    try:
        return find_returned_names(locate_target(target, folder))
    except (EvenloadError, OSError):  # the code is not on this machine
        return ReturnedNames()


def code_faults(stage: "StageSpec", folder: Path) -> Iterator[tuple[Place, str]]:
    """Yield faults of code that is not there: what ``params`` of a shipped stage name, a ``batch``."""
    for place, code in stage.code:
        try:
            locate_target(code, folder)
        except EvenloadError as error:
            if place[0] == "params":
                yield place, one_line(error)
    with contextlib.suppress(EvenloadError, OSError):  # the code is not on this machine
        is_own = stage.batch > 1 and stage.kind is None
        if is_own and lacks_method(locate_target(stage.target, folder), "batch"):
            name = str(stage.target).rpartition(":")[2]
            yield (
                ("batch",),
                f"{name} has no method batch, which takes several items; write it, or leave this out",
            )


def names_taken(stage: "StageSpec") -> tuple[list[Reference], list[tuple[Place, str]]]:
    """Return the names of the values that a shipped stage takes, and the faults of its templates.

    A class of the user's own looks values up in its code, where nobody can see which.
    """
    kind = BUILTIN_STAGES.get(stage.kind or "")
    if kind is None:
        return [], []
    found = [Reference((), name, f"kind {stage.kind}") for name in kind.reads]
    found += _columns(stage, kind)
    faults: list[tuple[Place, str]] = []
    for param, by_default in kind.templates.items():
        given = stage.params.get(param)
        if given is None:
            found += [Reference((), name, f"params.{param}") for name in by_default]
        for place, text in _texts(("params", param), given):
            try:
                found += [Reference(place, name) for name in _fields(text)]
            except ValueError as error:
                faults.append((place, f"{quoted(text[:60])} is no template: {error}; {_TEXTS_ONLY}"))
    if stage.kind == "command":
        faults += _unknown_files(stage, [one for one in found if one.name.startswith("out.")])
        found = [one for one in found if one.name not in ("id", "seed") and not one.name.startswith("out.")]
    return found, faults


def _columns(stage: "StageSpec", kind: BuiltinStage) -> Iterator[Reference]:
    for param, by_default in kind.columns.items():
        if param in ("instruction", "prompt") and stage.call.get("prompt"):
            continue  # one text for all items
        if (given := stage.params.get(param)) is None:
            listed = [by_default] if isinstance(by_default, str) else by_default or ()
            yield from (Reference((), name, f"params.{param}") for name in listed)
        else:
            yield from (Reference(place, text) for place, text in _texts(("params", param), given))


def _unknown_files(stage: "StageSpec", asked: Iterable[Reference]) -> Iterator[tuple[Place, str]]:
    files = stage.params.get("files") or {}
    for place, name, _ in asked:
        if name.removeprefix("out.") not in files:
            known = ", ".join(f"{{out.{one}}}" for one in files) or "none"
            yield place, f"{{{name}}} is no file of params.files; known: {known}"


def _texts(place: Place, given: Any) -> list[tuple[Place, str]]:
    if isinstance(given, str):
        return [(place, given)]
    return [((*place, at), str(one)) for at, one in enumerate(given)] if isinstance(given, list) else []


def _fields(template: str) -> list[str]:
    """Return the names in braces; of ``{out.name}`` both parts, of others what comes before . and [."""
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    return [one if one.startswith("out.") else re.split(r"[.\[]", one)[0] for one in fields]
