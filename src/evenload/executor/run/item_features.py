"""What an item is, in numbers: lengths, elements, numeric fields; for files their bytes and pixels.

Only what Python and numpy (or torch) themselves answer at once is asked: the types are matched exactly, and
no method, property or ``__len__`` of anybody's class is called. Of a file its size is asked, and of an image
the header is read. Nothing here raises.
"""

import math
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path, PosixPath, WindowsPath
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from evenload._private_files import plain_file

MOST_FIELDS = 16  # of an item are looked at
MOST_PARTS = 4  # of a tuple or list
MOST_NAME = 64
LENGTHS = {str: "length", bytes: "bytes", bytearray: "bytes", list: "length", tuple: "length", dict: "length"}
LENGTHS |= {set: "length", frozenset: "length", range: "length"}
MOST_PATH = 1024
MOST_HEADER = 64 * 1024  # of a JPEG, whose size stands behind what cameras write
PATHS = (Path, PosixPath, WindowsPath)


def features_of(item: Any, index: int, *, reads_files: bool) -> dict[str, float]:
    """The features of the item number ``index``, by a name that a person understands; at most some forty.

    reads_files  whether files that the item names are looked at (their size, and the header of an image);
                 this may wait for a disk
    """
    features = {"the position": float(index)}
    try:
        _describe(item, "the item", features, reads_files)
        for name, value in _fields(item):
            _describe(value, f"`{name}`", features, reads_files)
    except Exception:  # an item that cannot be described is one without features
        return features
    return features


def names_a_file(item: Any) -> bool:
    """Whether the item, or one of its fields, is a path."""
    try:
        return _is_path(item) or any(_is_path(value) for _, value in _fields(item))
    except Exception:
        return False


def _describe(value: Any, name: str, features: dict[str, float], reads_files: bool) -> None:
    kind = type(value)
    if kind in (int, float, bool):
        if -1e15 < value < 1e15:  # no NaN either
            features[name] = float(value)
    elif kind in LENGTHS:
        features[f"the {LENGTHS[kind]} of {name}"] = float(len(value))
    elif (n := _elements(value)) is not None:
        features[f"the elements of {name}"] = float(n)
    if reads_files and _is_path(value):
        for what, number in file_features(str(value)).items():
            features[f"the {what} of the file {name}"] = number


def _elements(value: Any) -> int | None:
    kind = type(value)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        return value.size
    if torch is not None and kind is getattr(torch, "Tensor", None):
        return math.prod(value.shape)
    return None


def _fields(item: Any) -> list[tuple[str, Any]]:
    """The first fields of a dict or a dataclass, or the parts of a short tuple or list, by name."""
    kind = type(item)
    if kind is dict:
        pairs = [(key, item[key]) for key in list(item)[:MOST_FIELDS] if type(key) is str]
    elif kind in (tuple, list):
        pairs = [(f"[{at}]", part) for at, part in enumerate(item)] if len(item) <= MOST_PARTS else []
    elif type(kind) is type and is_dataclass(kind):
        names = list(kind.__dataclass_fields__)[:MOST_FIELDS]
        pairs = [(name, _stored(item, kind, name)) for name in names]
    else:
        return []
    return [(name, value) for name, value in pairs if len(name) <= MOST_NAME and name.isprintable()]


def _stored(item: Any, kind: type, name: str) -> Any:
    """The value of a field as it is stored, in slots or in ``__dict__``: no code of the class is run."""
    for base in kind.__mro__:
        slot = vars(base).get(name)
        if type(slot) is MemberDescriptorType:
            return slot.__get__(item)
        stored = vars(base).get("__dict__")
        if type(stored) is GetSetDescriptorType:
            return stored.__get__(item).get(name)
    return None


def _is_path(value: Any) -> bool:
    return type(value) in PATHS or (type(value) is str and looks_like_path(value))


def looks_like_path(text: str) -> bool:
    """Whether a text may be the path of a file: short, in one line, with a suffix."""
    if not 3 <= len(text) <= MOST_PATH or "\n" in text or "\0" in text:
        return False
    _, dot, suffix = text.rpartition(".")
    return bool(dot) and 1 <= len(suffix) <= 5 and suffix.isalnum()


def file_features(path: str) -> dict[str, float]:
    """The bytes of a regular file and, of an image, its pixels; {} for anything else. Never raises."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return {}
        features = {"bytes": float(found.st_size)}
        read = HEADERS.get(os.path.splitext(path)[1].lower())
        n_pixels = None if read is None else read(_header(path))
    except (OSError, ValueError):
        return {}
    if n_pixels:
        features["pixels"] = float(n_pixels)
    return features


def _header(path: str) -> bytes:
    with plain_file(Path(path)) as file:
        return file.read(MOST_HEADER)


def _png(head: bytes) -> int | None:
    if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < 24:
        return None
    return int.from_bytes(head[16:20], "big") * int.from_bytes(head[20:24], "big")


def _gif(head: bytes) -> int | None:
    if head[:4] != b"GIF8" or len(head) < 10:
        return None
    return int.from_bytes(head[6:8], "little") * int.from_bytes(head[8:10], "little")


def _bmp(head: bytes) -> int | None:
    if head[:2] != b"BM" or len(head) < 26:
        return None
    return abs(_signed(head[18:22]) * _signed(head[22:26]))  # a height below zero is stored top down


def _signed(field: bytes) -> int:
    return int.from_bytes(field, "little", signed=True)


def _jpeg(head: bytes) -> int | None:
    """The size in the first start-of-frame segment."""
    at = 2
    while head[:2] == b"\xff\xd8" and at + 9 <= len(head) and head[at] == 0xFF:
        kind = head[at + 1]
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 5 : at + 7], "big") * int.from_bytes(head[at + 7 : at + 9], "big")
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None


HEADERS: dict[str, Callable[[bytes], int | None]] = {
    ".png": _png, ".gif": _gif, ".bmp": _bmp, ".jpg": _jpeg, ".jpeg": _jpeg,
}  # fmt: skip
