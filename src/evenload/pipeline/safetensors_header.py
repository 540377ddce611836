"""The header of a safetensors file: which tensors it holds. Reads no weights."""

import json
from pathlib import Path
from typing import Any

from evenload.errors import FormatError

__all__ = ["read_header"]

_LARGEST_HEADER = 100_000_000  # bytes; the limit of the format itself


def read_header(path: Path) -> dict[str, Any]:
    """name -> {dtype, shape, data_offsets}. Raises FormatError."""
    try:
        with path.open("rb") as file:
            n_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(n_bytes)) if 2 <= n_bytes <= _LARGEST_HEADER else None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} is no safetensors file: {error}", hint="save or copy it again") from error
    if not isinstance(header, dict):
        raise FormatError(f"{path} is no safetensors file", hint="save or copy it again")
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}
