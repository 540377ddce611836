"""Find names in a job that nothing gives: in conditions, ``best``, ``sort``, ``params`` and ``outputs``.

A name is a column of the inputs or an output of an earlier stage. Where a stage may give outputs that nobody
knows before it ran, any name is let through; the first item that lacks it fails with it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evenload.errors import did_you_mean, quoted
from evenload.pipeline.file_types import is_file_type
from evenload.pipeline.job.checks.stage_values import StageOutputs, code_faults, names_taken, outputs_of
from evenload.pipeline.stage_graph import StageGraph

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec, StageSpec

Place = tuple[str | int, ...]
Fault = tuple[Place, str]
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
