"""What a job file of clients names: the model, the clients' examples, the test examples."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class JobParts:
    """A job file of clients with everything that it names loaded.

    job       the file's values
    model     makes the model
    datasets  a client's examples each
    test      examples to test the global model with, if there are some
    """

    job: Any
    model: Any
    datasets: Any
    test: Any


def load_job(path: Path, batch_size: int | None = None) -> JobParts:
    """Read the job file and load what it names; ``batch_size`` wins. Raises SpecError, ConfigError."""
    from evenload._private_files import text_named
    from evenload.clients.job import read_job
    from evenload.errors import SpecError
    from evenload.pipeline.job.job_file import MOST_BYTES
    from evenload.pipeline.job.yaml_text import parse_yaml
    from evenload.pipeline.target import load_target, locate_target

    text = text_named(path, MOST_BYTES, "name a job file (YAML): evenload clients run fl.yaml")
    document, _, faults = parse_yaml(text, str(path))
    if faults:
        raise SpecError(str(path), [(".".join(map(str, place)), message) for place, message in faults])
    job = read_job(document, str(path))
    if batch_size is not None:
        job = replace(job, recipe=replace(job.recipe, batch_size=batch_size))
    made: list[Any] = [
        load_target(locate_target(name, path.parent)) if name else None
        for name in (job.model, job.clients, job.test)
    ]
    return JobParts(job, made[0], made[1](), made[2]() if made[2] else None)
