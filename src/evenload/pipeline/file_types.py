"""Turn outputs of stages into files of the types that a job file declares: ``outputs: {restored: png}``."""

import io
import os
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenload._optional import require
from evenload._private_files import plain_file
from evenload.errors import ConfigError, quoted, reason_of

_MODES_TO_CONVERT = ("1", "P", "PA", "LA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")  # of PIL
_OVERSHOOT = 0.1  # how far floats may be beyond their range without a question: models' outputs are
_MOST_CLIPPED = 0.2  # share of the values that are farther off, as after more contrast or noise
_LIKE_BYTES = 16.0  # no contrast or noise makes such values of floats in 0..1
_LIKE_SIGNED = -0.5  # nor this of any, while none is above 1
_MOST_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class SavedFile:
    """The content of a file that an external program wrote; it is kept as it is."""

    content: bytes


def picture_of(pixels: np.ndarray) -> Any:
    return require("PIL.Image", extra="jobs", why="writing pictures").fromarray(pixels)


def _encode_jpg(value: Any) -> bytes:
    pixels = _pixels(value)
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        if pixels[..., 3].min() < 255:
            raise ConfigError(
                "jpg has no transparency", hint="return [height, width, 3], or declare png or webp"
            )
        pixels = pixels[..., :3]
    return _saved(pixels, format="JPEG", quality=95, subsampling=0)


def _saved(pixels: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        picture_of(np.ascontiguousarray(pixels)).save(buffer, **options)
    except (OSError, ValueError, KeyError) as error:  # too large, or Pillow lacks the format
        raise ConfigError(f"Pillow cannot save it: {reason_of(error)}", hint="declare it as png") from error
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
        mode = getattr(value, "mode", "")
        of_bytes = 'return picture.convert("L")' if mode else "return picture / 255"
        is_signed = pixels.max() <= 2
        mend = "return (picture + 1) / 2 for -1..1" if is_signed else f"{of_bytes} for 0..255"
        _check_range(pixels, 0, f"a PIL image of mode {mode}" if mode else "a picture", mend)
        pixels = np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ConfigError(
            f"a picture of {pixels.dtype} cannot be saved", hint="return uint8, or floats in 0..1"
        )
    return pixels


def _check_range(values: np.ndarray, least: int, what: str, mend: str) -> None:
    """Refuse floats of another range than least..1, or where a large part would be cut off."""
    if not np.isfinite(values).all():
        raise ConfigError(f"{what} holds values that are not finite")
    low, high = float(values.min()), float(values.max())
    far = float(((values < least - _OVERSHOOT) | (values > 1 + _OVERSHOOT)).mean())
    is_signed = least == 0 and low < _LIKE_SIGNED and high <= 1 + _OVERSHOOT and far > _MOST_CLIPPED / 10
    if far > _MOST_CLIPPED or is_signed or max(-low, high) > _LIKE_BYTES:
        raise ConfigError(
            f"{what} of {values.dtype} from {low:.4g} to {high:.4g} is not in {least}..1; "
            f"{far:.0%} of it would be lost",
            hint=f"{mend}, or what np.clip(values, {least}, 1) leaves of it",
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
    safetensors = require("safetensors.torch", extra="jobs", why="safetensors outputs")
    named = value if isinstance(value, Mapping) else {"tensor": value}
    if not named or not all(isinstance(tensor, torch.Tensor) for tensor in named.values()):
        kinds = ", ".join(sorted({type(tensor).__name__ for tensor in named.values()})) or "nothing"
        raise ConfigError(f"safetensors holds tensors, not {kinds}", hint="return a dict of tensors by name")
    return safetensors.save({name: tensor.detach().cpu().contiguous() for name, tensor in named.items()})


def _encode_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError(f"a bytes output must be bytes, not {type(value).__name__}")
    return bytes(value)


def _encode_file(value: Any) -> bytes:
    """Read the file that a stage wrote."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"it is a {type(value).__name__}, no path", hint="return the path of the file")
    try:
        with plain_file(Path(value)) as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{quoted(str(value))} cannot be read: {reason_of(error)}",
            hint="return the whole path of a file that the stage has closed",
        ) from error


def _encode_wav(value: Any) -> bytes:
    """Encode ``(samples, rate)``: floats in -1..1, which become 16 bits, or integers of 8, 16 or 32 bits."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigError(f"it is a {type(value).__name__}, no sound", hint="return (samples, rate)")
    samples, rate = np.asarray(_on_cpu(value[0])), value[1]
    is_rate = isinstance(rate, int | float | np.integer) and 1 <= rate < 2**31 and rate == int(rate)
    if not is_rate or samples.ndim not in (1, 2) or not samples.size:
        raise ConfigError(
            f"samples of shape {list(samples.shape)} at a rate of {quoted(str(rate))} are no sound",
            hint="return (samples, rate), of shape [n] or [n, channels], and a rate such as 16000",
        )
    if samples.ndim == 2 and samples.shape[1] > max(_MOST_CHANNELS, samples.shape[0]):
        raise ConfigError(f"{samples.shape[1]} channels are no sound", hint="return samples.T: [n, channels]")
    if np.issubdtype(samples.dtype, np.floating):
        _check_range(samples, -1, "a sound", "return samples / 32768 for those of 16 bits")
        samples = np.round(32767 * np.clip(samples, -1, 1)).astype(np.int16)
    if samples.dtype not in (np.uint8, np.int16, np.int32):
        raise ConfigError(
            f"a sound of {samples.dtype} cannot be saved", hint="return floats in -1..1, or int16"
        )
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(samples.shape[1] if samples.ndim == 2 else 1)
        file.setsampwidth(samples.dtype.itemsize)
        file.setframerate(int(rate))
        file.writeframes(samples.astype(samples.dtype.newbyteorder("<")).tobytes())
    return buffer.getvalue()


_FILE_TYPES: dict[str, Callable[[Any], bytes]] = {
    "png": lambda value: _saved(_pixels(value), format="PNG", compress_level=3),
    "jpg": _encode_jpg,
    "webp": lambda value: _saved(_pixels(value), format="WEBP", quality=95),
    "wav": _encode_wav,
    "npy": _encode_npy,
    "txt": _encode_txt,
    "safetensors": _encode_safetensors,
    "bytes": _encode_bytes,
    "file": _encode_file,
}


def is_file_type(kind: str | None) -> bool:
    """Whether outputs that are declared so are saved as files: png, ..., and any ``file.SUFFIX``."""
    return kind is not None and kind.partition(".")[0] in _FILE_TYPES


def suffix_of(kind: str) -> str:
    """Return the suffix of files of a type: ``png``; ``mp4`` for ``file.mp4``."""
    return kind.partition(".")[2] or kind


def _on_cpu(value: Any) -> Any:
    """Return a tensor of torch as an array; anything else as it is."""
    if not (hasattr(value, "detach") and hasattr(value, "cpu")):
        return value
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


def encode_artifact(value: Any, file_type: str) -> bytes:
    """Return the bytes of the file for ``value``; a torch tensor is copied from its device first.

    Raises ConfigError if the value does not suit the type.
    """
    if isinstance(value, SavedFile):
        return value.content
    kind = file_type.partition(".")[0]
    return _FILE_TYPES[kind](value if kind == "safetensors" else _on_cpu(value))
