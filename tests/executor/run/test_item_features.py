"""What items are is told in numbers, without a call of anybody's code, and whatever they are."""

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.run.item_features import features_of, file_features, looks_like_path, names_a_file


def features(item: Any, *, reads_files: bool = False) -> dict[str, float]:
    found = features_of(item, 7, reads_files=reads_files)
    assert found.pop("the position") == 7
    return found


@dataclass
class Job:
    text: str
    steps: int
    weights: Any = field(default_factory=lambda: np.zeros((3, 4)))


@dataclass(slots=True)
class SlottedJob:
    steps: int


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("four", {"the length of the item": 4}),
        (b"abc", {"the bytes of the item": 3}),
        (2.5, {"the item": 2.5}),
        (True, {"the item": 1}),
        (range(9), {"the length of the item": 9}),
        (np.zeros((2, 5)), {"the elements of the item": 10}),
        ([1, 2, 3, 4, 5], {"the length of the item": 5}),
        (("ab", 3), {"the length of the item": 2, "the length of `[0]`": 2, "`[1]`": 3}),
        ({"n": 3, "text": "abc", 4: 5}, {"the length of the item": 3, "`n`": 3, "the length of `text`": 3}),
        (Job("abc", 20), {"the length of `text`": 3, "`steps`": 20, "the elements of `weights`": 12}),
        (SlottedJob(5), {"`steps`": 5}),
        (None, {}),
        (object(), {}),
        (float("nan"), {}),
        (10**400, {}),
    ],
)
def test_what_an_item_is(item, expected):
    assert features(item) == expected


def fail(*_: Any) -> Any:
    raise AssertionError("a user's code was called")


class Text(str):
    __len__ = __iter__ = __getattribute__ = fail


class Number(int):
    __float__ = __index__ = __lt__ = __gt__ = fail


class Table(dict):
    __len__ = __iter__ = __getitem__ = fail


class Array(np.ndarray):
    @property
    def size(self) -> int:  # type: ignore[override]
        return fail()


@dataclass
class Guarded:
    steps: int = 3

    __len__ = __getattr__ = fail

    def __getattribute__(self, name: str) -> Any:
        fail()


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        return fail()


class Strange(metaclass=Meta):
    pass


class Pair(NamedTuple):
    a: int


def test_no_code_of_anybodys_class_is_called():
    strangers = [Text("ab"), Number(3), Table(a=1), np.zeros(3).view(Array), Strange(), Pair(1)]
    for stranger in strangers:
        assert features(stranger, reads_files=True) == {}
        assert not names_a_file(stranger)
        assert features({"x": stranger, "n": 1}) == {"the length of the item": 2, "`n`": 1}
    assert features(Guarded()) == {"`steps`": 3}, "as it is stored"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(anything)
def test_any_item_has_a_few_finite_features(item):
    found = features(item, reads_files=True)
    assert len(found) <= 100
    assert all(type(value) is float and abs(value) < 1e16 for value in found.values())
    assert all(len(name) <= 120 and name.isprintable() for name in found)


def png(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


IMAGES = {
    "a.png": png(30, 20),
    "a.gif": b"GIF89a" + struct.pack("<HH", 30, 20),
    "a.bmp": b"BM" + bytes(16) + struct.pack("<ii", 30, -20),
    "a.jpg": b"\xff\xd8\xff\xe0\x00\x10" + bytes(14) + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 20, 30),
}


@pytest.mark.parametrize("name", IMAGES)
def test_a_file_is_its_bytes_and_an_image_its_pixels(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(IMAGES[name])
    expected = {"bytes": len(IMAGES[name]), "pixels": 600}
    assert file_features(str(path)) == expected
    for item, what in ((path, "the item"), ({"image": str(path)}, "`image`")):
        assert names_a_file(item)
        found = features(item, reads_files=True)
        assert {key: found[f"the {key} of the file {what}"] for key in expected} == expected
        assert not any("file" in key for key in features(item))


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png", "missing.png", "a\0.png", "x" * 900 + ".png"):
        assert file_features(str(tmp_path / name)) == {}
    assert not any(
        map(looks_like_path, ("a text. And more of it", "no suffix", "", "a\nb.txt", "x" * 2000 + ".txt"))
    )
