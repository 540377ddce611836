"""Compute what a model needs in memory, component by component, from its folder; no weights are read.

Each component is counted by the first of these that can:
    headers   of its safetensors files, where the weights are there
    config    by the formulas of ``parameter_counts``, for classes that are known there
    index     ``total_size`` of its *.safetensors.index.json
    classes   of diffusers and transformers, where installed, built from the config on torch's meta device
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._bounded_json import MAX_JSON_BYTES
from evenload._private_files import read_plain
from evenload.errors import ConfigError, FormatError, reason_of
from evenload.pipeline.model.parameter_counts import COUNTS, ParameterCount, count_on_meta, with_blocks
from evenload.pipeline.model.safetensors_header import main_dtype, read_header
from evenload.pipeline.problem import Weights

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "fp8": 1}
_BLOCK = re.compile(r"^(.*?)\.?(?:^|\.)([A-Za-z_]*(?:blocks|layers|block|layer|h))\.(\d+)\.")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ComponentSize:
    """The size of one component of a model. ``source``: headers | config | index | classes, as above."""

    name: str
    class_name: str
    count: ParameterCount
    dtype: str
    source: str

    @property
    def bytes(self) -> int:
        return self.count.total * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of the components that a stage loads.

    ``notes``: what could not be counted or had to be assumed, one sentence each.
    """

    components: tuple[ComponentSize, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(component.bytes for component in self.components)

    @property
    def largest(self) -> ComponentSize:
        return max(self.components, key=lambda component: component.bytes)

    @property
    def weights(self) -> Weights:
        """The bytes as blocks of the largest component, which can be spread over devices, and the rest."""
        count, width = self.largest.count, BYTES[self.largest.dtype]
        block_bytes = count.per_block * width
        return Weights(self.bytes - count.n_blocks * block_bytes, block_bytes, count.n_blocks)


def is_hub_name(path: str) -> bool:
    """Return whether ``path`` could be the name of a model on the hub, such as Qwen/Qwen-Image-Edit."""
    return _HUB_NAME.fullmatch(path) is not None and not path.startswith(".")


def find_model(path: str, folder: Path) -> Path | None:
    """Return the folder of a model: ``path`` below ``folder``, or among the hub's downloads; or None."""
    if (folder / path).is_dir():
        return (folder / path).resolve()
    if not is_hub_name(path):
        return None
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    snapshots = cache / f"models--{path.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.iterdir(), key=lambda one: one.stat().st_mtime) if snapshots.is_dir() else []
    return found[-1] if found else None


def measure_model(folder: Path, dtype: str = "auto", only: Sequence[str] = ()) -> ModelSize:
    """Measure the components of the model in ``folder``; of a pipeline those named in ``only``, or all.

    Raises FormatError if the folder is no model or a file is damaged, ConfigError if a component of ``only``
    is not there or nothing can be counted.
    """
    if (folder / "model_index.json").is_file():
        index = read_config(folder / "model_index.json")
        classes = {
            name: entry[1] for name, entry in index.items() if isinstance(entry, list) and len(entry) == 2
        }
        unknown = [name for name in only if name not in classes]
        if unknown:
            raise ConfigError(
                f"{folder} has no component {', '.join(unknown)}", hint=f"components: {', '.join(classes)}"
            )
        parts = {name: folder / name for name in classes if not only or name in only}
        parts = {name: part for name, part in parts.items() if (part / "config.json").is_file()}
    elif (folder / "config.json").is_file():
        config = read_config(folder / "config.json")
        name = (config.get("architectures") or [config.get("_class_name", "")])[0]
        classes, parts = {"model": name}, {"model": folder}
    else:
        raise FormatError(
            f"{folder} is no model: it has neither model_index.json nor config.json",
            hint="give the folder that save_pretrained wrote",
        )
    notes: list[str] = []
    counted = [_component(name, part, classes[name], dtype, notes) for name, part in parts.items()]
    components = tuple(component for component in counted if component is not None)
    if not components:
        raise ConfigError(
            f"nothing of {folder} can be counted", hint="; ".join(notes) or "give another folder"
        )
    return ModelSize(components, tuple(notes))


def _component(
    name: str, folder: Path, class_name: str, dtype: str, notes: list[str]
) -> ComponentSize | None:
    """Measure one component, by the first way that can; None if none can, with a note."""
    config = read_config(folder / "config.json")
    class_name = config.get("_class_name") or (config.get("architectures") or [class_name])[0]
    files = sorted(folder.glob("*.safetensors"))
    if files:
        count, stored = _from_headers(files)
        return ComponentSize(name, class_name, count, stored if dtype == "auto" else dtype, "headers")
    kept = dtype if dtype != "auto" else _dtype_of(config, name, notes)
    if class_name in COUNTS and not config.get("attn_scales"):
        return ComponentSize(name, class_name, COUNTS[class_name](config), kept, "config")
    index = next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
    if index is not None:
        n_bytes = int(read_config(index).get("metadata", {}).get("total_size", 0))
        if n_bytes:
            count = ParameterCount(n_bytes // BYTES[kept])
            return ComponentSize(name, class_name, count, kept, "index")
    count = _from_classes(config, class_name, notes)
    return None if count is None else ComponentSize(name, class_name, count, kept, "classes")


def _dtype_of(config: Mapping[str, Any], name: str, notes: list[str]) -> str:
    said = str(config.get("dtype") or config.get("torch_dtype") or "")
    if said in BYTES:
        return said
    notes.append(f"{name}: its dtype is not known, bfloat16 is assumed (give model.dtype)")
    return "bfloat16"


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises FormatError."""
    try:
        found = json.loads(read_plain(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} cannot be read: {reason_of(error)}", hint="download or copy the model again"
        ) from error
    if not isinstance(found, dict):
        raise FormatError(f"{path} is no JSON object", hint="download or copy the model again")
    return found


def _from_headers(files: Sequence[Path]) -> tuple[ParameterCount, str]:
    """Count parameters and find their dtype; blocks are the numbered parts that hold most of them."""
    blocks: dict[str, dict[int, int]] = {}
    total = 0
    tensors = [(name, tensor) for file in files for name, tensor in read_header(file).items()]
    for name, tensor in tensors:
        n_parameters = math.prod(tensor["shape"])
        total += n_parameters
        match = _BLOCK.match(name)
        if match is not None:
            sizes = blocks.setdefault(f"{match[1]}.{match[2]}", {})
            sizes[int(match[3])] = sizes.get(int(match[3]), 0) + n_parameters
    stored = main_dtype(tensor for _, tensor in tensors)
    lists = [sizes for sizes in blocks.values() if len(sizes) > 1]
    if not lists:
        return ParameterCount(total), stored
    largest = max(lists, key=lambda sizes: sum(sizes.values()))
    return with_blocks(total, list(largest.values())), stored


def _from_classes(config: Mapping[str, Any], class_name: str, notes: list[str]) -> ParameterCount | None:
    try:
        return count_on_meta(config, class_name)
    except ImportError as error:
        notes.append(f"{class_name} is not counted: {error} (pip install 'evenload[models]')")
    except Exception as error:  # the library's class does not take this config
        notes.append(f"{class_name} is not counted: {type(error).__name__}: {error}")
    return None
