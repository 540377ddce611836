"""What a worker's machine has of a job, and the files that it is given because it lacks them. Plain values.

SiteCheck ──► worker looks ──► SiteReport ──► GivenFile
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evenload._private_files import plain_file
from evenload.pipeline.artifacts import digest_of

MARK_BYTES = 64 * 1024


class GivenFile(NamedTuple):
    """A file that a worker needs.

    path     its absolute path on the machine of the run
    n_bytes  its size; ``mark``: digest of its first 64 KiB
    content  uint8 [n_bytes]; None: the worker is to find it at its path
    """

    path: str
    n_bytes: int
    mark: str
    content: Any = None


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """The questions that a worker is asked about its machine.

    run_folder  of the run; ``token_file`` in it holds ``token`` if it is the same folder there
    job_files   files of the job's folder that its stages use
    models      stage -> folder of its model, where the run's machine has one
    paths       stage -> other files and folders that it names by absolute paths
    """

    run_folder: Path
    token_file: str
    token: str
    job_files: tuple[GivenFile, ...] = ()
    models: Mapping[int, str] = field(default_factory=dict)
    paths: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteReport:
    """The answers of a worker.

    has_run_folder  it reads and writes the run folder; else what it makes is fetched back
    has_job_files   it has what the stages use of the job's folder, by now
    lacks           stage -> models and paths that are not there
    """

    has_run_folder: bool = True
    has_job_files: bool = True
    lacks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def values_in(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each value that a stage is given with its place, also those of the parts that it gathers."""
    for name, value in values.items():
        yield (name,), value
        parts: list[Any] = value if isinstance(value, list) else []
        for number, part in enumerate(parts):
            if isinstance(part, dict):
                yield from (((name, number, key), one) for key, one in part.items())


def mark_of(path: str | Path) -> str:
    """Return the digest of the first 64 KiB of a file. Raises OSError."""
    with plain_file(Path(path)) as file:
        return digest_of(file.read(MARK_BYTES))


def is_same_file(given: GivenFile) -> bool:
    """Return whether this machine has that file at its path, by its size and its mark."""
    try:
        path = Path(given.path)
        return path.is_file() and path.stat().st_size == given.n_bytes and mark_of(path) == given.mark
    except OSError:
        return False
