"""Rules on plain integers: against hashlib, published digests, and each other's padding."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.gpu.hashing import blake2s, keccak, sha256
from evenload.gpu.hashing.rules import RULES
from evenload.gpu.hashing.words import Words

ROW, PAIR = st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64)
NO_PARAMS = [0] * 18


def words_of(content, bits):
    return [int(word) for word in np.frombuffer(content, f"<u{bits // 8}")]


def bytes_of(words, bits):
    return b"".join(word.to_bytes(bits // 8, "little") for word in words)


def run(rule_name, kind, content, params=NO_PARAMS):
    rule = RULES[rule_name]
    row = words_of(content, rule.bits)
    return bytes_of(getattr(rule, kind)(Words(rule.bits), row, params), rule.bits)


def long_leaf(rule_name, content, params=NO_PARAMS):
    """A leaf by way of ``pad`` and ``absorb``."""
    rule = RULES[rule_name]
    w = Words(rule.bits)
    padded = np.zeros((1, rule.padded_bytes(len(content))), np.uint8)
    rule.pad(np.frombuffer(content, np.uint8).reshape(1, -1), padded)
    state, size = rule.start(w, params), rule.block_bytes
    for at in range(0, padded.shape[1], size):
        block = words_of(padded[0, at : at + size].tobytes(), rule.bits)
        last = w.mask if at + size == padded.shape[1] else 0
        state = rule.absorb(w, state, block, min(at + size, len(content)), last, params)
    return bytes_of(rule.finish(w, state), rule.bits)


def test_constants_are_those_of_the_standards():
    assert sha256.INITIAL[:2] == (0x6A09E667, 0xBB67AE85)
    assert (sha256.ROUND[0], sha256.ROUND[63]) == (0x428A2F98, 0xC67178F2)
    assert (keccak.CONSTANTS[1], keccak.CONSTANTS[23]) == (0x8082, 0x8000000080008008)


@settings(deadline=None)
@given(ROW, PAIR)
def test_rfc6962(leaf, pair):
    assert run("rfc6962", "leaf", leaf) == hashlib.sha256(b"\0" + leaf).digest()
    assert run("rfc6962", "pair", pair) == hashlib.sha256(b"\1" + pair).digest()


@settings(deadline=None)
@given(PAIR)
def test_bitcoin(pair):
    assert run("bitcoin", "pair", pair) == hashlib.sha256(hashlib.sha256(pair).digest()).digest()


@settings(deadline=None)
@given(ROW, PAIR, st.binary(max_size=32), st.binary(max_size=8))
def test_blake2s(leaf, pair, key, person):
    params = []
    for depth in (0, 1):
        state, seen = blake2s.initial_state(key=key, person=person, node_depth=depth)
        params += [*state, seen]
    options = {"key": key, "person": person, "fanout": 2, "depth": 255, "inner_size": 32}
    assert run("blake2s", "leaf", leaf, params) == hashlib.blake2s(leaf, **options).digest()
    assert run("blake2s", "pair", pair, params) == hashlib.blake2s(pair, node_depth=1, **options).digest()


def test_keccak_f_is_that_of_sha3():
    """hashlib has SHA3-256, which differs from Keccak-256 in the padding alone."""
    message = bytes(range(100))
    block = message + b"\x06" + bytes(34) + b"\x80"
    state = keccak.permute(Words(64), [*words_of(block, 64), *[0] * 8])
    assert bytes_of(state[:4], 64) == hashlib.sha3_256(message).digest()


@pytest.mark.parametrize("is_swapped", [False, True])
def test_keccak_pairs_are_sorted(is_swapped):
    low, high = bytes([1, *[255] * 31]), bytes([2, *[0] * 31])
    pair = high + low if is_swapped else low + high
    padded = low + high + b"\x01" + bytes(70) + b"\x80"
    state = keccak.permute(Words(64), [*words_of(padded, 64), *[0] * 8])
    assert run("openzeppelin", "pair", pair) == bytes_of(state[:4], 64)


@pytest.mark.parametrize("length", [1, 31, 32, 54, 55, 56, 63, 64, 118, 119, 120, 135, 136, 137, 272])
def test_leaves_of_any_length(length):
    leaf = bytes(k * 7 % 256 for k in range(length))
    assert long_leaf("rfc6962", leaf) == hashlib.sha256(b"\0" + leaf).digest()
    state, seen = blake2s.initial_state(key=b"k")
    expected = hashlib.blake2s(leaf, key=b"k", fanout=2, depth=255, inner_size=32).digest()
    assert long_leaf("blake2s", leaf, [*state, seen, *NO_PARAMS[9:]]) == expected
    if length == 32:
        assert long_leaf("openzeppelin", leaf) == run("openzeppelin", "leaf", leaf)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=6), st.integers(0, 31))
def test_words_on_integers(values, n):
    w, a, b = Words(32), values[0], values[1]
    assert w.add(*values) == sum(values) % 2**32
    assert w.rotate(a, n) == (a >> n | a << 32 - n) % 2**32
    assert w.left(a, n) == (a << n) % 2**32
    assert w.right(a, n) == a >> n
    assert w.xor(a, w.invert(a)) == w.mask
    assert w.and_(a, b) | w.xor(a, b) == w.or_(a, b)
    assert w.swap_bytes(w.swap_bytes(a)) == a
