"""Vector kernels against hashlib: any width, odd counts, in place, nothing beyond the end."""

import hashlib

import numpy as np
import pytest

from evenload.errors import UnknownName
from evenload.gpu.hashing import blake2s, keccak
from evenload.gpu.hashing.rules import RULES
from evenload.gpu.hashing.words import Words

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from evenload.gpu.field import FR
from evenload.gpu.llvm import programs
from evenload.gpu.llvm.hash.hash_kernels import best_level, hash_program
from evenload.gpu.llvm.hash.poseidon_kernels import poseidon_program
from evenload.gpu.poseidon import poseidon
from evenload.native import machine

GUARD = 0xA5
PARAMS = [*blake2s.initial_state(key=b"k")[0], 64, *blake2s.initial_state(key=b"k", node_depth=1)[0], 64]
# Code for narrower vectors runs everywhere; what is not shipped takes long to compile.
PROGRAMS = [(rule, level) for rule in ("rfc6962", "bitcoin") for level in (None, 256, "sha")]
PROGRAMS += [("blake2s", None), ("blake2s", 256), ("openzeppelin", None), ("openzeppelin", 128)]
PROGRAMS += [pytest.param(("blake2s", 512), marks=pytest.mark.slow)]


def words_of(content, bits):
    return [int(word) for word in np.frombuffer(content, f"<u{bits // 8}")]


def bytes_of(words, bits):
    return b"".join(word.to_bytes(bits // 8, "little") for word in words)


def keccak256(message):
    """Of less than a block; the permutation is that of hashlib's SHA3, see below."""
    padded = message + b"\x01" + bytes(134 - len(message)) + b"\x80"
    return bytes_of(keccak.permute(Words(64), [*words_of(padded, 64), *[0] * 8])[:4], 64)


def sha256(content):
    return hashlib.sha256(content).digest()


def blake2s_node(row, depth):
    return hashlib.blake2s(row, key=b"k", fanout=2, depth=255, inner_size=32, node_depth=depth).digest()


ORACLES = {
    ("rfc6962", "leaf"): lambda row: sha256(b"\0" + row),
    ("rfc6962", "pair"): lambda row: sha256(b"\1" + row),
    ("bitcoin", "pair"): lambda row: sha256(sha256(row)),
    ("blake2s", "leaf"): lambda row: blake2s_node(row, 0),
    ("blake2s", "pair"): lambda row: blake2s_node(row, 1),
    ("openzeppelin", "leaf"): lambda row: keccak256(keccak256(row)),
    ("openzeppelin", "pair"): lambda row: keccak256(b"".join(sorted((row[:32], row[32:])))),
}


def test_keccak_f_is_that_of_sha3():
    """hashlib has SHA3-256, which differs from Keccak-256 in the padding alone."""
    message = bytes(range(100))
    block = message + b"\x06" + bytes(34) + b"\x80"
    state = keccak.permute(Words(64), [*words_of(block, 64), *[0] * 8])
    assert bytes_of(state[:4], 64) == hashlib.sha3_256(message).digest()


@pytest.fixture(params=PROGRAMS, ids=lambda chosen: f"{chosen[0]}-{chosen[1] or 'widest'}")
def kernels(request):
    name, level = request.param
    if level == "sha" and "sha" not in machine.host_features():
        pytest.skip("this processor has no SHA instructions")
    return RULES[name], hash_program(name, level)


def known(rule):
    return np.array(PARAMS, f"u{rule.bits // 8}")


def guarded(n, width):
    """Rows that lie between bytes which must not change, at an odd address."""
    whole = np.full(n * width + 129, GUARD, np.uint8)
    return whole, whole[65 : 65 + n * width].reshape(n, width)


def test_levels_are_hashlibs(kernels):
    rule, loaded = kernels
    rng, params = np.random.default_rng(1), known(rule)
    kinds = [(n, *kind) for n in (0, 1, 21) for kind in (("leaf", "leaves", 32), ("pair", "pairs", 64))]
    for n, kind, name, width in kinds:
        if name not in loaded.kernels:
            continue
        rows = rng.integers(0, 256, (n, width), dtype=np.uint8)
        whole, out = guarded(n, 32)
        loaded.kernels[name](rows.ctypes.data, out.ctypes.data, n, params.ctypes.data)
        for row, digest in zip(rows, out, strict=True):
            assert digest.tobytes() == ORACLES[rule.name, kind](row.tobytes())
        assert set(whole[:65]) | set(whole[65 + 32 * n :]) == {GUARD}


@pytest.mark.parametrize(("n", "levels"), [(1, 0), (2, 1), (16, 2), (64, 6), (96, 5)])
def test_fold_in_place(kernels, n, levels):
    rule, loaded = kernels
    params, (whole, rows) = known(rule), guarded(n, 32)
    rows[:] = np.random.default_rng(n).integers(0, 256, rows.shape, dtype=np.uint8)
    expected = rows.copy()
    for _ in range(levels):
        pairs = np.ascontiguousarray(expected).reshape(-1, 64)
        expected = np.empty((len(pairs), 32), np.uint8)
        loaded.pairs(pairs.ctypes.data, expected.ctypes.data, len(pairs), params.ctypes.data)
    loaded.fold(rows.ctypes.data, n, levels, params.ctypes.data)
    assert rows[: n >> levels].tobytes() == expected.tobytes()
    assert set(whole[:65]) | set(whole[65 + 32 * n :]) == {GUARD}


def test_unknown_rule():
    with pytest.raises(UnknownName):
        hash_program("md5")


def test_the_level_is_the_fastest_that_the_processor_has(monkeypatch):
    levels = {"avx512f avx512bw sha": 512, "avx2 sha": "sha", "avx2": 256, "sha": "sha", "": 128}
    for features, level in levels.items():
        monkeypatch.setattr(machine, "host_features", lambda features=features: frozenset(features.split()))
        assert best_level("rfc6962") == level


@pytest.mark.parametrize("level", ["ifma52", "fma52x8", "fma52x4", "word64"])
@pytest.mark.parametrize("n", [1, 8, 11])
def test_poseidon(level, n):
    if level not in programs.levels_here():
        pytest.skip(f"this processor cannot run {level}")
    loaded, r = poseidon_program(level), FR.modulus
    values = [0, 0, r - 1, r - 1, 1, r - 2, *(pow(3, k, r) for k in range(2 * n))][: 2 * n]
    rows = np.frombuffer(b"".join(value.to_bytes(32, "little") for value in values), np.uint8).copy()
    whole, out = guarded(n, 32)
    loaded.pairs(rows.ctypes.data, out.ctypes.data, n, 0)
    for k in range(n):
        assert int.from_bytes(out[k].tobytes(), "little") == poseidon(values[2 * k : 2 * k + 2])
    assert set(whole[:65]) | set(whole[65 + 32 * n :]) == {GUARD}
    if n == 8:
        loaded.fold(rows.ctypes.data, 16, 4, 0)
        nodes = [poseidon(values[k : k + 2]) for k in range(0, 16, 2)]
        while len(nodes) > 1:
            nodes = [poseidon(nodes[k : k + 2]) for k in range(0, len(nodes), 2)]
        assert int.from_bytes(rows[:32].tobytes(), "little") == nodes[0]
