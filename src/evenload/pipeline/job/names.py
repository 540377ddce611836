"""Find names in a job that nothing gives: in conditions, ``best``, ``sort``, ``params`` and ``outputs``.

A name is a column of the inputs or an output of an earlier stage. Where a stage may give outputs that nobody
knows before it ran, any name is let through; the first item that lacks it fails with it.
"""

import contextlib
import math
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload.errors import ConfigError, EvenloadError, did_you_mean, quoted
from evenload.pipeline.file_types import is_file_type
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES, BuiltinStage
from evenload.pipeline.job.expression import Condition, parse_condition
from evenload.pipeline.job.section import one_line
from evenload.pipeline.job.yaml_text import Fault, Place
from evenload.pipeline.problem import LOSSY
from evenload.pipeline.stage import Item
from evenload.pipeline.stage_graph import StageGraph
from evenload.pipeline.target import LiveCode, ReturnedNames, find_returned_names, lacks_method, locate_target

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec, StageSpec

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


ALWAYS_THERE = ("id", "group")  # in conditions
_MOST_NAMED = 12


def find_name_faults(spec: "JobSpec", columns: Collection[str], folder: Path) -> list[Fault]:
    """Return each name that no column and no earlier stage gives, with the nearest that one does.

    columns  of the inputs: names that at least one item has
    folder   that paths in the job belong to
    """
    outputs = [outputs_of(stage, folder) for stage in spec.stages]
    names = _Names(spec.stages, spec.graph, frozenset(columns), outputs)
    faults: list[Fault] = []
    n_fanned = None
    for number, stage in enumerate(spec.stages):
        n_fanned = number if stage.samples > 1 else n_fanned
        found = [*_stage_faults(names, number, folder), *_output_faults(stage, outputs[number])]
        if stage.best is not None:
            found += _best_faults(names, number, n_fanned or 0)
            n_fanned = n_fanned if stage.best.n > 1 else None
        faults += [(("stages", number, *place), text) for place, text in found]
    return [*faults, *_sort_faults(spec, names)]


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that each stage of a job can refer to."""

    stages: "Sequence[StageSpec]"
    graph: StageGraph
    columns: frozenset[str]
    outputs: Sequence[StageOutputs]

    def made(self, stages: Iterable[int]) -> frozenset[str]:
        """Return the outputs of ``stages``."""
        return frozenset(name for stage in stages for name in self.outputs[stage].names)

    def is_open(self, stages: Iterable[int]) -> bool:
        """Return whether one of these stages may give outputs that are not known."""
        return not all(self.outputs[stage].is_all for stage in stages)

    def before(self, number: int, *, after: bool = False) -> frozenset[int]:
        """Return the stages whose outputs stage ``number`` is given; ``after``: with its own."""
        scopes = self.graph.scopes
        given = {n for n in self.graph.before[number] if scopes[n] == scopes[number][: len(scopes[n])]}
        return frozenset(given | ({number} if after else set()))

    def fault(self, name: str, number: int, more: Collection[str] = (), *, after: bool = False) -> str | None:
        """Return why stage ``number`` cannot take ``name``; None if it can, or nobody knows.

        ``after``: the stage's own outputs are there already.
        """
        before = self.before(number, after=after)
        known = self.columns | self.made(before) | frozenset(more)
        if name in known or self.is_open(before):
            return None
        for other in set(range(len(self.stages))) - before:
            given = self.outputs[other]
            if name in self.stages[other].outputs or (given.is_all and name in given.names):
                return f"{quoted(name)} is {self._not_given(other, number)}"
        what = f"{quoted(name)} is no column of the inputs and no output of an earlier stage"
        return f"{what}; {self.nearest(name, known)}"

    def _not_given(self, other: int, number: int) -> str:
        """Say why stage ``number`` is not given the outputs of the stage ``other``."""
        name, gather = self.stages[other].name, self.stages[number].gather
        if other in self.graph.before[number]:
            parts = gather.by if gather is not None else "the parts"
            return f"made by stage {quoted(name)} for each part; " + (
                f"a stage that gathers finds it in the list {parts}"
            )
        if other < number:
            needs = ", ".join([*(self.stages[need].name for need in self.graph.needs[number]), name])
            return f"made by stage {quoted(name)}, which this one does not need; write needs: [{needs}]"
        own = "by this stage itself" if other == number else f"by stage {quoted(name)}"
        return f"made only later, {own}; take it in a stage after that"

    def nearest(self, name: str, known: frozenset[str]) -> str:
        """Propose the nearest known name, and list them; texts in a stage's source are only proposed."""
        listed = sorted(known & (self.columns | {one for stage in self.stages for one in stage.outputs}))
        listed = listed or sorted(known)
        more = ", ..." if len(listed) > _MOST_NAMED else ""
        return f"{did_you_mean(name, sorted(known))}known: {', '.join(listed[:_MOST_NAMED]) or 'none'}{more}"


def _stage_faults(names: _Names, number: int, folder: Path) -> Iterator[Fault]:
    """Yield faults of the condition and the ``params`` of a stage."""
    stage = names.stages[number]
    gathered = (stage.gather.by,) if stage.gather is not None else ()
    if stage.condition is not None:
        for name in sorted(stage.condition.names):
            if text := names.fault(name, number, (*ALWAYS_THERE, *gathered)):
                has_near = any(
                    said in text for said in ("did you mean", "made only later", "does not need", "each part")
                )
                yield ("when",), text if has_near else f'{text}; a text is written "{name}"'
    for name in stage.batch_key or ():
        if text := names.fault(name, number, (*ALWAYS_THERE, *gathered)) or _no_key(names, name):
            yield ("batch_key",), text
    yield from code_faults(stage, folder)
    references, faults = names_taken(stage)
    yield from faults
    for place, name, by_default in references:
        if text := names.fault(name, number, gathered):
            yield (
                place,
                f"{by_default} takes {quoted(name)} if nothing else is given; {text}" if by_default else text,
            )


def _no_key(names: _Names, name: str) -> str | None:
    """Return why no two items can be equal in ``name``; None if they can."""
    kinds = [stage.outputs[name] for stage in names.stages if name in stage.outputs]
    if kinds and is_file_type(kinds[0]):
        kind = f"is a file ({kinds[0]}), and each item has its own"
        return f"{quoted(name)} {kind}; name an output such as its shape"
    if name == "id":
        return "'id' is another for each item; name what items share, such as their shape"
    return None


def _output_faults(stage: "StageSpec", outputs: StageOutputs) -> Iterator[Fault]:
    given = sorted(outputs.names - set(outputs.missing))
    for name in outputs.missing:
        proposed = f"{did_you_mean(name, given)}it returns: {', '.join(given) or 'none'}"
        text = f"the stage returns no {quoted(name)}; {proposed}"
        yield ("outputs", name), text


def _best_faults(names: _Names, number: int, n_fanned: int) -> Iterator[Fault]:
    """Yield faults of ``best.by``: it must be a number that each sample has of its own."""
    best = names.stages[number].best
    assert best is not None
    sampled = range(n_fanned, number + 1)  # all of them, as nothing runs beside samples
    place, stop = ("best", "by"), number + 1
    if best.by in names.made(sampled):
        yield from ((place, text) for text in _no_number(names, best.by, stop))
    elif best.by in names.columns or best.by in names.made(range(n_fanned)):
        yield (
            place,
            f"{quoted(best.by)} is known before there are samples, so that it is the same for all of them",
        )
    elif text := None if names.is_open(sampled) else names.fault(best.by, number, after=True):
        yield place, text


def _sort_faults(spec: "JobSpec", names: _Names) -> Iterator[Fault]:
    sort, n_stages = spec.report.sort, len(spec.stages)
    if sort is None:
        return
    place, made = ("report", "sort"), names.made(range(n_stages))
    if sort in made:
        yield from ((place, text) for text in _no_number(names, sort, n_stages))
    elif not names.is_open(range(n_stages)):
        yield place, f"{quoted(sort)} is no output of a stage; {names.nearest(sort, made)}"


def _no_number(names: _Names, name: str, stop: int) -> Iterator[str]:
    """Yield a fault if the output ``name`` is declared as something else than a number."""
    kinds = [stage.outputs[name] for stage in names.stages[:stop] if name in stage.outputs]
    if kinds and kinds[0] != "number":
        yield f"{quoted(name)} is declared as {kinds[0]}; it must be a number to be compared"


# --- settings without effect --------------------------------------------------------------------------


def settings_without_effect(spec: "JobSpec") -> list[str]:
    """Return one sentence for each setting without effect."""
    notes = [note for stage in spec.stages for note in _of_stage(stage)]
    if spec.report.sort is not None and not any(spec.report.sort in s.outputs for s in spec.stages):
        declared = ", ".join(name for stage in spec.stages for name in stage.outputs) or "none"
        notes.append(f"report.sort: {quoted(spec.report.sort)} is no declared output; declared: {declared}")
    return [*notes, *_untaken(spec)]


def _untaken(spec: "JobSpec") -> Iterator[str]:
    """Yield stages that make nothing but arrays and tensors, which no stage takes."""
    for number in sorted(spec.graph.ends):
        stage, is_last = spec.stages[number], number == len(spec.stages) - 1
        if not is_last and stage.outputs and set(stage.outputs.values()) <= {"npy", "safetensors"}:
            yield f"stages.{stage.name}: no stage needs it; {', '.join(stage.outputs)} is only saved"


def _of_stage(stage: "StageSpec") -> list[str]:
    notes = []
    scale = stage.call.get("true_cfg_scale")
    if isinstance(scale, int | float) and scale > 1 and stage.call.get("negative_prompt") is None:
        notes.append(
            f"stages.{stage.name}.call.true_cfg_scale: {scale} does nothing without a negative_prompt; "
            'give one, if only " " (each step then computes twice)'
        )
    if stage.batch > 1 and stage.n_in_flight > 1:
        whose = "" if stage.in_flight else " (params.concurrency)"
        notes.append(
            f"stages.{stage.name}.batch: {stage.batch} does nothing: each item goes by itself, "
            f"{stage.n_in_flight} under way at once{whose}; write in_flight: {stage.n_in_flight} and no batch"
        )
    elif stage.batch > 1:
        notes.append(
            f"stages.{stage.name}.batch: {stage.batch} items in one call may change the last bits of results"
        )
    waits = [f"{name}" for name in ("max_wait_s", "batch_key") if getattr(stage, name)]
    if waits and stage.batch == 1:
        notes.append(f"stages.{stage.name}.{waits[0]}: does nothing with batch: 1; say how many go together")
    if stage.python is not None and (stage.in_flight or 1) > 1:
        notes.append(f"stages.{stage.name}.in_flight: does nothing with python, whose items go one by one")
    if stage.batch > 1 and not stage.repeatable:
        notes.append(f"stages.{stage.name}.batch: does nothing with repeatable: false, whose items run alone")
    if stage.model is None and any(fit in LOSSY for fit in stage.fit):
        notes.append(f"stages.{stage.name}.fit: nothing is known of its weights without model")
    return notes


# --- priorities ---------------------------------------------------------------------------------------

_PLACE = ("schedule", "priority")


def priorities_of(text: str, items: Iterable[tuple[Item, Mapping[str, Any]]]) -> list[float]:
    """Return a number for each item: the highest goes first. Null, and a column that is missing, comes last.

    text  a condition (1 where it holds, else 0), or the name of a column with numbers
    Raises ConfigError for the first item that has no number.
    """
    condition = parse_condition(text)
    return [_number(condition, item, values) for item, values in items]


def _number(condition: Condition, item: Item, values: Mapping[str, Any]) -> float:
    known = {"group": item.group, **values, "id": item.id}
    found = condition.value({**dict.fromkeys(condition.names), **known})
    if found is None:
        return -math.inf
    if not isinstance(found, bool | int | float) or not math.isfinite(found):
        raise ConfigError(
            f"item {quoted(item.id)} has {quoted(found)} as its priority",
            hint="give numbers, or a condition such as urgent == true",
        )
    return float(found)


def find_priority_faults(spec: "JobSpec", items: Sequence[tuple[Item, Mapping[str, Any]]]) -> list[Fault]:
    """Return why the items' priorities are not known: a name is no column, or a value no number."""
    text = spec.schedule.priority
    if text is None:
        return []
    columns = {"id", "group", *(name for _, values in items for name in values)}
    unknown = sorted(parse_condition(text).names - columns)
    if unknown:
        nearest = did_you_mean(unknown[0], sorted(columns))
        more = ", ..." if len(columns) > _MOST_NAMED else ""
        known = f"known: {', '.join(sorted(columns)[:_MOST_NAMED])}{more}"
        return [(_PLACE, f"{quoted(unknown[0])} is no column of the inputs; {nearest}{known}")]
    try:
        priorities_of(text, items)
    except (ConfigError, OverflowError) as error:
        return [(_PLACE, one_line(error) if isinstance(error, ConfigError) else f"{quoted(text)}: {error}")]
    return []
