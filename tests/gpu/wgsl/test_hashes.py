"""WGSL kernels of the hash rules against the rules on integers."""

import numpy as np
import pytest

from evenload.errors import UnknownName
from evenload.gpu.field import FR
from evenload.gpu.hashing import blake2s
from evenload.gpu.hashing.rules import RULES
from evenload.gpu.hashing.words import Words
from evenload.gpu.poseidon import poseidon
from evenload.gpu.wgsl.hashes import hash_kernel, poseidon_constants, poseidon_kernel
from evenload.gpu.wgsl.queue import Queue
from evenload.gpu.wgsl.words import Pairs, WgslWords

PARAMS = [*blake2s.initial_state(person=b"p")[0], 0, *blake2s.initial_state(person=b"p", node_depth=1)[0], 0]
KERNELS = [(name, kind) for name in RULES for kind in ("leaf", "pair") if (name, kind) != ("bitcoin", "leaf")]


def run(context, kernel, rows, n, known, **params):
    """Digests of ``rows``, behind which they are written."""
    buffer = context.upload(rows, context.buffer(rows.nbytes + 32 * n))
    queue = Queue(context)
    bound = [buffer, context.upload(known)]
    queue.dispatch(kernel, bound, n, read_at=0, write_at=rows.nbytes // 4, **params)
    queue.finish()
    assert context.download(buffer, rows.nbytes).tobytes() == rows.tobytes()
    return context.download(buffer, 32 * n, rows.nbytes).reshape(n, 32)


@pytest.mark.parametrize(("name", "kind"), KERNELS)
def test_rows(context, name, kind):
    rule, n = RULES[name], 70
    rows = np.random.default_rng(0).integers(0, 256, (n, 32 if kind == "leaf" else 64), dtype=np.uint8)
    digests = run(context, hash_kernel(name, kind), rows, n, np.array(PARAMS, np.uint32))
    for k in (0, 1, 63, 64, 69):
        words = [int(word) for word in np.frombuffer(rows[k].tobytes(), f"<u{rule.bits // 8}")]
        expected = getattr(rule, kind)(Words(rule.bits), words, PARAMS)
        assert digests[k].tobytes() == b"".join(word.to_bytes(rule.bits // 8, "little") for word in expected)


@pytest.mark.parametrize("name", ["rfc6962", "blake2s", "openzeppelin"])
def test_messages(context, name):
    from evenload.merkle import Scheme

    scheme = Scheme("rfc6962-blake2s", person=b"p") if name == "blake2s" else Scheme(name)
    rule, n = RULES[name], 5
    for width in (1, 55, 64, 200):
        rows = np.random.default_rng(width).integers(0, 256, (n, width), dtype=np.uint8)
        padded = np.zeros((n, rule.padded_bytes(width)), np.uint8)
        rule.pad(rows, padded)
        digests = run(
            context, hash_kernel(name, "message"), padded, n, np.array(PARAMS, np.uint32),
            n_blocks=padded.shape[1] // rule.block_bytes, length=width,
        )  # fmt: skip
        assert [digest.tobytes() for digest in digests] == [scheme.hash_leaf(row.tobytes()) for row in rows]


@pytest.mark.parametrize("variant", ["u64", "limb13"])
def test_poseidon(context, variant):
    if variant == "u64" and not context.has_int64:
        pytest.skip(f"{context.name} has no 64-bit integers")
    r = FR.modulus
    values = [0, 0, r - 1, r - 1, 1, r - 2, *(pow(5, k, r) for k in range(14))]
    rows = np.frombuffer(b"".join(value.to_bytes(32, "little") for value in values), np.uint8)
    digests = run(context, poseidon_kernel(variant), rows, 10, poseidon_constants(variant))
    for k, digest in enumerate(digests):
        assert int.from_bytes(digest.tobytes(), "little") == poseidon(values[2 * k : 2 * k + 2])


def test_no_kernel_loops_further_than_the_worst_driver():
    kernels = [hash_kernel(*which) for which in KERNELS] + [poseidon_kernel("u64"), poseidon_kernel("limb13")]
    kernels += [hash_kernel(name, "message") for name in ("rfc6962", "blake2s", "openzeppelin")]
    assert max(kernel.iterations for kernel in kernels) < 60_000


def test_unknown_names():
    with pytest.raises(UnknownName):
        hash_kernel("md5", "leaf")
    with pytest.raises(UnknownName):
        hash_kernel("rfc6962", "tree")


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 63])
def test_pairs_rotate_as_words_do(n):
    """On integers: the halves of a 64-bit word against the word itself."""
    value = 0x0123456789ABCDEF
    low, high = Pairs(Words(32)).emit_rotate((value & 0xFFFFFFFF, value >> 32), n)
    assert low | high << 32 == Words(64).rotate(value, n)


def test_what_is_known_costs_no_statement():
    w = WgslWords()
    assert w.add(1, 2) == 3
    assert w.xor("a", 0) == "a"
    assert w.or_(0, "a") == "a"
    assert w.and_("a", w.mask) == "a"
    assert w.lines == []
    assert w.add("a", 1, 2) == "v1"
    assert w.lines == ["let v1 = a + 3u;"]
