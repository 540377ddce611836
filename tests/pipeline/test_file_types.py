"""Tests what becomes of a stage's outputs in files. The oracle is what PIL, numpy and others read there."""

import io
import re
import wave
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenload.errors import ConfigError, FormatError
from evenload.pipeline.artifacts import file_name, plain_picture, read_picture, write_atomically
from evenload.pipeline.file_types import encode_artifact, is_file_type, suffix_of


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4), (1, 1, 3)])
def test_pictures_of_bytes_come_back_as_they_were(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(decoded(encode_artifact(pixels, "png")), pixels)
    assert np.array_equal(decoded(encode_artifact(torch.from_numpy(pixels), "png")), pixels)


def test_floats_are_rounded_and_a_little_beyond_is_cut_off() -> None:
    pixels = np.array([[-0.09, 0.0, 0.4999 / 255, 0.5001 / 255, 1.0, 1.09]])
    assert decoded(encode_artifact(pixels, "png")).tolist() == [[0, 0, 0, 1, 255, 255]]
    assert decoded(encode_artifact(pixels[:, :, None], "png")).shape == (1, 6)
    assert decoded(encode_artifact(torch.ones(2, 2, dtype=torch.bfloat16), "png")).tolist() == [[255] * 2] * 2


def test_more_contrast_and_noise_are_cut_off() -> None:
    stretched = np.linspace(-0.2, 1.2, 160).reshape(16, 10)
    assert decoded(encode_artifact(stretched, "png"))[0, 0] == 0
    noisy = 1 + 0.1 * np.random.default_rng(0).standard_normal((64, 64))
    assert decoded(encode_artifact(noisy, "png")).max() == 255


PICTURE = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
LONE = np.zeros((64, 64), np.float32)
LONE[5, 5] = 255  # a picture of 0..255 that is black but for one star
BRIGHT = np.ones((64, 64), np.float32)
BRIGHT[:5] = -1  # a page of -1..1 with a little on it


@pytest.mark.parametrize(
    ("value", "said", "hint"),
    [
        (PICTURE.astype("float32"), "from 0 to 255", "picture / 255"),
        (LONE, "from 0 to 255", "picture / 255"),
        ((PICTURE / 127.5 - 1).astype("float16"), "from -1 to 1", r"\(picture \+ 1\) / 2"),
        (torch.from_numpy(PICTURE / 127.5 - 1).bfloat16(), "from -1 to 1", r"\(picture \+ 1\) / 2"),
        (Image.fromarray(PICTURE[..., 0].astype("float32")), "PIL image of mode F", r'convert\("L"\)'),
        (BRIGHT, "from -1 to 1", r"\(picture \+ 1\) / 2"),
        (PICTURE.astype("int32"), "a picture of int32", "return uint8"),
        *((value, " ", "") for value in (np.zeros((2, 2, 2)), np.zeros(4), np.zeros((0, 3)), "text", None)),
        (np.full((2, 2), np.nan), " ", ""),
    ],
)
def test_floats_of_another_range_are_refused_with_what_to_do(value: object, said: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        encode_artifact(value, "png")
    assert re.search(hint, caught.value.hint or "")


ENDS = st.floats(-300, 300) | st.floats(-2, 2)


@given(low=ENDS, high=ENDS, seed=st.integers(0, 99))
def test_what_is_saved_is_near_what_was_given(low: float, high: float, seed: int) -> None:
    """The oracle is PIL's reading of the file: few values differ much from the floats, or it is refused."""
    pixels = low + (high - low) * np.random.default_rng(seed).random((16, 16, 3))
    try:
        saved = decoded(encode_artifact(pixels, "png")) / 255
    except ConfigError:
        assert pixels.min() < 0 or pixels.max() > 1
    else:
        assert (np.abs(saved - pixels) > 0.102).mean() <= 0.2


def test_arrays_and_texts() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(np.load(io.BytesIO(encode_artifact(array, "npy"))), array)
    assert encode_artifact("grün", "txt") == "grün".encode()
    with pytest.raises(ConfigError, match="must be a string"):
        encode_artifact(3, "txt")
    with pytest.raises(ValueError, match="Object arrays"):
        encode_artifact(np.array([object()]), "npy")


@pytest.mark.parametrize("mode", ["1", "LA", "PA", "P", "CMYK", "YCbCr", "HSV", "RGBA", "La", "RGBa", "RGBX"])
def test_a_pil_image_of_any_mode_keeps_its_colours(mode: str) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[0, 0] = (255, 255, 255) if mode in ("1", "LA", "PA", "La") else (255, 0, 0)
    picture = Image.fromarray(pixels)
    between = {"PA": "LA", "La": "LA", "RGBa": "RGBA"}.get(mode)
    given = (picture.convert(between) if between else picture).convert(mode)
    for made in (decoded(encode_artifact(given, "png")), np.asarray(plain_picture(given))):
        colours = made[..., :3] if made.ndim == 3 else np.repeat(made[..., None], 3, axis=2)
        assert np.abs(colours.astype(int) - pixels.astype(int)).max() <= 3, made[0, 0]


def test_a_colour_that_stands_for_transparent_stays_transparent() -> None:
    picture = Image.new("RGB", (2, 1), (255, 0, 0))
    picture.putpixel((0, 0), (0, 255, 0))
    picture.info["transparency"] = (0, 255, 0)
    assert decoded(encode_artifact(picture, "png"))[0, :, 3].tolist() == [0, 255]


@pytest.mark.parametrize(("kind", "most"), [("jpg", 6), ("webp", 8)])
def test_pictures_of_other_formats_are_near_what_was_given(kind: str, most: int) -> None:
    pixels = np.linspace(0, 255, 32 * 32 * 3).astype(np.uint8).reshape(32, 32, 3)
    picture = Image.open(io.BytesIO(encode_artifact(pixels, kind)))
    assert picture.format == {"jpg": "JPEG", "webp": "WEBP"}[kind]
    assert np.abs(np.asarray(picture.convert("RGB")).astype(int) - pixels).mean() < most
    clear = np.dstack([pixels, np.full((32, 32), 255, np.uint8)])
    assert Image.open(io.BytesIO(encode_artifact(clear, kind))).size == (32, 32)
    clear[0, 0, 3] = 0
    if kind == "jpg":
        with pytest.raises(ConfigError, match="no transparency"):
            encode_artifact(clear, kind)
    with pytest.raises(ConfigError, match="Pillow cannot save it"):
        encode_artifact(np.zeros((70_000, 1), np.uint8), kind)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 2)])
def test_sounds_come_back_as_they_were(dtype: type, shape: tuple[int, ...]) -> None:
    """The oracle is the standard library's reader."""
    limits = np.iinfo(dtype)
    samples = np.random.default_rng(0).integers(limits.min, limits.max, shape, dtype=dtype)
    with wave.open(io.BytesIO(encode_artifact((samples, 16000), "wav"))) as file:
        assert (file.getframerate(), file.getnchannels()) == (16000, shape[1] if len(shape) == 2 else 1)
        back = np.frombuffer(file.readframes(9), dtype=np.dtype(dtype).newbyteorder("<"))
    assert np.array_equal(back, samples.ravel())


def test_sounds_of_floats_have_16_bits() -> None:
    given_ = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    with wave.open(io.BytesIO(encode_artifact((given_, 8000.0), "wav"))) as file:
        assert file.getsampwidth() == 2
        assert np.frombuffer(file.readframes(4), "<i2").tolist() == [-32767, 0, 16384, 32767]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros(3), "no sound"),
        ((np.zeros(3), 0), "rate of '0'"),
        ((np.zeros(3), "fast"), "rate of 'fast'"),
        ((np.zeros((2, 5000)), 8000), "5000 channels"),
        ((np.zeros(3) + 300.0, 8000), "not in -1..1"),
        ((np.array([np.nan]), 8000), "not finite"),
        ((np.zeros(3, np.int64), 8000), "int64"),
    ],
)
def test_what_is_no_sound_is_refused(value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        encode_artifact(value, "wav")


def test_bytes_and_files_are_kept_as_they_are(tmp_path: Path) -> None:
    content = bytes(range(256))
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    assert encode_artifact(bytearray(content), "bytes") == content
    assert encode_artifact(path, "file.mp4") == encode_artifact(str(path), "file") == content
    with pytest.raises(ConfigError, match="must be bytes, not str"):
        encode_artifact("x", "bytes")
    with pytest.raises(ConfigError, match="cannot be read"):
        encode_artifact(tmp_path / "none.mp4", "file.mp4")
    with pytest.raises(ConfigError, match="is a bytes, no path"):
        encode_artifact(b"x", "file")


def test_each_type_has_its_suffix() -> None:
    assert [suffix_of(kind) for kind in ("png", "file", "file.mp4")] == ["png", "file", "mp4"]
    assert all(map(is_file_type, ("wav", "file.mp4")))
    assert not any(map(is_file_type, ("json", "number", None)))


# --- files of stages: read as they are meant, written whole or not at all, under safe names -------------


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "LA", "I;16", "CMYK"])
def test_every_kind_of_picture_is_read_as_three_colours(tmp_path: Path, mode: str) -> None:
    if mode == "I;16":
        picture = Image.fromarray(np.full((4, 6), 65535, dtype=np.uint16))
    else:
        picture = Image.new("RGB", (6, 4), "white").convert(mode)
    path = tmp_path / ("picture.tif" if mode == "CMYK" else "picture.png")
    picture.save(path)
    pixels = read_picture(path)
    assert pixels.shape == (4, 6, 3)
    assert pixels.dtype == np.float32
    assert np.all(pixels == 1.0)


def test_transparent_is_white_and_exif_turns(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert np.all(read_picture(tmp_path / "clear.png") == 1.0)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_picture(tmp_path / "turned.jpg").shape == (8, 4, 3)


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    whole = encode_artifact(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8), "png")
    for name, content in {"text.png": b"not a picture", "empty.png": b"", "cut.png": whole[:5000]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match=name):
            read_picture(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_picture(tmp_path / "none.png")


@settings(max_examples=examples(50), deadline=None)
@given(ids=st.lists(st.text(min_size=1, max_size=300), unique=True, min_size=2, max_size=2))
def test_file_names_are_safe_and_differ(ids: list[str]) -> None:
    names = [file_name(name, ".png") for name in ids]
    assert names[0] != names[1]
    for name in names:
        path = PurePosixPath(name)
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert all(len(part.encode()) < 240 and part.strip(". ") for part in path.parts)
        assert name.isascii()
        assert not set(name) & set('\\:*?"<>|\0')


def test_ordinary_ids_stay_readable() -> None:
    ids = ["a", "a/b c", "../x", "a.b", "a\udcff"]
    assert [file_name(item, "") for item in ids] == ["a", "a/b c", "%2E2E/x", "a.b", "a%ED%B3%BF"]


@given(
    st.lists(st.text("a.2E/%", min_size=1, max_size=8), unique=True, min_size=2, max_size=2),
    st.sampled_from([".a", ".2E", ".aa"]),
)
def test_no_file_is_where_another_needs_a_folder(ids: list[str], suffix: str) -> None:
    first, second = (PurePosixPath(file_name(name, suffix)) for name in ids)
    assert first not in second.parents
    assert second not in first.parents
    assert first != second


def test_a_write_that_fails_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "x.png"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in path.parent.iterdir()] == ["x.png"]


def test_pictures_of_floats_are_read_or_refused(tmp_path: Path) -> None:
    pixels = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)
    for name, factor in (("unit.tif", 1), ("bytes.tif", 255)):
        Image.fromarray(pixels * np.float32(factor)).save(tmp_path / name)
        assert np.abs(read_picture(tmp_path / name)[..., 0] - pixels).max() <= 0.002
    Image.fromarray(pixels * np.float32(2) - np.float32(1)).save(tmp_path / "signed.tif")
    with pytest.raises(FormatError, match="from -1 to 1"):
        read_picture(tmp_path / "signed.tif")
