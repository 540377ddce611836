"""The job that a program puts together, as the document that a job file would hold."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.pipeline.job.spec import JobSpec
from evenload.pipeline.job.spec_settings import SOURCES, JobSection
from evenload.pipeline.job.yaml_text import Place
from evenload.pipeline.json_values import json_value
from evenload.pipeline.stage import Stage
from evenload.pipeline.target import target_of

ROWS = "items.jsonl"  # beside the job, or in the run folder, where items are given as values
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,39}")


def job_document(
    stages: Iterable[Any], keys: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], list[tuple[Place, str]]]:
    """Return a job as a job file in ``folder`` would have it, and what no job file could hold.

    stages  each a ``Stage``, or the class or function of one
    keys    of the section ``job``, such as ``name``, and the other sections of a job file
    Raises ConfigError if ``stages`` are none.
    """
    if isinstance(stages, str | Mapping) or not isinstance(stages, Iterable):
        raise ConfigError(f"{quoted(stages)} are no stages", hint="give a list: Pipeline([Stage(...), ...])")
    faults: list[tuple[Place, str]] = []
    listed = [one if isinstance(one, Stage) else Stage(one) for one in stages]
    document: dict[str, Any] = {"version": 1, "job": {"name": "pipeline", "inputs": {}}}
    for key, value in _plain(keys, (), faults).items():
        (document["job"] if _is_of_job(key) else document)[key] = value
    entries = [_entry(stage, number, folder, faults) for number, stage in enumerate(listed)]
    return with_inputs({**document, "stages": entries}, document["job"]["inputs"]), faults


def lacks_source(inputs: Any) -> bool:
    """Return whether the section ``inputs`` does not say where items come from: a program gives them."""
    return isinstance(inputs, Mapping) and all(inputs.get(source) is None for source in SOURCES)


def with_inputs(document: dict[str, Any], inputs: Any) -> dict[str, Any]:
    """Return a job with these ``inputs``; without a source, they are a table that is written when it runs."""
    inputs = {**inputs, "jsonl": ROWS} if lacks_source(inputs) else inputs
    return {**document, "job": {**document["job"], "inputs": inputs}}


def _is_of_job(key: str) -> bool:
    """Return whether a key, perhaps misspelt, is one of the section ``job``."""
    known = [*JobSpec.model_fields, *JobSection.model_fields]
    near = [key] if key in known else difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return bool(near) and near[0] in JobSection.model_fields


def _entry(stage: Stage, number: int, folder: Path, faults: list[tuple[Place, str]]) -> dict[str, Any]:
    place, code = ("stages", number), stage.code
    entry = _plain(stage.options, place, faults)
    named = code.rpartition(":")[2] if isinstance(code, str) else getattr(code, "__name__", entry.get("kind"))
    entry.setdefault("name", named if _NAME.fullmatch(str(named or "")) else f"stage{number + 1}")
    if isinstance(code, str | type):
        entry["target"] = code if isinstance(code, str) else target_of(code, folder)
    elif code is not None:
        if entry.pop("params", None):
            faults.append(((*place, "params"), "a function takes none; call={...} is given to each call"))
        outputs = entry.get("outputs")
        is_one = isinstance(outputs, dict) and len(outputs) == 1
        output = next(iter(outputs)) if is_one else entry["name"]
        entry |= {"kind": "function", "params": {"function": target_of(code, folder), "output": output}}
    return entry


def _plain(options: Mapping[str, Any], place: Place, faults: list[tuple[Place, str]]) -> dict[str, Any]:
    """Return options as YAML holds them, paths as texts; what it cannot hold is a fault, and left out."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        try:
            found[key] = json_value(_with_texts(value))
        except ConfigError as error:
            text = f"a value {error.message}, which no job file holds; load it in the constructor"
            faults.append(((*place, key), f"{text}, or let the code itself refer to it"))
    return found


def _with_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_texts(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(one) for one in value]
    return str(value) if isinstance(value, PurePath) else value
