"""Tests the files of stages: read as they are meant, written whole or not at all, under safe names."""

from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenload.errors import FormatError
from evenload.pipeline.artifacts import (
    file_name,
    read_picture,
    write_atomically,
)
from evenload.pipeline.file_types import encode_artifact


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


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("a", "a.png"),
        ("a/b c", "a/b c.png"),
        ("../x", "%2E2E/x.png"),
        ("a.b", "a.b.png"),
        ("a\udcff", "a%ED%B3%BF.png"),
    ],
)
def test_ordinary_ids_stay_readable(item: str, name: str) -> None:
    assert file_name(item, ".png") == name


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
