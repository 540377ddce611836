"""How much memory a stage's weights need, read from the headers of safetensors files alone."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenload.errors import FormatError

__all__ = ["weight_bytes"]

_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
         "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors format itself


def _header(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file: name -> {dtype, shape}. Reads no weights. Raises FormatError."""
    try:
        with path.open("rb") as file:
            n_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(n_bytes)) if 2 <= n_bytes <= _LARGEST_HEADER else None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} is no safetensors file: {error}", hint="save or copy it again") from error
    if not isinstance(header, dict):
        raise FormatError(f"{path} is no safetensors file", hint="save or copy it again")
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def weight_bytes(params: Mapping[str, Any], folder: Path) -> int | None:
    """Bytes of all tensors, as stored, in the safetensors files that ``params`` name.

    A parameter may be such a file or a folder that holds some; relative paths belong to ``folder``. None if
    no parameter names any. Raises FormatError if a file is damaged.
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
    tensors = [tensor for file in files for tensor in _header(file).values()]
    return sum(math.prod(tensor["shape"]) * _BITS.get(tensor["dtype"], 32) // 8 for tensor in tensors)
