"""What makes a stage's results beside its inputs: named facts, and one digest of them all.

Code, parameters, weights, types of outputs, versions of packages. Devices, schedule, and who enters a stage
or leaves it are no part of it: they change no result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload._version import __version__
from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.file_types import is_file_type
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.live_code import LiveCode
from evenload.pipeline.model.model_size import find_model
from evenload.pipeline.problem import LOSSY
from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.reuse.stage_code import read_code
from evenload.pipeline.target import CodeTarget, locate_target
from evenload.same_code.package_versions import MODEL_PACKAGES, environment_of, versions_of

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec, StageSpec

_PLAIN_PACKAGES = {"numpy", "PIL"}
_ENCODER = "evenload.pipeline.file_types:encode_artifact"
_MOST_PLACES = 10_000  # of params that are looked at for names of files


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """The facts that make a stage's results, and their digest. ``sources``: as of ``StageSetup``."""

    digest: str
    facts: Mapping[str, str]
    sources: tuple[tuple[str, str], ...] = ()


def identify_stages(spec: "JobSpec", folder: Path, digests: ContentDigests) -> list[StageIdentity]:
    """Return the identity of each stage of a job; reads code and weights, runs nothing."""
    return [identify_stage(stage, folder, digests) for stage in spec.stages]


def identify_stage(stage: "StageSpec", folder: Path, digests: ContentDigests) -> StageIdentity:
    """Return what makes the results of one stage; ``folder`` is that of the job file."""
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
