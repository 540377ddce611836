"""Vector kernels against their rules on integers: any width, odd counts, in place, nothing beyond the end."""

import numpy as np
import pytest

from evenload.errors import UnknownName
from evenload.gpu.hashing import blake2s
from evenload.gpu.hashing.rules import RULES
from evenload.gpu.hashing.words import Words

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from evenload.gpu.field import FR
from evenload.gpu.llvm import programs
from evenload.gpu.llvm.hash import hash_kernels
from evenload.gpu.llvm.hash.hash_kernels import best_level, hash_program, vector_bits
from evenload.gpu.llvm.hash.poseidon_kernels import poseidon_ir, poseidon_program
from evenload.gpu.poseidon import poseidon
from evenload.native import machine

GUARD = 0xA5
PARAMS = [*blake2s.initial_state(key=b"k")[0], 64, *blake2s.initial_state(key=b"k", node_depth=1)[0], 64]
# Code for narrower vectors runs everywhere. SHA-256 takes longest to compile: only what is shipped.
PROGRAMS = [(rule, level) for rule in ("rfc6962", "bitcoin") for level in (None, 256, "sha")]
PROGRAMS += [(rule, bits) for rule in ("blake2s", "openzeppelin") for bits in (128, 256, 512)]


def twin(rule, kind, row):
    words = [int(word) for word in np.frombuffer(row.tobytes(), f"<u{rule.bits // 8}")]
    digest = getattr(rule, kind)(Words(rule.bits), words, PARAMS)
    return b"".join(word.to_bytes(rule.bits // 8, "little") for word in digest)


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


@pytest.mark.parametrize("n", [0, 1, 21])
def test_levels_equal_the_twin(kernels, n):
    rule, loaded = kernels
    rng, params = np.random.default_rng(n), known(rule)
    for kind, name, width in (("leaf", "leaves", 32), ("pair", "pairs", 64)):
        if name not in loaded.kernels:
            continue
        rows = rng.integers(0, 256, (n, width), dtype=np.uint8)
        whole, out = guarded(n, 32)
        loaded.kernels[name](rows.ctypes.data, out.ctypes.data, n, params.ctypes.data)
        for row, digest in zip(rows, out, strict=True):
            assert digest.tobytes() == twin(rule, kind, row)
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


def test_a_rule_without_leaf_hash_has_no_such_kernel():
    assert set(hash_kernels.kernels_of("bitcoin")) == {"pairs", "fold"}


def test_unknown_rule():
    with pytest.raises(UnknownName):
        hash_program("md5")


def test_vectors_are_as_wide_as_the_processor_has_them():
    features = machine.host_features()
    assert vector_bits() in (128, 256, 512)
    assert (vector_bits() == 512) == ({"avx512f", "avx512bw"} <= features)
    assert best_level("blake2s") == vector_bits()


@pytest.mark.parametrize(
    ("features", "level"),
    [
        ({"avx512f", "avx512bw", "sha"}, 512),
        ({"avx2", "sha"}, "sha"),
        ({"avx2"}, 256),
        ({"sha"}, "sha"),
        (set(), 128),
    ],
)
def test_the_level_is_the_fastest_that_the_processor_has(monkeypatch, features, level):
    monkeypatch.setattr(machine, "host_features", lambda: frozenset(features))
    assert best_level("rfc6962") == level


@pytest.mark.parametrize("level", ["ifma52", "fma52x8", "fma52x4", "word64"])
@pytest.mark.parametrize("n", [1, 5, 8, 11])
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


@pytest.mark.slow
def test_kernels_compile_for_arm64():
    from llvmlite import binding

    try:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        target = binding.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError as error:
        pytest.skip(f"this llvmlite has no AArch64 back end: {error}")
    arm64 = target.create_target_machine(cpu="generic", opt=1, codemodel="small")
    assert "sha256rnds2" in hash_kernels.hash_ir("bitcoin", "sha")
    for text in (*(hash_kernels.hash_ir(name, 128) for name in RULES), poseidon_ir("word64")):
        assert machine.compile_ir(text, arm64)[:4] == b"\x7fELF"
