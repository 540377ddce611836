"""Digests of what a stage reads for one item: equal ones mean an equal result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.stage import Item
from evenload.pipeline.stage_reads import UNSETTLED

ALL_READS = ("item:group", "item:id", "item:index", "item:seed", "job:seed", "names", "values")
"""What a stage may have read that ended without saying."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The facts that all tasks of a run share. ``began_ns``: when it began, by the system's clock."""

    seed: int
    folder: Path
    began_ns: int


@dataclass(frozen=True, slots=True)
class TaskValues:
    """The values that a stage is given for one task.

    inputs  the item's own columns
    made    outputs of the stages before; of a file its path relative to the run folder
    files   of those that are files: [bytes, digest, ...]
    """

    item: Item
    inputs: Mapping[str, Any]
    made: Mapping[str, Any]
    files: Mapping[str, Sequence[Any]]


def digest_reads(
    reads: Iterable[str], values: TaskValues, job: JobFacts, digests: ContentDigests
) -> dict[str, str] | None:
    """Return the digest of each read; None if one of them cannot be compared with another run's."""
    found = {}
    for read in reads:
        digest = _digest(read, values, job, digests)
        if digest is None:
            return None
        found[read] = digest
    return found


def result_key(identity: str, reads: Mapping[str, str]) -> str:
    """Return the key of a result: of the stage's identity and of all that it read."""
    return digest_of(json_text([identity, sorted(reads.items())]).encode())


def _digest(read: str, values: TaskValues, job: JobFacts, digests: ContentDigests) -> str | None:
    kind, _, name = read.partition(":")
    if kind == "value":
        return _of_value(name, values, job, digests)
    if read == "names":
        return _of_json([*values.inputs, *values.made])
    if read == "values":
        each = [_of_value(one, values, job, digests) for one in {**values.inputs, **values.made}]
        return None if None in each else _of_json(each)
    if kind == "item":
        return _of_json(getattr(values.item, name, None))
    if read == "job:seed":
        return _of_json(job.seed)
    if kind == "file":
        found = digests.of(job.folder / name, unchanged_since_ns=job.began_ns)
        return found if found is None else found or "none"
    return None if read == UNSETTLED else ""


def _of_value(name: str, values: TaskValues, job: JobFacts, digests: ContentDigests) -> str | None:
    if name in values.files:  # where it lies in the run folder does not matter
        return _of_json(["file", values.files[name][1], Path(str(values.made[name])).suffix])
    if name in values.made:
        value, since = values.made[name], None
    elif name in values.inputs:
        value, since = values.inputs[name], job.began_ns
    else:
        return "none"
    if not isinstance(value, str) or not value.startswith("/"):
        return _of_json(value)
    content = digests.of(Path(value), unchanged_since_ns=since)
    if content is None:  # it was changed since the run began: nobody knows which content was read
        return None
    folder = f"{job.folder}/"
    return _of_json([value.removeprefix(folder) if value.startswith(folder) else value, content])


def _of_json(value: Any) -> str:
    return digest_of(json_text(value, allow_nan=True).encode("utf-8", "backslashreplace"))
