"""Arrays in memory maps of files, sent to workers. The oracle is the file, as plain ``open`` reads it."""

import os
import pickle
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.transport.pickling import pack

DTYPES = ("u1", "<i2", ">f4", "f8", "c16", [("a", "u1"), ("b", "<f4")])


def sent(value: Any) -> tuple[int, Any]:
    """The bytes of the message in which a value goes to a worker, and what comes out of it there."""
    body, buffers = pack(value, by_file=True)
    return len(body) + sum(buffer.nbytes for buffer in buffers), pickle.loads(body, buffers=buffers)


@st.composite
def places(draw: st.DrawFn) -> tuple[np.dtype, int, tuple[int, ...], str, list[int], bool]:
    """A way to see a file: dtype, offset, shape, order, a step for each axis, whether it is transposed."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    steps = draw(st.lists(st.sampled_from([1, 2, -1, -2]), min_size=len(shape), max_size=len(shape)))
    dtype, offset = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.sampled_from([0, 1, 64, 4096, 5000]))
    return dtype, offset, shape, draw(st.sampled_from("CF")), steps, draw(st.booleans())


def seen(array: Any, steps: list[int], is_turned: bool) -> Any:
    array = array[tuple(slice(None, None, step) for step in steps)]
    return array.T if is_turned else array


@given(place=places(), written=st.binary(min_size=16, max_size=16), flags=st.tuples(*[st.booleans()] * 4))
@settings(max_examples=examples(300))
def test_any_view_of_a_file_is_the_same_bytes_of_the_same_file(tmp_path_factory, place, written, flags):
    dtype, offset, shape, order, steps, is_turned = place
    is_plain, is_by_value, is_open, may_write = flags
    path = tmp_path_factory.getbasetemp() / "file"
    path.write_bytes(np.random.default_rng(0).bytes(offset + 130 * dtype.itemsize))
    array = seen(np.memmap(path, dtype, "r+" if is_open else "r", offset, shape, order), steps, is_turned)
    array = np.asarray(array) if is_plain else array
    array.flags.writeable = is_open and may_write
    n_bytes, (there, *_) = sent([array, (lambda: 0) if is_by_value else 0])
    assert type(there) is type(array)
    assert (there.shape, there.dtype, there.flags.writeable) == (array.shape, dtype, is_open and may_write)
    assert n_bytes < 2000
    # The places of the elements in the file, by a count of elements that is seen in the same way.
    numbers = seen(np.arange(np.prod(shape)).reshape(shape, order=order), steps, is_turned)
    content = bytearray(path.read_bytes())
    size = dtype.itemsize
    for index in np.ndindex(array.shape):
        start = offset + int(numbers[index]) * size
        one = tuple(slice(i, i + 1) for i in index)
        assert there[one].tobytes() == content[start : start + size]
        if there.flags.writeable:
            there[one] = np.frombuffer(written[:size], dtype)[0]
            content[start : start + size] = written[:size]
    assert path.read_bytes() == content


def test_what_is_in_no_file_is_copied(tmp_path):
    """Changes of a private map are in no file, and nor is a result."""
    path = tmp_path / "file"
    path.write_bytes(bytes(80))
    mine = np.memmap(path, "f8", "c")
    mine[0] = 7
    assert sent(mine)[1][0] == 7
    shared = np.memmap(path, "f8", "r+")
    body, buffers = pack(shared)
    copied = pickle.loads(body, buffers=buffers)
    copied[1] = 5
    assert not any(path.read_bytes())


@pytest.mark.skipif(
    not os.path.exists("/proc/self/maps"), reason="the system does not say which file is mapped"
)
def test_a_name_that_another_file_took_is_not_mistaken_for_the_file(tmp_path):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"\x01" * 8)
    array = np.memmap(path, "u1", "r+")
    path.rename(tmp_path / "moved")
    path.write_bytes(b"\x02" * 8)
    there = sent(array)[1]
    there[0] = 9
    assert (tmp_path / "moved").read_bytes() == b"\x09" + b"\x01" * 7
    other.write_bytes(b"\x03" * 8)
    other.replace(tmp_path / "moved")
    with pytest.warns(RuntimeWarning, match="no name any more"):
        there = sent(array)[1]
    assert there.tolist() == [9] + [1] * 7


@pytest.mark.parametrize("change", ["replaced", "cut", "gone"])
def test_a_file_that_changed_on_the_way_is_refused(tmp_path, change):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"\x01" * 8192)
    body, _ = pack(np.memmap(path, "u1", "r"), by_file=True)
    other.write_bytes(b"\x02" * 8192)
    if change == "replaced":
        other.replace(path)
    elif change == "cut":
        os.truncate(path, 100)
    else:
        path.unlink()
    with pytest.raises(OSError, match=r"file.*send a copy"):
        pickle.loads(body)
