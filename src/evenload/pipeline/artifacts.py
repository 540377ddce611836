"""Read the files that stages hand on, and write them: whole or not at all, under names that are safe."""

import errno
import hashlib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenload._optional import require
from evenload._private_files import plain_file, whole_file
from evenload.errors import EvenloadError, FormatError, reason_of
from evenload.pipeline.file_types import is_file_type, picture_of, suffix_of, with_plain_alpha

UNWRITABLE = "no results can be written"  # to a folder, whatever the item
_LONGEST_NAME = 150
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EIO)


def read_picture(path: str | Path) -> np.ndarray:
    """Read a picture: float32 [height, width, 3] in 0..1, turned upright as its EXIF data says.

    Grey pictures become three equal channels; transparency is laid on white.
    Raises FormatError if the file is not a picture or is cut short, FileNotFoundError if there is none.
    """
    return np.asarray(open_picture(path), dtype=np.float32) / np.float32(255)


def open_picture(path: str | Path) -> Any:
    """Read a picture as a PIL image, RGB, loaded whole; otherwise as ``read_picture``."""
    image_module = require("PIL.Image", extra="jobs", why="reading pictures")
    try:
        with plain_file(Path(path)) as file, image_module.open(file) as opened:
            return plain_picture(opened)
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise FormatError(
            f"{path} is not a picture that can be read: {reason_of(error)}",
            hint="take the file out of the inputs, or save it again as PNG or JPEG",
        ) from error


def plain_picture(picture: Any) -> Any:
    """Convert a PIL image of any mode to RGB, upright, loaded whole; transparency is laid on white."""
    image_module = require("PIL.Image", extra="jobs", why="reading pictures")
    operations = require("PIL.ImageOps", extra="jobs", why="reading pictures")
    upright = with_plain_alpha(operations.exif_transpose(picture))
    if "transparency" in upright.info or upright.mode in ("RGBA", "LA", "PA"):
        white = image_module.new("RGBA", upright.size, "white")
        upright = image_module.alpha_composite(white, upright.convert("RGBA"))
    plain = _to_8_bits(upright).convert("RGB")
    plain.load()
    return plain


def read_tensors(path: str | Path) -> dict[str, Any]:
    """Read the tensors of a safetensors file by name, on the CPU. Raises FormatError if it is damaged."""
    require("torch", extra="torch", why="reading tensors")
    safetensors = require("safetensors.torch", extra="jobs", why="reading tensors")
    try:
        return safetensors.load_file(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # the library has an exception of its own
        raise FormatError(
            f"{path} holds no tensors that can be read: {reason_of(error)}", hint="make it again"
        ) from error


def _to_8_bits(picture: Any) -> Any:
    """Scale 16-bit grey pictures, and those of floats, to 8 bits; ``convert`` would clip them."""
    if picture.mode == "F":
        return picture_of(_bytes_of_floats(np.asarray(picture)))
    if not picture.mode.startswith("I"):
        return picture
    pixels = np.asarray(picture, dtype=np.float64) / 257
    return picture_of(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


def _bytes_of_floats(pixels: np.ndarray) -> np.ndarray:
    low, high = pixels.min(), pixels.max()
    if not 0 <= low <= high <= 255:
        raise FormatError(
            f"its floats go from {low:.4g} to {high:.4g}", hint="save it with floats in 0..1, or as PNG"
        )
    return np.round(pixels * (255 if high <= 1 else 1)).astype(np.uint8)


def digest_of(content: bytes) -> str:
    """Return the BLAKE2b digest of 16 bytes, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_name(item: str, suffix: str) -> str:
    """Return a relative path for an item's file: safe on any file system, and different for different ids.

    Slashes stay and make folders; other characters that a file system may refuse are percent-encoded, and
    names that are too long are cut and get a hash. The last point of a folder is encoded too: the file of
    ``a`` is ``a.txt``, so that the folder of ``a.txt/b`` must have another name.
    """
    *folders, last = (_safe_part(part) for part in item.split("/"))
    return "/".join([*map(_without_suffix, folders), last + suffix])


def part_id(item: str, parts: str, key: str) -> str:
    """Return the id of a part of an item: ``r7/pages/003`` is the third of the pages of r7."""
    return f"{item}/{parts}/{key}"


def output_path(stage: str, declared: Mapping[str, str], name: str, item: str, place: str = "") -> str:
    """Return where an item's output is saved, relative to the run folder: outputs/<stage>/<item>.png.

    declared  type of each output of the stage
    place     comes before the item's name: ``sample-2/``
    """
    n_files = sum(map(is_file_type, declared.values()))
    suffix = suffix_of(declared[name])
    suffix = f".{suffix}" if n_files == 1 else f".{name}.{suffix}"
    return f"outputs/{stage}/{place}{file_name(item, suffix)}"


def _without_suffix(folder: str) -> str:
    # Small e: a folder named ".." is "%2E2E", which one named ".2E" must not become.
    stem, point, suffix = folder.rpartition(".")
    return f"{stem}%2e{suffix}" if point else folder


def _safe_part(part: str) -> str:
    if not part.strip(". "):  # "", ".", "..": nothing that could leave the folder
        return "%" + "".join(f"{ord(letter):02X}" for letter in part)
    safe = urllib.parse.quote(part, safe=" ()+,;=@[]'!&#", errors="surrogatepass")
    if safe[-1] in ". ":  # dropped by Windows
        safe = f"{safe[:-1]}%{ord(safe[-1]):02X}"
    if len(safe) > _LONGEST_NAME:
        safe = (
            safe[:_LONGEST_NAME]
            + "~"
            + hashlib.blake2b(part.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        )
    return safe


def is_unwritable(error: Exception) -> bool:
    """Whether other results could not be written either: it is forbidden, or the disk fails."""
    return isinstance(error, OSError) and error.errno in _FORBIDDEN


def staged_path(path: str | Path, worker: int) -> str:
    """Return where ``worker`` writes the file ``path`` of a task that another may run at the same time.

    The run gives the file of the attempt that counts its name; what is left so is removed at the end.
    """
    return f"{path}.{worker}.tmp"


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a stage made, as ``write_atomically``.

    Raises EvenloadError where the folder takes no results any more: that is no fault of the item.
    """
    try:
        write_atomically(path, content)
    except OSError as error:
        if not is_unwritable(error):
            raise
        raise EvenloadError(f"{UNWRITABLE}: {path}: {reason_of(error)}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write, fsync, rename: after a crash the file is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, 0o644) as file:
        file.write(content)
