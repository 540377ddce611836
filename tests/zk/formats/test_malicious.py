"""Every damaged or hostile file is refused with an error that names section and byte, at once and without a
crash."""

import dataclasses
import importlib.util
import os
import random
import struct
import sys
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
from evenload.zk.bn254.plain_curve import G2
from evenload.zk.formats.r1cs import read_r1cs

DATA = Path(__file__).parents[2] / "data" / "zk" / "multiplier"
GOOD = {name: (DATA / name).read_bytes() for name in ("circuit.zkey", "witness.wtns", "multiplier.r1cs")}

_spec = importlib.util.spec_from_file_location("malicious", Path(__file__).parent / "malicious.py")
malicious = importlib.util.module_from_spec(_spec)
sys.modules["malicious"] = malicious
_spec.loader.exec_module(malicious)

READERS = {"circuit.zkey": read_zkey, "witness.wtns": read_witness, "multiplier.r1cs": read_r1cs}
MAKERS = {
    "circuit.zkey": malicious.zkeys,
    "witness.wtns": malicious.witnesses,
    "multiplier.r1cs": malicious.circuits,
}
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
    at = {kind: entry[:2] for kind, entry in malicious.sections(good).items()}
    assert at[2][0] > at[1][0]
    content = malicious.changed(good, at[1][1] + 36, "<I", n)
    content = malicious.changed(content, at[2][0] + 4, "<Q", 32 * n)
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


def bad_points():
    """Faults inside the long lists of points, found while the key is loaded."""
    good, at = GOOD["circuit.zkey"], {k: v[1] for k, v in malicious.sections(GOOD["circuit.zkey"]).items()}
    for kind, size in ((5, 64), (6, 64), (7, 128), (8, 64), (9, 64)):
        count = malicious.sections(good)[kind][2] // size
        places = [k for k in range(count) if any(good[at[kind] + size * k :][:size])]
        place = at[kind] + size * places[-1]
        words = f"section {kind} "
        yield (
            f"{kind} off the curve",
            malicious.with_integer(good, place, lambda v: v ^ 1),
            (words, f"byte {place}", "curve"),
        )
        larger = malicious.with_integer(good, place + 32, lambda v: v + FQ.modulus)
        yield f"{kind} not canonical", larger, (words, f"byte {place}", "not below q")
    place = at[7] + 128 * next(k for k in range(4) if any(good[at[7] + 128 * k :][:128]))
    outside = point_outside_the_subgroup()
    yield (
        "wrong subgroup",
        good[:place] + outside + good[place + 128 :],
        ("section 7", f"byte {place}", "subgroup"),
    )
    header = at[2] + 84 + 128
    yield (
        "beta2 outside the subgroup",
        good[:header] + outside + good[header + 128 :],
        ("section 2", "beta2", "subgroup"),
    )


def point_outside_the_subgroup():
    """A point of the twist whose order is not r: the first x that gives one."""
    q, b = FQ.modulus, G2.b
    for k in range(1, 100):
        x = (k, 0)
        cube = pow(k, 3, q)
        value = ((cube + b[0]) % q, b[1])
        root = square_root(value)
        if root is not None and G2.multiply((x, root), FR.modulus) is not None:
            return b"".join(FQ.montgomery(c).to_bytes(32, "little") for c in (*x, *root))
    raise AssertionError("no such point below 100")


def square_root(value):
    """In Fq2, by the norm; q is 3 modulo 4."""
    q = FQ.modulus
    root = lambda n: pow(n, (q + 1) // 4, q)  # noqa: E731
    norm = root((value[0] ** 2 + value[1] ** 2) % q)
    for sign in (norm, -norm):
        half = (value[0] + sign) * pow(2, -1, q) % q
        real = root(half)
        if real * real % q == half and real:
            imaginary = value[1] * pow(2 * real, -1, q) % q
            if ((real * real - imaginary * imaginary) % q, 2 * real * imaginary % q) == value:
                return real, imaginary
    return None


POINTS = list(bad_points())


@pytest.mark.parametrize(("name", "content", "words"), POINTS, ids=[case[0] for case in POINTS])
def test_bad_points_are_refused_when_the_key_is_loaded(name, content, words, level_of_this_machine):
    with pytest.raises(FormatError) as caught:
        Prover(content, level=level_of_this_machine)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture(params=["ifma52", "fma52x8", "fma52x4", "word64"])
def level_of_this_machine(request):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    from evenload.gpu.llvm import programs

    if request.param not in programs.levels_here():
        pytest.skip(f"this processor cannot run {request.param}")
    return request.param


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
        found = malicious.sections(good)
        parts = [good[start : payload + length] for start, payload, length in found.values()][::-1]
        parts.append(struct.pack("<IQ", 4711, 3) + b"abc")
        shuffled = malicious.changed(good[:12] + b"".join(parts), 8, "<I", len(parts))
        assert contents(READERS[file](shuffled)) == contents(READERS[file](good))


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    file=st.sampled_from(sorted(GOOD)),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4),
    cut=st.floats(0, 1),
)
def test_random_damage_gives_a_format_error_or_a_sound_value(file, edits, cut):
    """Never another exception, whatever bytes are overwritten and wherever the file ends."""
    content = bytearray(GOOD[file])
    for place, replacement in edits:
        at = int(place * (len(content) - 1))
        content[at : at + len(replacement)] = replacement
    if cut < 0.3:
        content = content[: int(cut / 0.3 * len(content))]
    complaint = "byte"
    try:
        READERS[file](bytes(content))
    except FormatError as error:
        complaint = str(error)
    assert "byte" in complaint or "missing" in complaint


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=400), st.sampled_from(sorted(GOOD)))
def test_arbitrary_bytes_after_a_good_start(tail, file):
    try:
        READERS[file](GOOD[file][:12] + tail)
    except FormatError:
        return
    raise AssertionError("accepted noise")


@pytest.mark.parametrize("file", sorted(GOOD))
def test_a_short_run_of_the_coverage_guided_fuzzer(file):
    """Longer ones: python tests/zk/formats/fuzzer.py 600."""
    spec = importlib.util.spec_from_file_location("fuzzer", Path(__file__).parent / "fuzzer.py")
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    dice = random.Random(2026)
    runs, kept = fuzzer.fuzz(READERS[file], [GOOD[file]], FormatError, dice, lambda runs: runs >= 150)
    assert runs == 150
    assert kept > 5
