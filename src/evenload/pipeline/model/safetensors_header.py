"""Read the header of a safetensors file: which tensors it holds. Reads no weights."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evenload._private_files import plain_file
from evenload.errors import FormatError, reason_of

_LARGEST_HEADER = 100_000_000  # bytes; the limit of the format itself
_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def read_header(path: Path) -> dict[str, Any]:
    """Return ``{name: {dtype, shape, data_offsets}}``. Raises FormatError."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header, and where the weights begin."""
    try:
        with plain_file(path) as file:
            n_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(n_bytes)) if 2 <= n_bytes <= _LARGEST_HEADER else None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} is no safetensors file: {reason_of(error)}", hint="save or copy it again"
        ) from error
    if not isinstance(header, dict):
        raise FormatError(f"{path} is no safetensors file", hint="save or copy it again")
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}, 8 + n_bytes


def read_whole_header(path: Path) -> dict[str, Any]:
    """Read the header, and raise FormatError also if the file is shorter or longer than its tensors need."""
    header, begin = _read(path)
    try:
        end = begin + max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
        found = path.stat().st_size
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise FormatError(
            f"{path} is damaged: {reason_of(error)}", hint="download or copy it again"
        ) from error
    if end != found:
        raise FormatError(
            f"{path} is damaged: {found} bytes, not {end}: it was cut or is still being copied",
            hint="download or copy it again",
        )
    return header


def main_dtype(tensors: Iterable[Mapping[str, Any]]) -> str:
    """Return torch's name of the dtype that most numbers have; float32 for a dtype that is no float."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor["dtype"]] = counts.get(tensor["dtype"], 0) + math.prod(tensor["shape"])
    return _TORCH_NAMES.get(max(counts, key=lambda dtype: counts[dtype], default="F32"), "float32")


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
