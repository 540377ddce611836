"""Make of a job's stages the graph that their ``needs`` describe, and find what is wrong with it."""

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from evenload.errors import quoted
from evenload.pipeline.stage_graph import StageGraph

if TYPE_CHECKING:
    from evenload.pipeline.job.spec_stage import StageSpec

__all__ = ["find_need_faults", "graph_of"]

Fault = tuple[tuple[str | int, ...], str]


def graph_of(stages: "Sequence[StageSpec]") -> StageGraph:
    """Return which stages each of ``stages`` takes from; one that names none takes from the one before it."""
    index = {stage.name: number for number, stage in enumerate(stages)}
    needs = []
    for number, stage in enumerate(stages):
        named = (index[name] for name in stage.needs or ())
        needs.append(tuple(sorted(named)) if stage.needs is not None else (number - 1,) if number else ())
    return StageGraph(tuple(needs))


def find_need_faults(stages: "Sequence[StageSpec]") -> list[Fault]:
    """Return each need that is no earlier stage, and samples made or chosen beside another stage."""
    faults = [fault for number in range(len(stages)) for fault in _order_faults(stages, number)]
    return faults or list(_sample_faults(stages, graph_of(stages)))


def _order_faults(stages: "Sequence[StageSpec]", number: int) -> Iterator[Fault]:
    names, given = [stage.name for stage in stages], stages[number].needs or ()
    for at, name in enumerate(given):
        place = (number, "needs", at)
        if name in given[:at]:
            yield place, f"{name!r} is given twice"
        elif name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            proposed = f"did you mean {near[0]!r}? " if near else ""
            yield place, f"there is no stage {quoted(name)}; {proposed}stages: {', '.join(names)}"
        elif name == stages[number].name:
            yield place, f"stage {name!r} cannot need itself"
        elif (later := names.index(name)) > number:
            way = _way_back(stages, names, later, number)
            if way:
                yield place, f"nothing could begin: {' needs '.join([stages[number].name, *way])}"
            else:
                yield place, f"stage {name!r} comes later in the file; move it before {stages[number].name!r}"


def _way_back(stages: "Sequence[StageSpec]", names: list[str], start: int, goal: int) -> list[str]:
    """Return the names on a way of needs from ``start`` to ``goal``, both included; [] if there is none."""
    ways, seen = [[start]], {start}
    for way in ways:
        stage, last = stages[way[-1]], way[-1]
        needs = stage.needs if stage.needs is not None else (names[last - 1],) if last else ()
        for need in (names.index(name) for name in needs if name in names):
            if need == goal:
                return [names[number] for number in (*way, goal)]
            if need not in seen:
                seen.add(need)
                ways.append([*way, need])
    return []


def _sample_faults(stages: "Sequence[StageSpec]", graph: StageGraph) -> Iterator[Fault]:
    """Yield stages that make samples of an item, or choose the best, while another stage works on it."""
    for number, stage in enumerate(stages):
        key = "samples" if stage.samples > 1 else "best" if stage.best is not None else ""
        beside = sorted(graph.beside(number))
        if key and beside:
            names = " and ".join(repr(stages[other].name) for other in beside)
            plural = "" if len(beside) > 1 else "s"
            text = f"stage {names} run{plural} beside this one, and samples are of a whole item; "
            yield (number, key), text + f"put {names} before it with needs, or after the choice"
