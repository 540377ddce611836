"""BLAKE2s over ``Words(32)``. Source: RFC 7693, and the parameter block of the BLAKE2 specification."""

from collections.abc import Sequence
from typing import Any

from evenload.gpu.hashing.sha256 import INITIAL
from evenload.gpu.hashing.words import Words

ORDER = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)
COLUMNS_THEN_DIAGONALS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)


def initial_state(
    *, key: bytes = b"", person: bytes = b"", node_depth: int = 0, inner_size: int = 32
) -> tuple[list[int], int]:
    """The state before the first byte of the message, and how many bytes it has seen (64 with a key).

    Tree parameters: fan-out 2, depth 255 (not limited), leaves of any length; digests of 32 bytes.
    """
    parameters = bytes([32, len(key), 2, 255, *bytes(10), node_depth, inner_size, *bytes(8)])
    parameters += person.ljust(8, b"\0")
    state = [
        start ^ int.from_bytes(parameters[4 * k : 4 * k + 4], "little") for k, start in enumerate(INITIAL)
    ]
    if not key:
        return state, 0
    block = [int.from_bytes(key.ljust(64, b"\0")[4 * k : 4 * k + 4], "little") for k in range(16)]
    return compress(Words(32), state, block, 64, 0), 64


def compress(w: Words, state: Sequence[Any], block: Sequence[Any], seen: Any, last: Any) -> list[Any]:
    """The state (8 words) after a block (16 words); ``seen`` bytes so far, ``last`` all ones in the last."""
    v = [*state, *INITIAL]
    v[12], v[14] = w.xor(v[12], seen), w.xor(v[14], last)
    for order in ORDER:
        for turn, (a, b, c, d) in enumerate(COLUMNS_THEN_DIAGONALS):
            for half, (shift_d, shift_b) in enumerate(((16, 12), (8, 7))):
                v[a] = w.add(v[a], v[b], block[order[2 * turn + half]])
                v[d] = w.rotate(w.xor(v[d], v[a]), shift_d)
                v[c] = w.add(v[c], v[d])
                v[b] = w.rotate(w.xor(v[b], v[c]), shift_b)
    return [w.xor(old, v[k], v[k + 8]) for k, old in enumerate(state)]
