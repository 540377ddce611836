"""Randomness by counting: a number depends on (seed, client, round, step, place) and on nothing else.

So an order or a dropout mask is the same whichever strategy, chunk or device asks for it, and in which turn.
The mixer is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014): a bijection of 64-bit words.
"""

from collections.abc import Sequence

import numpy as np

from evenload.errors import UnknownName

SHUFFLE, DROPOUT, SAMPLE, MODEL, NOISE, READ = 1, 2, 3, 4, 5, 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 2**64 - 1
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(words: np.ndarray) -> np.ndarray:
    """uint64 of any shape -> uint64 of that shape; distinct words stay distinct."""
    z = words + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _A
    z = (z ^ (z >> np.uint64(27))) * _B
    return z ^ (z >> np.uint64(31))


def keys(*parts: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """uint64 keys of integer ``parts``, broadcast against one another."""
    word: int = 0
    for at, part in enumerate(parts):
        if not isinstance(part, int):
            return _keys(np.array([word], dtype=np.uint64), parts[at:])
        word = _mix_one(word ^ _mix_one(part & _WORD))
    return np.array([word], dtype=np.uint64)


def _keys(words: np.ndarray, parts: tuple) -> np.ndarray:
    for part in parts:
        words = mix(
            words ^ mix(np.asarray(part).astype(np.int64).astype(np.uint64).reshape(np.shape(part) or (1,)))
        )
    return words


def _mix_one(word: int) -> int:
    """``mix`` of one word: Python's own numbers are ten times as fast as arrays of one."""
    z = (word + int(_GOLDEN)) & _WORD
    z = ((z ^ (z >> 30)) * int(_A)) & _WORD
    z = ((z ^ (z >> 27)) * int(_B)) & _WORD
    return z ^ (z >> 31)


def key(*parts: int) -> int:
    """One key as a Python integer, 0 <= key < 2**63: a seed for a generator."""
    return int(keys(*parts)[0]) >> 1


def client_seed(seed: int, client: int, round: int = 0, *, of: str = "model") -> int:
    """The seed of the shared generators (torch's, numpy's, Python's) for one client of a training.

    of  "rows" while its dataset is read; "model" while it is trained, if its model draws from them
    numpy's generator gets the lowest 32 bits: ``client_seed(...) % 2**32``. Raises UnknownName.
    """
    return client_seeds(seed, [client], round, of=of)[0]


def client_seeds(seed: int, clients: Sequence[int], round: int = 0, *, of: str) -> list[int]:
    """``client_seed`` of many clients at once."""
    known = {"rows": READ, "model": MODEL}
    if of not in known:
        raise UnknownName("seed", of, known)
    return (keys(known[of], seed, round, np.array(clients, dtype=np.int64)) >> np.uint64(1)).tolist()


def orders(row_keys: np.ndarray, n: int, sizes: np.ndarray | None = None) -> np.ndarray:
    """Permutations of ``range(n)``, one per key: uint64 [m] -> int64 [m, n].

    sizes  int [m]: permutations of so many each, and then anything
    Words are sorted with their places in the low bits: numpy sorts a third as long as it looks for an order.
    """
    places = np.arange(n, dtype=np.uint64)
    if sizes is None:
        low = np.uint64((1 << bits_of(n)) - 1)
    else:  # an order does not depend on who else is ordered, so each has the low bits that it needs
        n_bits = np.maximum(1, np.frexp(sizes - 1)[1])[:, None]
        low = (np.uint64(1) << n_bits.astype(np.uint64)) - np.uint64(1)
    words = (mix(row_keys[:, None] + places * _GOLDEN) & ~low) | places
    if sizes is not None:
        words |= np.where(places < sizes[:, None], 0, ~low)  # the others behind
    words.sort(axis=1)
    return (words & low).view(np.int64)


def bits_of(n: int) -> int:
    """Bits of a position among ``n``."""
    return max(1, (n - 1).bit_length())
