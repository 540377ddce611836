"""SHA-256 over ``Words(32)``. Source: FIPS 180-4; the constants are computed, not copied."""

from collections.abc import Sequence
from math import isqrt
from typing import Any

from evenload.gpu.hashing.words import Words


def _primes(n: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < n:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found


def _cube_root(value: int) -> int:
    root = 1 << -(-value.bit_length() // 3)
    while (smaller := (2 * root + value // (root * root)) // 3) < root:
        root = smaller
    return root


INITIAL = tuple(isqrt(prime << 64) & 0xFFFFFFFF for prime in _primes(8))
"""The first 32 bits of the fractional parts of the square roots of the first 8 primes."""
ROUND = tuple(_cube_root(prime << 96) & 0xFFFFFFFF for prime in _primes(64))
"""The same of the cube roots of the first 64 primes."""


def padding(n_bytes: int) -> list[int]:
    """Words that follow a message whose last, partly filled word holds the bit that ends it.

    For a message of whole words: the ending bit's word, zeros, and the length in bits.
    """
    n_words = n_bytes // 4
    n_zeros = -(n_words + 3) % 16
    return [0x80000000, *[0] * n_zeros, n_bytes * 8 >> 32, n_bytes * 8 & 0xFFFFFFFF]


def compress(w: Words, state: Sequence[Any], block: Sequence[Any]) -> list[Any]:
    """The state (8 words) after a block (16 words, big-endian)."""
    by_hardware = w.sha256_compress(state, block)
    if by_hardware is not None:
        return by_hardware
    schedule = list(block)
    a, b, c, d, e, f, g, h = state
    differ = w.xor(b, c)
    for i, constant in enumerate(ROUND):
        if i >= 16:
            schedule.append(_next_word(w, schedule))
        sigma = w.xor(w.rotate(e, 6), w.rotate(e, 11), w.rotate(e, 25))
        chosen = w.xor(g, w.and_(e, w.xor(f, g)))
        # Only what hangs on e is added last: a round is as long as its longest chain of operations.
        early = w.as_written(w.add(h, w.add(constant, schedule[i])))
        first = w.add(w.as_written(w.add(early, chosen)), sigma)
        sigma = w.xor(w.rotate(a, 2), w.rotate(a, 13), w.rotate(a, 22))
        # b unless a differs from it and c does too; a ^ b is the next round's b ^ c.
        before, differ = differ, w.xor(a, b)
        majority = w.xor(b, w.and_(differ, before))
        h, g, f, e, d, c, b, a = g, f, e, w.add(d, first), c, b, a, w.add(first, w.add(sigma, majority))
    return [w.add(old, new) for old, new in zip(state, (a, b, c, d, e, f, g, h), strict=True)]


def _next_word(w: Words, schedule: Sequence[Any]) -> Any:
    early, late = schedule[-15], schedule[-2]
    small = w.xor(w.rotate(early, 7), w.rotate(early, 18), w.right(early, 3))
    large = w.xor(w.rotate(late, 17), w.rotate(late, 19), w.right(late, 10))
    return w.add(schedule[-16], small, schedule[-7], large)
