"""The Poseidon hash over BN254's Fr as circomlib instantiates it, in plain Python; constants are derived,
not copied.

Source: Grassi, Khovratovich, Rechberger, Roy, Schofnegger, "Poseidon: A New Hash Function for Zero-Knowledge
Proof
Systems" (2019): x^5, 8 full rounds, the partial rounds below, Grain LFSR for the round constants, a Cauchy
matrix.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenload.gpu.field import FR

FULL_ROUNDS = 8
_PARTIAL_ROUNDS = {2: 56, 3: 57, 4: 56, 5: 60, 6: 60}
P = FR.modulus


@dataclass(frozen=True, slots=True)
class Poseidon:
    """Parameters for a state of ``width`` elements: ``constants`` [rounds][width] and ``matrix``
    [width][width]."""

    width: int
    partial_rounds: int
    constants: tuple[tuple[int, ...], ...]
    matrix: tuple[tuple[int, ...], ...]

    def is_full(self, round_number: int) -> bool:
        half = FULL_ROUNDS // 2
        return round_number < half or round_number >= half + self.partial_rounds


def _grain_bits(width: int, partial_rounds: int) -> Iterator[int]:
    """The self-shrinking Grain LFSR of the paper's appendix."""
    state = []
    for value, n_bits in ((1, 2), (0, 4), (254, 12), (width, 12), (FULL_ROUNDS, 10), (partial_rounds, 10)):
        state += [value >> k & 1 for k in range(n_bits - 1, -1, -1)]
    state += [1] * 30

    def step() -> int:
        bit = state[62] ^ state[51] ^ state[38] ^ state[23] ^ state[13] ^ state[0]
        state.append(bit)
        del state[0]
        return bit

    for _ in range(160):
        step()
    while True:
        keep, bit = step(), step()
        if keep:
            yield bit


@functools.cache
def parameters(width: int) -> Poseidon:
    """Parameters for ``width`` 2..6 (one more than the number of inputs)."""
    partial_rounds = _PARTIAL_ROUNDS[width]
    bits = _grain_bits(width, partial_rounds)

    def draw() -> int:
        value = 0
        for _ in range(254):
            value = value << 1 | next(bits)
        return value

    def below_p() -> int:
        while (value := draw()) >= P:
            pass
        return value

    n_rounds = FULL_ROUNDS + partial_rounds
    constants = tuple(tuple(below_p() for _ in range(width)) for _ in range(n_rounds))
    points = [draw() % P for _ in range(2 * width)]
    matrix = tuple(tuple(pow(x + y, -1, P) for y in points[width:]) for x in points[:width])
    return Poseidon(width, partial_rounds, constants, matrix)


def poseidon(inputs: Sequence[int]) -> int:
    """The hash of one to five field elements."""
    chosen = parameters(len(inputs) + 1)
    state = [0, *(value % P for value in inputs)]
    for number, constants in enumerate(chosen.constants):
        state = [(a + c) % P for a, c in zip(state, constants, strict=True)]
        n_boxes = chosen.width if chosen.is_full(number) else 1
        state = [pow(a, 5, P) if k < n_boxes else a for k, a in enumerate(state)]
        state = [sum(m * a for m, a in zip(row, state, strict=True)) % P for row in chosen.matrix]
    return state[0]
