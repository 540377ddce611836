"""Randomness by counting: a number depends on (seed, client, round, step, place) and on nothing else.

So an order or a dropout mask is the same whichever strategy, chunk or device asks for it, and in which turn.
The mixer is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014): a bijection of 64-bit words.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ["DROPOUT", "MODEL", "NOISE", "SAMPLE", "SHUFFLE", "bits_of", "key", "keys", "mix", "orders"]

SHUFFLE, DROPOUT, SAMPLE, MODEL, NOISE = 1, 2, 3, 4, 5
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(words: np.ndarray) -> np.ndarray:
    """uint64 of any shape -> uint64 of that shape; distinct words stay distinct."""
    z = words + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _A
    z = (z ^ (z >> np.uint64(27))) * _B
    return z ^ (z >> np.uint64(31))


def keys(*parts: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """uint64 keys of integer ``parts``, broadcast against one another."""
    words = np.array([0], dtype=np.uint64)
    for part in parts:
        words = mix(
            words ^ mix(np.asarray(part).astype(np.int64).astype(np.uint64).reshape(np.shape(part) or (1,)))
        )
    return words


def key(*parts: int) -> int:
    """One key as a Python integer, 0 <= key < 2**63: a seed for a generator."""
    return int(keys(*parts)[0] >> np.uint64(1))


def orders(row_keys: np.ndarray, n: int, sizes: np.ndarray | None = None) -> np.ndarray:
    """Permutations of ``range(n)``, one per key: uint64 [m] -> int64 [m, n].

    sizes  int [m]: permutations of so many each, and then anything below n; all of them must have as many
           bits as n, for the order not to depend on n
    Words are sorted with their places in the low bits: numpy sorts a third as long as it looks for an order.
    """
    places = np.arange(n, dtype=np.uint64)
    low = np.uint64((1 << bits_of(n)) - 1)
    words = (mix(row_keys[:, None] + places * _GOLDEN) & ~low) | places
    if sizes is not None:
        words[places >= sizes[:, None]] |= ~low  # behind all others
    words.sort(axis=1)
    return (words & low).view(np.int64)


def bits_of(n: int) -> int:
    """Of the places among n."""
    return max(1, (n - 1).bit_length())
