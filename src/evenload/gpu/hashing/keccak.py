"""Keccak-f[1600] over ``Words(64)``. Source: FIPS 202; Ethereum's Keccak-256 pads with 0x01, not 0x06."""

from collections.abc import Sequence
from typing import Any

from evenload.gpu.hashing.words import Words

RATE_WORDS = 17


def _rotations() -> list[int]:
    """How far each lane x + 5y turns left."""
    turns, x, y = [0] * 25, 1, 0
    for step in range(24):
        turns[x + 5 * y] = (step + 1) * (step + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return turns


def _round_constants() -> list[int]:
    """Bits of a linear shift register, at positions 2^j - 1."""
    constants, register = [], 1
    for _ in range(24):
        constant = 0
        for j in range(7):
            constant |= (register & 1) << (1 << j) - 1
            register = register << 1 ^ (0x171 if register & 0x80 else 0)
        constants.append(constant)
    return constants


TURNS = _rotations()
CONSTANTS = _round_constants()


def permute(w: Words, state: Sequence[Any]) -> list[Any]:
    """The 25 lanes (x + 5y) after 24 rounds."""
    return w.loop([[constant] for constant in CONSTANTS], state, lambda lanes, row: _round(w, lanes, row[0]))


def _round(w: Words, lanes: Sequence[Any], constant: Any) -> list[Any]:
    column = [w.xor(*lanes[x::5]) for x in range(5)]
    delta = [w.xor(column[(x + 4) % 5], w.rotate(column[(x + 1) % 5], 63)) for x in range(5)]
    moved: list[Any] = [None] * 25
    for x in range(5):
        for y in range(5):
            at = x + 5 * y
            moved[y + 5 * ((2 * x + 3 * y) % 5)] = w.rotate(w.xor(lanes[at], delta[x]), -TURNS[at])
    mixed = [
        w.xor(
            moved[x + 5 * y],
            w.and_(w.invert(moved[(x + 1) % 5 + 5 * y]), moved[(x + 2) % 5 + 5 * y]),
        )
        for y in range(5)
        for x in range(5)
    ]
    return [w.xor(mixed[0], constant), *mixed[1:]]
