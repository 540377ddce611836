"""Every damaged or hostile file is refused with an error that names section and byte, at once and without a
crash."""

import dataclasses
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from examples_count import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, FormatError
from evenload.gpu.field import FQ, FR
from evenload.zk import Prover, read_witness, read_zkey
from evenload.zk.bn254.plain_curve import row_of
from evenload.zk.formats.r1cs import read_r1cs

DATA = Path(__file__).parents[2] / "data" / "zk" / "multiplier"
GOOD = {name: (DATA / name).read_bytes() for name in ("circuit.zkey", "witness.wtns", "multiplier.r1cs")}

READERS = {"circuit.zkey": read_zkey, "witness.wtns": read_witness, "multiplier.r1cs": read_r1cs}
R, Q = FR.modulus, FQ.modulus


# --- damaged and hostile files, made from good ones: (name, file, what the error must name)
def sections(content):
    """type -> (offset of header, offset of payload, length)."""
    n, at, found = struct.unpack_from("<I", content, 8)[0], 12, {}
    for _ in range(n):
        kind, length = struct.unpack_from("<IQ", content, at)
        found[kind] = (at, at + 12, length)
        at += 12 + length
    return found


def changed(content, at, fmt, *values):
    out = bytearray(content)
    struct.pack_into(fmt, out, at, *values)
    return bytes(out)


def with_integer(content, at, change):
    value = change(int.from_bytes(content[at : at + 32], "little"))
    return content[:at] + value.to_bytes(32, "little") + content[at + 32 :]


def without(content, kind):
    start, payload, length = sections(content)[kind]
    out = content[:start] + content[payload + length :]
    return changed(out, 8, "<I", len(sections(content)) - 1)


def doubled(content, kind):
    start, payload, length = sections(content)[kind]
    out = content + content[start : payload + length]
    return changed(out, 8, "<I", len(sections(content)) + 1)


def resized(content, kind, difference):
    """The section holds ``difference`` bytes more or fewer, and says so: only its meaning is wrong."""
    start, payload, length = sections(content)[kind]
    body = (content[payload : payload + length] + bytes(max(difference, 0)))[: length + difference]
    head = struct.pack("<IQ", kind, length + difference)
    return content[:start] + head + body + content[payload + length :]


def zkeys(good):
    at = {kind: entry[1] for kind, entry in sections(good).items()}
    header = {kind: entry[0] for kind, entry in sections(good).items()}
    coefficient = at[4] + 4
    yield "magic", b"zkez" + good[4:], "byte 0"
    yield "version", changed(good, 4, "<I", 2), "byte 4"
    yield "empty", b"", "byte 0"
    yield "header only", good[:12], "ends at byte 12"
    yield "a billion sections", changed(good, 8, "<I", 10**9), "byte 8"
    yield "truncated", good[: len(good) // 2], "claims"
    yield "truncated in a section header", good[: header[10] + 5], f"byte {header[10]}"
    yield "bytes after the end", good + b"x", "after the last section"
    for kind in range(1, 10):
        yield f"section {kind} missing", without(good, kind), f"section {kind}"
        yield f"section {kind} twice", doubled(good, kind), f"section {kind}"
        yield f"section {kind} too short", resized(good, kind, -1), f"section {kind}"
        yield f"section {kind} too long", resized(good, kind, 64), f"section {kind}"
    yield "section length wraps 2^64", changed(good, header[5] + 4, "<Q", 2**64 - at[5]), "section 5"
    yield "section length 2^64-1", changed(good, header[5] + 4, "<Q", 2**64 - 1), "section 5"
    yield "plonk", changed(good, at[1], "<I", 2), "plonk"
    yield "fflonk", changed(good, at[1], "<I", 10), "fflonk"
    yield "unknown protocol", changed(good, at[1], "<I", 77), "protocol 77"
    yield "another q", with_integer(good, at[2] + 4, lambda v: v + 2), "section 2"
    yield "another r", with_integer(good, at[2] + 40, lambda v: v + 2), "section 2"
    yield "n8 of 48", changed(good, at[2], "<I", 48), "section 2"
    yield "many wires", changed(good, at[2] + 72, "<I", 5_000_000), "5000000 points"
    yield "2^32-1 wires", changed(good, at[2] + 72, "<I", 2**32 - 1), "points"
    yield "more public inputs than wires", changed(good, at[2] + 76, "<I", 4), f"byte {at[2] + 76}"
    yield "2^32-1 public inputs", changed(good, at[2] + 76, "<I", 2**32 - 1), f"byte {at[2] + 76}"
    for size in (0, 1, 3, 1 << 28, 1 << 30, 2**32 - 1):
        yield f"domain {size}", changed(good, at[2] + 80, "<I", size), f"byte {at[2] + 80}"
    yield "domain 2^27 without its points", changed(good, at[2] + 80, "<I", 1 << 27), "section 9"
    yield "count of coefficients", changed(good, at[4], "<I", 2**32 - 1), "section 4"
    yield "matrix 2", changed(good, coefficient, "<I", 2), f"byte {coefficient}"
    yield "matrix 7", changed(good, coefficient, "<I", 7), f"byte {coefficient}"
    yield "row", changed(good, coefficient + 4, "<I", 0xFFFFFFF0), f"byte {coefficient + 4}"
    yield "row = domain", changed(good, coefficient + 4, "<I", 4), f"byte {coefficient + 4}"
    yield "wire", changed(good, coefficient + 8, "<I", 0xFFFFFFF0), f"byte {coefficient + 8}"
    yield "wire = n", changed(good, coefficient + 8, "<I", 4), f"byte {coefficient + 8}"
    yield "coefficient r", with_integer(good, coefficient + 12, lambda _: R), f"byte {coefficient + 12}"
    yield (
        "coefficient 2^256-1",
        with_integer(good, coefficient + 12, lambda _: 2**256 - 1),
        f"byte {coefficient + 12}",
    )
    yield "alpha off the curve", with_integer(good, at[2] + 84, lambda v: v ^ 1), "alpha1 is not on the curve"
    yield "beta not canonical", with_integer(good, at[2] + 212, lambda v: v + Q), "beta2 has a coordinate"
    delta = at[2] + 84 + 64 * 2 + 128 * 2 + 64
    yield "delta2 is infinity", good[:delta] + bytes(128) + good[delta + 128 :], "delta2 is infinity"
    yield (
        "IC off the curve",
        with_integer(good, at[3] + 64, lambda v: v ^ 1),
        f"section 3 (IC points) at byte {at[3] + 64}",
    )


def witnesses(good):
    at = {kind: entry[1] for kind, entry in sections(good).items()}
    yield "magic", b"wtnz" + good[4:], "byte 0"
    yield "version 3", changed(good, 4, "<I", 3), "byte 4"
    yield "truncated", good[:-1], "section 2"
    yield "another prime", with_integer(good, at[1] + 4, lambda _: Q), "section 1"
    yield "count too large", changed(good, at[1] + 36, "<I", 2**32 - 1), "section 2"
    yield "count too small", changed(good, at[1] + 36, "<I", 3), "section 2"
    yield "no values", changed(resized(good, 2, -sections(good)[2][2]), at[1] + 36, "<I", 0), "section 2"
    yield "value + r", with_integer(good, at[2] + 64, lambda v: v + R), f"byte {at[2] + 64}"
    yield "public value + r", with_integer(good, at[2] + 32, lambda v: v + R), f"byte {at[2] + 32}"
    yield "value r", with_integer(good, at[2] + 64, lambda _: R), f"byte {at[2] + 64}"
    yield "constant is 2", changed(good, at[2], "<I", 2), f"byte {at[2]}"
    yield "header missing", without(good, 1), "section 1"
    yield "values twice", doubled(good, 2), "section 2"


def circuits(good):
    at = {kind: entry[1] for kind, entry in sections(good).items()}
    yield "magic", b"r1cz" + good[4:], "byte 0"
    yield "truncated", good[:-1], "section"
    yield "another prime", with_integer(good, at[1] + 4, lambda _: Q), "section 1"
    yield "n8", changed(good, at[1], "<I", 31), "section 1"
    yield "fewer wires than inputs", changed(good, at[1] + 36, "<I", 1), "section 1"
    yield "2^32-1 constraints", changed(good, at[1] + 60, "<I", 2**32 - 1), "section 2"
    yield "one constraint more", changed(good, at[1] + 60, "<I", 2), "section 2"
    yield "no constraint", changed(good, at[1] + 60, "<I", 0), "section 2"
    yield "2^32-1 terms", changed(good, at[2], "<I", 2**32 - 1), f"byte {at[2]}"
    yield "wire", changed(good, at[2] + 4, "<I", 0xFFFFFFF0), f"byte {at[2] + 4}"
    yield "coefficient + r", with_integer(good, at[2] + 8, lambda v: R), f"byte {at[2] + 8}"
    yield (
        "custom gates",
        changed(good, 8, "<I", len(at) + 1) + struct.pack("<IQ", 4, 8) + bytes(8),
        "section 4",
    )


MAKERS = {"circuit.zkey": zkeys, "witness.wtns": witnesses, "multiplier.r1cs": circuits}
CASES = [(file, *case) for file, make in MAKERS.items() for case in make(GOOD[file])]


@pytest.mark.parametrize(("file", "name", "content", "words"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_refused_at_once(file, name, content, words):
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            READERS[file](content, name="evil")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert str(caught.value).startswith("evil")
    assert peak < 4_000_000


@pytest.mark.parametrize("file", sorted(READERS))
def test_a_pipe_is_refused_and_not_waited_for(file, tmp_path):
    pipe = tmp_path / "evil"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(FormatError, match="no plain file"):
            READERS[file](path)


def test_a_huge_witness_is_refused_before_its_values_are_read(tmp_path):
    """A file with a hole: 64 GB that cost its maker nothing."""
    good, path, n = GOOD["witness.wtns"], tmp_path / "evil", 1 << 31
    at = {kind: entry[:2] for kind, entry in sections(good).items()}
    assert at[2][0] > at[1][0]
    content = changed(good, at[1][1] + 36, "<I", n)
    content = changed(content, at[2][0] + 4, "<Q", 32 * n)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(at[2][1] + 32 * n)
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    with Prover(GOOD["circuit.zkey"]) as prover:
        prover.prove(GOOD["witness.wtns"])  # what the first proof compiles is not counted
        tracemalloc.start()
        try:
            with pytest.raises(ConfigError, match=f"has {n} values"):
                prover.prove(path)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


def test_bad_points_are_refused_when_the_key_is_loaded(twist_point):
    """Faults inside the long lists of points; ``msm`` has those of each kernel."""
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    good, at = GOOD["circuit.zkey"], sections(GOOD["circuit.zkey"])
    outside = row_of(twist_point, 2)

    def refuse(content, *words):
        with pytest.raises(FormatError) as caught:
            Prover(content)
        assert all(word in str(caught.value) for word in words), (words, str(caught.value))

    for kind, size in ((5, 64), (6, 64), (7, 128), (8, 64), (9, 64)):
        _, first, length = at[kind]
        place = next(k for k in range(first + length - size, first - 1, -size) if any(good[k : k + size]))
        where = (f"section {kind} ", f"byte {place}")
        refuse(with_integer(good, place, lambda v: v ^ 1), *where, "curve")
        refuse(with_integer(good, place + 32, lambda v: v + Q), *where, "not below q")
        if kind == 7:
            refuse(good[:place] + outside + good[place + size :], *where, "subgroup")
    beta2 = at[2][1] + 84 + 128
    refuse(good[:beta2] + outside + good[beta2 + 128 :], "section 2", "beta2", "subgroup")


def contents(value):
    """What was read, as plain values that can be compared; what the order of sections changes is left out."""
    if dataclasses.is_dataclass(value):
        names = {field.name for field in dataclasses.fields(value)} - {"sha256", "offsets"}
        return {name: contents(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: contents(one) for key, one in value.items()}
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def test_sections_may_come_in_any_order_and_unknown_ones_are_skipped():
    for file, good in GOOD.items():
        found = sections(good)
        parts = [good[start : payload + length] for start, payload, length in found.values()][::-1]
        parts.append(struct.pack("<IQ", 4711, 3) + b"abc")
        shuffled = changed(good[:12] + b"".join(parts), 8, "<I", len(parts))
        assert contents(READERS[file](shuffled)) == contents(READERS[file](good))


EDGES = [n.to_bytes(4, "little") for n in (0, 1, 2, 7, 127, 1 << 27, 2**31 - 1, 2**31, 2**32 - 16, 2**32 - 1)]
WORDS = st.sampled_from(EDGES)  # in place of counts, sizes and numbers of sections


@settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    file=st.sampled_from(sorted(GOOD)),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8) | WORDS), min_size=1, max_size=4
    ),
    cut=st.floats(0, 1),
)
def test_random_damage_gives_a_format_error_or_a_sound_value(file, edits, cut):
    """Never another exception, whatever bytes are overwritten and wherever the file ends."""
    content = bytearray(GOOD[file])
    for place, replacement in edits:
        at = int(place * (len(content) - 1)) & (~3 if replacement in EDGES else ~0)
        content[at : at + len(replacement)] = replacement
    if cut < 0.3:
        content = content[: int(cut / 0.3 * len(content))]
    complaint = "byte"
    try:
        READERS[file](bytes(content))
    except FormatError as error:
        complaint = str(error)
    assert "byte" in complaint or "missing" in complaint
