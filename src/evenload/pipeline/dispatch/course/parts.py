"""Parts of an item: made of what a stage gave, and taken together again for one that gathers them."""

from collections.abc import Iterable, Sequence
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.dispatch.course.strand import Made, Strand
from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.part_keys import MOST_PARTS, is_key
from evenload.pipeline.stage_graph import StageGraph


def split_parts(made: Made, parts: str) -> tuple[Made, list[tuple[str, Made]]]:
    """Divide what an expanding stage gave: what is of the whole, with the number of parts, and of each part.

    The stage gave ``{"pages": ["001", "002"], "001.text": ..., "002.text": ..., "title": ...}``.
    Raises ConfigError if it did not: workers check that, but who knows what a worker is.
    """
    keys = made.outputs.get(parts)
    if not isinstance(keys, list) or len(keys) > MOST_PARTS or not all(map(is_key, keys)):
        raise ConfigError(f"{parts} came back as {quoted(repr(keys)[:200])}, which are no names of parts")
    whole, each = Made({}, {}), {key: Made({}, {}) for key in keys}
    whole.outputs[parts] = len(each)
    for name, value in made.outputs.items():
        key, dot, output = name.partition(".")
        if name == parts:
            continue
        target, output = (each[key], output) if dot and key in each else (whole, name)
        target.outputs[output] = value
        if name in made.files:
            target.files[output] = made.files[name]
    return whole, list(each.items())


def gathered(parts: Sequence[Strand], needs: Iterable[int], before: Sequence[int]) -> tuple[list, list]:
    """Return the values of ``parts`` that are through with all ``needs``, and a digest of them.

    before  stages whose outputs count; what the parts share with the whole is left out
    The second is as the ledger has files: bytes (none) and digest, in which files count with their content.
    """
    needs, values, digests = list(needs), [], []
    for part in parts:
        if all(need in part.made for need in needs):  # those that were filtered are left out
            outputs: dict[str, Any] = {"id": part.item.id}
            files: dict[str, list] = {}
            for stage in before:
                if stage in part.made:
                    outputs.update(part.made[stage].outputs)
                    files.update(part.made[stage].files)
            values.append(outputs)
            digests.append({k: ["file", files[k][1]] if k in files else v for k, v in outputs.items()})
    return values, [0, digest_of(json_text(digests).encode("utf-8", "backslashreplace"))]


def refuse_lost(parts: Sequence[Strand], needs: Sequence[int], graph: StageGraph, name: str) -> None:
    """Raise ConfigError if one of ``parts`` has failed before it was through with ``needs``."""
    whys = ((part, _why_lost(part, need, graph)) for part in parts for need in needs)
    lost = {part.item.id: why for part, why in whys if why is not None}
    if lost:
        first, why = next(iter(lost.items()))
        raise ConfigError(
            f"{len(lost)} of {len(parts)} {name} failed, such as {quoted(first)} in {why.stage}: {why.type}: "
            f"{why.message}",
            hint="gather: {by: ..., allow_failed: true} goes on with the others",
        )


def _why_lost(part: Strand, stage: int, graph: StageGraph) -> ItemFailure | None:
    """Return the failure because of which ``part`` is not through with ``stage``; None if it was filtered."""
    owner = next((one for one in part.line if stage in one.closed), None)
    if owner is None:
        return None
    if stage in owner.errors:
        return owner.errors[stage]
    found = (_why_lost(owner, need, graph) for need in graph.needs[stage])
    return next((one for one in found if one is not None), None) if owner.closed[stage] == "shut" else None
