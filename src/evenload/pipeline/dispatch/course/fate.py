"""What becomes of a strand of which every stage is decided, and whose parts have ended: pure rules."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from evenload.pipeline.dispatch.course.strand import Strand
from evenload.pipeline.stage_graph import StageGraph

__all__ = ["fail_with_parts", "fate_of"]


def fail_with_parts(strand: Strand, strands: Sequence[Strand], excused: AbstractSet[int]) -> None:
    """Note the failure of a part as that of ``strand``, unless it has one of its own.

    strands  all of the run, by number
    excused  stages in which a part may fail: those that gather go on without it
    """
    for stage, numbers in sorted(strand.parts.items()):
        lost = (strands[n] for n in numbers if strands[n].fate == "failed")
        unexcused = next((one for one in lost if not one.errors.keys() <= excused), None)
        if not strand.errors and unexcused is not None and unexcused.error is not None:
            why = unexcused.error
            strand.errors[stage] = replace(why, message=f"{unexcused.item.id}: {why.message}")


def fate_of(strand: Strand, strands: Sequence[Strand], graph: StageGraph) -> str:
    """Return failed, done or filtered; what is gathered of a part need not come farther to be done."""
    if strand.errors:
        return "failed"
    if has_come_through(strand, strands, graph):
        return "done"
    if strand.parent is None:
        return "filtered"
    is_used = strand.scope not in graph.scopes
    is_gathered = is_used or any(stage in strand.made for stage in graph.last_of(strand.scope))
    return "done" if is_gathered else "filtered"


def has_come_through(strand: Strand, strands: Sequence[Strand], graph: StageGraph) -> bool:
    """Is it, or a part of it, through with a stage that nobody needs, or was there no part?"""
    empty = [stage for stage, numbers in strand.parts.items() if not numbers]
    if graph.ends & strand.made.keys() or any(
        stage in graph.scopes[end] for end in graph.ends for stage in empty
    ):
        return True
    parts = (strands[number] for numbers in strand.parts.values() for number in numbers)
    return any(has_come_through(one, strands, graph) for one in parts)
