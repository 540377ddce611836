"""Turn outputs of stages into files of the types that a job file declares: ``outputs: {restored: png}``."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenload._optional import require
from evenload.errors import ConfigError

__all__ = ["FILE_TYPES", "SavedFile", "encode_artifact", "picture_of", "with_plain_alpha"]

_MODES_TO_CONVERT = ("1", "P", "PA", "LA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")  # of PIL
_OVERSHOOT = 0.1  # of floats in 0..1: what a model's output may be beyond them without a question
_MOST_CLIPPED = 0.02


@dataclass(frozen=True, slots=True)
class SavedFile:
    """The content of a file that an external program wrote; it is kept as it is."""

    content: bytes


def picture_of(pixels: np.ndarray) -> Any:
    return require("PIL.Image", extra="pictures", why="writing pictures").fromarray(pixels)


def _encode_png(value: Any) -> bytes:
    buffer = io.BytesIO()
    picture_of(_pixels(value)).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def with_plain_alpha(picture: Any) -> Any:
    """Convert a PIL image whose colours are multiplied by their opacity to one where they are not."""
    plain = {"La": "LA", "RGBa": "RGBA"}.get(picture.mode)
    return picture.convert(plain) if plain else picture


def _pixels(value: Any) -> np.ndarray:
    """Return the bytes [h, w] or [h, w, 3 | 4] of a PIL image or an array; floats are in 0..1."""
    if hasattr(value, "mode") and (value.mode in _MODES_TO_CONVERT or "transparency" in value.info):
        value = with_plain_alpha(value)
        has_alpha = value.mode in ("LA", "PA", "RGBA") or "transparency" in value.info
        value = value.convert("L" if value.mode == "1" else "RGBA" if has_alpha else "RGB")
    pixels = np.asarray(value)
    if pixels.dtype.kind not in "fbiu":
        raise ConfigError(
            f"it is a {type(value).__name__}, no picture", hint="return an array or a PIL image"
        )
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)) or not pixels.size:
        raise ConfigError(
            f"shape {list(pixels.shape)} is no picture",
            hint="return [height, width] or [height, width, 3 or 4]",
        )
    if np.issubdtype(pixels.dtype, np.floating):
        _check_range(pixels, getattr(value, "mode", ""))
        pixels = np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ConfigError(
            f"a picture of {pixels.dtype} cannot be saved", hint="return uint8, or floats in 0..1"
        )
    return np.ascontiguousarray(pixels)


def _check_range(pixels: np.ndarray, mode: str) -> None:
    """Refuse floats that are not in 0..1, but for a little that a model's output may overshoot."""
    if not np.isfinite(pixels).all():
        raise ConfigError("the picture holds values that are not finite")
    low, high = float(pixels.min()), float(pixels.max())
    far = float(((pixels < -_OVERSHOOT) | (pixels > 1 + _OVERSHOOT)).mean())
    if far <= _MOST_CLIPPED and low >= -1 and high <= 2:
        return
    what = f"a PIL image of mode {mode}" if mode else f"a picture of {pixels.dtype}"
    if high > 2:
        mend = 'return picture.convert("L") for 0..255' if mode else "return picture / 255 for 0..255"
    else:
        mend = "return (picture + 1) / 2 for -1..1"
    raise ConfigError(
        f"{what} from {low:.4g} to {high:.4g} is not in 0..1; {far:.0%} of it would be lost",
        hint=f"{mend}, or np.clip(picture, 0, 1) to cut them off",
    )


def _encode_npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value), allow_pickle=False)
    return buffer.getvalue()


def _encode_txt(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"a txt output must be a string, not {type(value).__name__}")
    return value.encode()


def _encode_safetensors(value: Any) -> bytes:
    """Encode a tensor, or several by name."""
    torch = require("torch", extra="torch", why="safetensors outputs")
    safetensors = require("safetensors.torch", extra="adapters", why="safetensors outputs")
    named = value if isinstance(value, Mapping) else {"tensor": value}
    if not named or not all(isinstance(tensor, torch.Tensor) for tensor in named.values()):
        kinds = ", ".join(sorted({type(tensor).__name__ for tensor in named.values()})) or "nothing"
        raise ConfigError(f"safetensors holds tensors, not {kinds}", hint="return a dict of tensors by name")
    return safetensors.save({name: tensor.detach().cpu().contiguous() for name, tensor in named.items()})


FILE_TYPES: dict[str, Callable[[Any], bytes]] = {
    "png": _encode_png,
    "npy": _encode_npy,
    "txt": _encode_txt,
    "safetensors": _encode_safetensors,
}


def encode_artifact(value: Any, file_type: str) -> bytes:
    """Return the bytes of the file for ``value``; a torch tensor is copied from its device first.

    Raises ConfigError if the value does not suit the type.
    """
    if isinstance(value, SavedFile):
        return value.content
    if hasattr(value, "detach") and hasattr(value, "cpu") and file_type != "safetensors":
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return FILE_TYPES[file_type](value)
