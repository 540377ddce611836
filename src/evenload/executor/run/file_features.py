"""What a file is, in numbers: its bytes, and an image's pixels by its header. Nothing else is read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from evenload._private_files import plain_file

MOST_PATH = 1024
MOST_HEADER = 64 * 1024  # of a JPEG, whose size stands behind what cameras write


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
