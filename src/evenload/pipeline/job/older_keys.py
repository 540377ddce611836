"""Convert keys of older job files to today's.

``diffusion_model.params`` once held how a model is spread over GPUs: device, device_ids, parallel_mode,
num_workers, use_device_map. They become ``backend``, ``devices`` and ``schedule``, with a note for each.
"""

from collections.abc import Callable, Mapping
from typing import Any

from evenload.errors import quoted

Place = tuple[str | int, ...]
_SECTION = "diffusion_model"
_MODES = ("single", "data_parallel", "model_parallel")
_DEVICE_MAPS = ("auto", "balanced")
_ELSEWHERE = "is an older key that is not understood; write it in a stage, under model, params or call"


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(n) is int and n >= 0 for n in value)


_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {  # whether a value is one, and which are
    "parallel_mode": (
        lambda value: value in (*_MODES, "ray"),
        f"use {', '.join(_MODES)} or ray; for stages side by side write schedule: {{mode: stage_parallel}}",
    ),
    "use_device_map": (lambda value: isinstance(value, bool), "use true or false"),
    "device_ids": (_are_numbers, "use a list such as [0, 1, 2]"),
    "device": (lambda value: isinstance(value, str), "use cuda, cuda:0 or cpu"),
    "num_workers": (lambda value: type(value) is int and value >= 1, "use a number from 1"),
}


def convert_older_keys(
    document: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str], list[tuple[Place, str]]]:
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
    faults: list[tuple[Place, str]] = [((_SECTION, key), _ELSEWHERE) for key in older if key != "params"]
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
