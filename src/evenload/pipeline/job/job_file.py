"""Read a job file: YAML in, a frozen ``JobSpec`` out, every fault at once with its path and line.

Needs pydantic and PyYAML (extra ``yaml``).
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from evenload._private_files import text_named
from evenload.errors import ConfigError, SpecError, did_you_mean, printable, quoted
from evenload.pipeline.job.inputs import Items, find_items
from evenload.pipeline.job.names import find_name_faults, find_priority_faults, settings_without_effect
from evenload.pipeline.job.section import one_line
from evenload.pipeline.job.spec import Faults, JobSpec
from evenload.pipeline.job.spec_settings import SOURCES, JobSection
from evenload.pipeline.job.yaml_text import Fault, Origins, Place, dotted, dump_yaml, parse_yaml
from evenload.pipeline.json_values import json_value
from evenload.pipeline.stage import Stage
from evenload.pipeline.target import target_of

MOST_BYTES = 4_000_000
_PLAIN_WORDS = (  # pydantic's words, and those of a job file
    (r"valid (tuple|list)", "list, such as [a, b]"),
    (r"valid dictionary( or instance of \w+)?", "section of keys and values"),
)
_MAIN_KEYS = (
    ("backend", "name"),
    ("devices", "use"),
    ("schedule", "policy"),
    ("cache", "folder"),
    ("upload", "to"),
)


def load_spec(path: str | Path, changes: Iterable[str] = (), *, with_inputs: bool = True) -> JobSpec:
    """Read and check a job file without its items.

    changes      ``key=value`` texts that win over the file, see ``apply_change``
    with_inputs  False: the job's items, and the code and models of its stages, need not be on this machine
    Raises SpecError with every fault found, ConfigError if the file cannot be read.
    """
    text, folder = _read(path)
    return parse_spec(text, folder, source=str(path), changes=changes, with_inputs=with_inputs)


def load_job(path: str | Path, changes: Iterable[str] = ()) -> tuple[JobSpec, Items]:
    """Read and check a job file, list its items, and check that each name in the job is one of a value.

    Raises as ``load_spec`` and ``items_of``.
    """
    text, folder = _read(path)
    return parse_job(text, folder, str(path), changes)


def _read(path: str | Path) -> tuple[str, Path]:
    """Return the text of a job file and the folder that paths in it belong to."""
    text = text_named(path, MOST_BYTES, "give the path of a job file (YAML); many items go into a table")
    return text, Path(path).resolve().parent


def parse_spec(
    text: str, folder: Path, source: str = "job", changes: Iterable[str] = (), *, with_inputs: bool = True
) -> JobSpec:
    """Check the text of a job file; relative paths in it belong to ``folder``. Raises SpecError."""
    document, lines, faults = parse_yaml(text, source)
    if not isinstance(document, dict):
        raise SpecError(source, [("(file)", "it must be a mapping with version, job and stages")])
    document = _expand_shorthand(document)
    options: dict[Place, str] = {}
    for change in changes:
        options[apply_change(document, change)] = f"--set {printable(change)}"
    return spec_of(document, Origins(source, lines, options), folder if with_inputs else None, faults)


def parse_job(text: str, folder: Path, source: str, changes: Iterable[str] = ()) -> tuple[JobSpec, Items]:
    """Check the text of a job file as ``load_job`` does."""
    spec = parse_spec(text, folder, source, changes)
    return spec, items_of(spec, folder)


def items_of(spec: JobSpec, folder: Path, values: Any = None) -> Items:
    """List the items of a job, or take ``values`` for them, and check that each name in it is one of a value.

    Raises SpecError with all that is wrong, ConfigError for ``values`` that are no items.
    """
    items, faults, notes = find_items(spec.job.inputs, folder, spec.job.seed, values)
    spec._notes += tuple(notes)
    if not faults:
        columns = {name for _, values in items for name in values}
        faults = find_name_faults(spec, columns, folder) + find_priority_faults(spec, items)
    if faults:
        raise spec.origins.error(faults)
    return items


def spec_of(
    document: dict[str, Any],
    origins: Origins,
    folder: Path | None = None,
    faults: Sequence[Fault] = (),
    *,
    is_given: bool = False,
) -> JobSpec:
    """Check a job, whoever put it together.

    folder    that paths in it belong to; None: its files are not looked for
    faults    that were found before
    is_given  its items are values of the program, and the table for them need not be there
    Raises SpecError with all faults.
    """
    document, notes, older_faults = convert_older_keys(_expand_shorthand(document))
    found = [*faults, *older_faults]
    try:
        spec = JobSpec.model_validate(document, context={"folder": folder, "is_given": is_given})
    except ValidationError as error:
        found += [fault for part in error.errors() for fault in _explain(part)]
        spec = None
    if found or spec is None:
        raise origins.error(found)
    spec._notes, spec._origins = (*notes, *settings_without_effect(spec)), origins
    return spec


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the job file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema()}


def apply_change(document: dict[str, Any], change: str) -> Place:
    """Set one key of ``document`` in place, and return where that is. The value is read as YAML.

    ``job.seed=7``, ``stages.restore.call.steps=8``, ``stages[0].call.steps=8``, or ``restore.steps=8``: a
    first part that names a stage stands for its ``params`` (for its ``call`` where that has the key).
    Raises ConfigError if the text is not ``key=value`` or the place does not exist.
    """
    key, equals, text = change.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(
            f"--set {quoted(change)} is not key=value", hint="write for example --set job.seed=7"
        )
    value, _, faults = parse_yaml(text, f"--set {printable(key)}")
    if faults:
        raise SpecError(f"--set {printable(key)}", [(dotted(place), fault) for place, fault in faults])
    listed = document.get("stages")
    named = [stage for stage in listed if isinstance(stage, dict)] if isinstance(listed, list) else []
    stages = {str(stage.get("name")): stage for stage in named}
    if (numbered := _NUMBERED.fullmatch(parts[0])) and int(numbered[1]) < len(named):
        parts = ["stages", str(named[int(numbered[1])].get("name")), *parts[1:]]
    if parts[0] in stages and parts[0] not in JobSpec.model_fields:
        is_call = len(parts) > 1 and parts[1] in (stages[parts[0]].get("call") or {})
        parts = ["stages", parts[0], "call" if is_call else "params", *parts[1:]]
    section: Any = document
    above: Place = ()
    if parts[0] == "stages" and len(parts) > 2:
        if parts[1] not in stages:
            known = ", ".join(stages) or "none"
            raise ConfigError(
                f"--set {printable(key)}: there is no stage {quoted(parts[1])}", hint=f"stages: {known}"
            )
        section, parts = stages[parts[1]], parts[2:]
        above = ("stages", next(at for at, one in enumerate(listed or ()) if one is section))
    for part in parts[:-1]:
        section = section.setdefault(part, {}) if isinstance(section, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"--set {printable(key)}: {quoted(parts[-2])} is not a section of the job file")
    section[parts[-1]] = value
    return (*above, *parts)


_NUMBERED = re.compile(r"stages\[(\d{1,9})\]")  # as faults name a stage


def _expand_shorthand(document: dict[str, Any]) -> dict[str, Any]:
    """Expand ``devices: cpu*4`` to ``devices: {use: cpu*4}``; so for other sections."""
    for section, key in _MAIN_KEYS:
        if isinstance(document.get(section), str | int) and not isinstance(document[section], bool):
            document = {**document, section: {key: document[section]}}
    told = document.get("on_done")
    if isinstance(told, str | list):
        document = {**document, "on_done": {"url" if isinstance(told, str) else "command": told}}
    return document


def _explain(part: Any) -> list[Fault]:
    """Turn one fault of pydantic into ``(path, sentence)``; several where our validator found several."""
    place, kind = tuple(part["loc"]), part["type"]
    cause = part.get("ctx", {}).get("error")
    if isinstance(cause, Faults):
        return [(place + below, text) for below, text in cause.faults]
    if kind == "extra_forbidden":
        known = _known_keys(place[:-1])
        nearest = did_you_mean(str(place[-1]), known, 0.5)
        if len(place) == 3 and place[0] == "stages" and "'params'" not in nearest:
            nearest += f"an argument of the stage's class goes under params: {{{place[-1]}: ...}}; "
        return [(place, f"unknown key; {nearest}known: {', '.join(known)}")]
    if kind == "missing":
        return [(place, "is required and not given")]
    if kind == "literal_error":
        return [(place, f"{quoted(part['input'])} is not known; {_nearest_literal(part)}")]
    if cause is not None:
        return [(place, one_line(cause) if isinstance(cause, ConfigError) else str(cause))]
    said = part["msg"]
    for theirs, plain in _PLAIN_WORDS:
        said = re.sub(theirs, plain, said)
    return [(place, f"{said[0].lower()}{said[1:]}, not {quoted(part['input'])}")]


def _nearest_literal(part: Any) -> str:
    expected = str(part["ctx"]["expected"])
    choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
    return f"{did_you_mean(str(part['input']), choices)}use {expected}"


def _known_keys(place: Place) -> list[str]:
    """Return the keys that the section at ``place`` may have."""
    model: Any = JobSpec
    for part in place:
        if isinstance(part, str):
            model = model.model_fields[part].annotation
        if get_args(model):
            plain = [getattr(one, "__origin__", one) for one in get_args(model)]  # Annotated has one
            model = next(one for one in plain if isinstance(one, type) and issubclass(one, BaseModel))
    return list(model.model_fields)


def spec_text(spec: JobSpec, *, has_defaults: bool = True) -> str:
    """Return ``spec`` as the text of a job file, with every default written out, or only what was given."""
    return dump_yaml(spec.model_dump(mode="json", exclude_unset=not has_defaults))


# --- older keys ---------------------------------------------------------------------------------------
# ``diffusion_model.params`` once held how a model is spread over GPUs: device, device_ids, parallel_mode,
# num_workers, use_device_map. They become ``backend``, ``devices`` and ``schedule``, with a note for each.

_SECTION = "diffusion_model"
_MODES = ("single", "data_parallel", "model_parallel")
_DEVICE_MAPS = ("auto", "balanced")
_ELSEWHERE = "is an older key that is not understood; write it in a stage, under model, params or call"


_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {  # whether a value is one, and which are
    "parallel_mode": (
        lambda value: value in (*_MODES, "ray"),
        f"use {', '.join(_MODES)} or ray; for stages side by side write schedule: {{mode: stage_parallel}}",
    ),
    "use_device_map": (lambda value: isinstance(value, bool), "use true or false"),
    "device_ids": (
        lambda value: (
            isinstance(value, list) and value != [] and all(type(n) is int and n >= 0 for n in value)
        ),
        "use a list such as [0, 1, 2]",
    ),
    "device": (lambda value: isinstance(value, str), "use cuda, cuda:0 or cpu"),
    "num_workers": (lambda value: type(value) is int and value >= 1, "use a number from 1"),
}


def convert_older_keys(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[Fault]]:
    """Return the document without older keys, a note for each that was converted, and the faults among them.

    Sections of one value are written out already. Where a file has the newer key as well, the newer one wins.
    """
    if _SECTION not in document:
        return dict(document), [], []
    older = document[_SECTION]
    found = {key: value for key, value in document.items() if key != _SECTION}
    params = older.get("params", {}) if isinstance(older, dict) else None
    if not isinstance(params, dict):
        said = "is an older section that holds params; write devices and schedule instead"
        return found, [], [((_SECTION,), said)]
    notes: list[str] = []
    faults: list[Fault] = [((_SECTION, key), _ELSEWHERE) for key in older if key != "params"]
    faults += [((_SECTION, "params", key), _ELSEWHERE) for key in params if key not in _KNOWN]
    for key, (is_one, hint) in _KNOWN.items():
        if key not in params:
            continue
        value, said = params[key], f"{_SECTION}.params.{key}: {params[key]}"
        if not is_one(value):
            faults.append(((_SECTION, "params", key), f"{quoted(value)} is not known; {hint}"))
            continue
        place = _today(key, value, params)
        if isinstance(place, str):
            notes.append(f"{_SECTION}.params.{key}: {place}")
            continue
        section, name, now = place
        present = found.get(section, {})
        if not isinstance(present, dict):
            continue  # the section itself is a fault, which is reported elsewhere
        if name in present and (key != "num_workers" or name in (document.get(section) or {})):
            notes.append(f"{said} has no effect: {section}.{name} is {present[name]}")
            continue
        found[section] = {**present, name: now}
        notes.append(f"{said} is now {section}.{name}: {now}")
    return found, notes, faults


def _today(key: str, value: Any, params: Mapping[str, Any]) -> tuple[str, str, Any] | str:
    """Return the section, the key and the value that mean the same today; a sentence if nothing is needed."""
    device, has_ids = params.get("device"), "device_ids" in params
    if key == "parallel_mode":
        return ("backend", "name", value) if value == "ray" else ("schedule", "mode", value)
    if value is False:
        return "false is what happens anyway"
    if key == "use_device_map" or (key == "device" and value in _DEVICE_MAPS):
        return "schedule", "mode", "model_parallel"
    if key == "device_ids":
        return "devices", "use", "cuda:" + ",".join(map(str, value))
    if key == "device" and has_ids:
        return f"{value} has no effect beside device_ids"
    if key == "device":
        is_first = value == "cuda" and params.get("parallel_mode", "single") == "single"
        return "devices", "use", "cuda:0" if is_first else value
    if has_ids or (isinstance(device, str) and device not in (*_DEVICE_MAPS, "cuda")):
        return f"{value} has no effect: there is one worker for each device"
    return "devices", "use", value


# --- jobs that a program puts together ----------------------------------------------------------------

ROWS = "items.jsonl"  # beside the job, or in the run folder, where items are given as values
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,39}")


def job_document(
    stages: Iterable[Any], keys: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], list[Fault]]:
    """Return a job as a job file in ``folder`` would have it, and what no job file could hold.

    stages  each a ``Stage``, or the class or function of one
    keys    of the section ``job``, such as ``name``, and the other sections of a job file
    Raises ConfigError if ``stages`` are none.
    """
    if isinstance(stages, str | Mapping) or not isinstance(stages, Iterable):
        raise ConfigError(f"{quoted(stages)} are no stages", hint="give a list: Pipeline([Stage(...), ...])")
    faults: list[Fault] = []
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


def _entry(stage: Stage, number: int, folder: Path, faults: list[Fault]) -> dict[str, Any]:
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


def _plain(options: Mapping[str, Any], place: Place, faults: list[Fault]) -> dict[str, Any]:
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
