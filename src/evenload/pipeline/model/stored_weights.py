"""Read the size of the weights that a stage's parameters name, from headers of safetensors files alone."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenload.pipeline.model.safetensors_header import read_header

_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
         "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}  # fmt: skip


def weight_bytes(params: Mapping[str, Any], folder: Path) -> int | None:
    """Return the bytes of all tensors, as stored, in the safetensors files that ``params`` name, or None.

    A parameter may be such a file or a folder that holds some; relative paths belong to ``folder``. Raises
    FormatError if a file is damaged.
    """
    files: set[Path] = set()
    for value in params.values():
        if isinstance(value, str) and value:
            path = folder / value
            if path.suffix == ".safetensors" and path.is_file():
                files.add(path.resolve())
            elif path.is_dir():
                files.update(file.resolve() for file in path.rglob("*.safetensors"))
    if not files:
        return None
    tensors = [tensor for file in files for tensor in read_header(file).values()]
    return sum(math.prod(tensor["shape"]) * _BITS.get(tensor["dtype"], 32) // 8 for tensor in tensors)
