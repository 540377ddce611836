"""The files of a job's folder that its stages use, for machines that do not have that folder."""

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenload.errors import ConfigError
from evenload.pipeline.model.model_size import find_model
from evenload.pipeline.site import GivenFile, mark_of
from evenload.pipeline.stage import StageSetup

__all__ = ["MOST_BYTES", "describe_file", "files_of_job", "models_of", "paths_of", "with_content"]

MOST_BYTES = 1 << 30  # of one file, and of the job's files together
MOST_FILES = 10_000


def files_of_job(stages: Sequence[StageSetup]) -> tuple[GivenFile, ...]:
    """Describe the code of the stages, and what their parameters name in the job's folder.

    Models are left out: each machine has its own. Raises ConfigError if it is too much to be sent.
    """
    found: dict[str, GivenFile] = {}
    for stage in stages:
        for path in (*_code_of(stage), *_named_in_folder(stage)):
            if str(path) not in found:
                found[str(path)] = describe_file(path)
    n_bytes = sum(given.n_bytes for given in found.values())
    if n_bytes > MOST_BYTES or len(found) > MOST_FILES:
        raise ConfigError(
            f"the stages name {len(found)} files of {n_bytes / 2**30:.1f} GiB in the job's folder: too much "
            "to be sent to other machines",
            hint="put the job's folder where all machines see it, or give those files by absolute paths",
        )
    return tuple(found.values())


def models_of(stages: Sequence[StageSetup]) -> dict[int, str]:
    """Return the folder of each stage's model, where this machine has one."""
    found = {
        at: find_model(stage.model.path, stage.folder)
        for at, stage in enumerate(stages)
        if stage.model is not None
    }
    return {at: str(path) for at, path in found.items() if path is not None}


def paths_of(stages: Sequence[StageSetup]) -> dict[int, tuple[str, ...]]:
    """Return for each stage the absolute paths that it names and this machine has."""
    named = {
        at: [text for text in (*_texts(stage.params), stage.python or "") if _is_absolute(text)]
        for at, stage in enumerate(stages)
    }
    return {at: tuple(paths) for at, paths in named.items() if paths}


def describe_file(path: str | Path) -> GivenFile:
    """Describe a file, without its content. Raises OSError."""
    return GivenFile(str(path), os.path.getsize(path), mark_of(path))


def with_content(given: GivenFile) -> GivenFile:
    """Add the content, which is read from the disk while it is sent. Raises OSError."""
    with open(given.path, "rb") as file:
        if not given.n_bytes:
            return given._replace(content=np.empty(0, np.uint8))
        mapped = mmap.mmap(file.fileno(), given.n_bytes, access=mmap.ACCESS_READ)
    return given._replace(content=np.frombuffer(mapped, np.uint8))


def _code_of(stage: StageSetup) -> Iterator[Path]:
    yield from (Path(file) for file, _ in stage.sources)
    if stage.target.file is not None:
        yield stage.target.file


def _named_in_folder(stage: StageSetup) -> Iterator[Path]:
    for text in _texts({**stage.params, "call": dict(stage.call)}):
        path = stage.folder / text
        if not text or os.path.isabs(text) or len(text) > 1000 or ".." in Path(text).parts:
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and Path(text) != Path():
            yield from (one for one in sorted(path.rglob("*"))[:MOST_FILES] if one.is_file())


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value of a job file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _is_absolute(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and os.path.exists(text)
