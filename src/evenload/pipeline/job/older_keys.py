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
_MAIN_KEYS = {"backend": "name", "devices": "use", "schedule": "policy"}
_DEVICE_MAPS = ("auto", "balanced")


def convert_older_keys(
    document: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str], list[tuple[Place, str]]]:
    """Return the document without older keys, a note for each that was converted, and the faults among them.

    Where a file has the newer key as well, the newer one wins.
    """
    if _SECTION not in document:
        return dict(document), [], []
    older = document[_SECTION]
    rest = {key: value for key, value in document.items() if key != _SECTION}
    params = older.get("params", {}) if isinstance(older, dict) else None
    if not isinstance(params, dict):
        return (
            rest,
            [],
            [((_SECTION,), "is an older section that holds params; write devices and schedule instead")],
        )
    conversion = _Conversion(rest, params)
    for key in older:
        if key != "params":
            conversion.refuse((_SECTION, key), "write it in a stage, under model, params or call")
    conversion.convert()
    return conversion.document, conversion.notes, conversion.faults


class _Conversion:
    """A document while its older keys are converted, one method for each key."""

    def __init__(self, document: dict[str, Any], params: dict[str, Any]):
        self.document, self.params = document, params
        self.notes: list[str] = []
        self.set_here: set[tuple[str, str]] = set()
        self.faults: list[tuple[Place, str]] = []

    def convert(self) -> None:
        rules: dict[str, Callable[[Any], None]] = {
            "parallel_mode": self.parallel_mode,
            "use_device_map": self.use_device_map,
            "device_ids": self.device_ids,
            "device": self.device,
            "num_workers": self.num_workers,
        }
        for key in [*(k for k in rules if k in self.params), *(k for k in self.params if k not in rules)]:
            if key in rules:
                rules[key](self.params[key])
            else:
                self.refuse((_SECTION, "params", key), "write it in a stage, under model, params or call")

    def parallel_mode(self, value: Any) -> None:
        if value == "ray":
            return self.set("parallel_mode", "backend", "name", value)
        if value not in _MODES:
            return self.refuse(
                (_SECTION, "params", "parallel_mode"), f"use {', '.join(_MODES)} or ray", value
            )
        self.set("parallel_mode", "schedule", "mode", value)

    def use_device_map(self, value: Any) -> None:
        if not isinstance(value, bool):
            return self.refuse((_SECTION, "params", "use_device_map"), "use true or false", value)
        if value:
            self.set("use_device_map", "schedule", "mode", "model_parallel")
        else:
            self.notes.append(f"{_SECTION}.params.use_device_map: false is what happens anyway")

    def device_ids(self, value: Any) -> None:
        is_sound = isinstance(value, list) and value and all(type(n) is int and n >= 0 for n in value)
        if not is_sound:
            return self.refuse((_SECTION, "params", "device_ids"), "use a list such as [0, 1, 2]", value)
        self.set("device_ids", "devices", "use", "cuda:" + ",".join(map(str, value)))

    def device(self, value: Any) -> None:
        if not isinstance(value, str):
            return self.refuse((_SECTION, "params", "device"), "use cuda, cuda:0 or cpu", value)
        if value in _DEVICE_MAPS:
            self.set("device", "schedule", "mode", "model_parallel")
        elif "device_ids" in self.params:
            self.notes.append(f"{_SECTION}.params.device: {value} has no effect beside device_ids")
        elif value == "cuda" and self.params.get("parallel_mode", "single") == "single":
            self.set("device", "devices", "use", "cuda:0")
        else:
            self.set("device", "devices", "use", value)

    def num_workers(self, value: Any) -> None:
        if type(value) is not int or value < 1:
            return self.refuse((_SECTION, "params", "num_workers"), "use a number from 1", value)
        device = self.params.get("device")
        if "device_ids" in self.params or (isinstance(device, str) and device not in (*_DEVICE_MAPS, "cuda")):
            self.notes.append(
                f"{_SECTION}.params.num_workers: {value} has no effect: there is one worker for each device"
            )
        else:
            self.set("num_workers", "devices", "use", value, wins=True)

    def set(self, older: str, section: str, key: str, value: Any, *, wins: bool = False) -> None:
        """Write an older key's value to ``section.key``, unless the file has that key itself.

        ``wins``: over a value that another older key has set.
        """
        said = f"{_SECTION}.params.{older}: {self.params[older]}"
        present = self.document.get(section, {})
        if isinstance(present, str | int):
            present = {_MAIN_KEYS[section]: present}
        if not isinstance(present, dict):
            return  # the section itself is a fault, which is reported elsewhere
        if key in present and not (wins and (section, key) in self.set_here):
            self.notes.append(f"{said} has no effect: {section}.{key} is {present[key]}")
            return
        self.set_here.add((section, key))
        self.document[section] = {**present, key: value}
        self.notes.append(f"{said} is now {section}.{key}: {value}")

    def refuse(self, place: Place, hint: str, value: Any = None) -> None:
        said = "is an older key that is not understood" if value is None else f"{quoted(value)} is not known"
        self.faults.append((place, f"{said}; {hint}"))
