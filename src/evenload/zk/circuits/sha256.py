"""Knowledge of a SHA-256 preimage: nearly all wires are bits, as in most real circuits.

Source: FIPS 180-4.
"""

import math
from collections.abc import Sequence

from evenload.gpu.hashing.sha256 import INITIAL, ROUND
from evenload.zk.circuits.builder import CircuitBuilder, Linear

Word = list[Linear]  # 32 bits, least significant first


def _constant(value: int) -> Word:
    return [Linear.of(value >> k & 1) for k in range(32)]


def _rotate(word: Word, n: int) -> Word:
    return word[n:] + word[:n]


def _shift(word: Word, n: int) -> Word:
    return word[n:] + [Linear({})] * n


def _number(word: Word) -> Linear:
    return Linear.sum(word, [1 << k for k in range(32)])


def _xor(circuit: CircuitBuilder, a: Linear, b: Linear) -> Linear:
    """a + b - 2ab; free where one side is a constant."""
    for one, other in ((a, b), (b, a)):
        if not set(one.terms) - {0}:
            return 1 - other if one.terms.get(0) else other
    return a + b - circuit.product(a, b) * 2


def _xor3(circuit: CircuitBuilder, words: Sequence[Word]) -> Word:
    return [_xor(circuit, _xor(circuit, a, b), c) for a, b, c in zip(*words, strict=True)]


def _choose(circuit: CircuitBuilder, e: Word, f: Word, g: Word) -> Word:
    return [circuit.product(x, y - z) + z for x, y, z in zip(e, f, g, strict=True)]


def _majority(circuit: CircuitBuilder, a: Word, b: Word, c: Word) -> Word:
    result = []
    for x, y, z in zip(a, b, c, strict=True):
        both = circuit.product(y, z)
        result.append(circuit.product(x, y + z - both * 2) + both)
    return result


def _add(circuit: CircuitBuilder, terms: Sequence[Linear], n_terms: int) -> Word:
    """The sum of ``n_terms`` words modulo 2^32."""
    carries = math.ceil(math.log2(n_terms))
    return circuit.bits(Linear.sum(terms), 32 + carries)[:32]


def _compress(circuit: CircuitBuilder, state: list[Word], block: list[Word]) -> list[Word]:
    schedule = list(block)
    for t in range(16, 64):
        x, y = schedule[t - 15], schedule[t - 2]
        s0 = _xor3(circuit, (_rotate(x, 7), _rotate(x, 18), _shift(x, 3)))
        s1 = _xor3(circuit, (_rotate(y, 17), _rotate(y, 19), _shift(y, 10)))
        schedule.append(_add(circuit, [_number(w) for w in (schedule[t - 16], s0, schedule[t - 7], s1)], 4))
    a, b, c, d, e, f, g, h = state
    for t in range(64):
        s1 = _xor3(circuit, (_rotate(e, 6), _rotate(e, 11), _rotate(e, 25)))
        s0 = _xor3(circuit, (_rotate(a, 2), _rotate(a, 13), _rotate(a, 22)))
        first = [_number(h), _number(s1), _number(_choose(circuit, e, f, g)), _number(schedule[t])]
        first.append(Linear.of(ROUND[t]))
        second = [_number(s0), _number(_majority(circuit, a, b, c))]
        h, g, f, e = g, f, e, _add(circuit, [*first, _number(d)], 6)
        d, c, b, a = c, b, a, _add(circuit, [*first, *second], 7)
    pairs = zip(state, (a, b, c, d, e, f, g, h), strict=True)
    return [_add(circuit, [_number(old), _number(new)], 2) for old, new in pairs]


def sha256_preimage(n_bytes: int) -> CircuitBuilder:
    """Private inputs ``byte0`` ...; outputs: the digest of the ``n_bytes`` as two numbers of 128 bits, high
    first."""
    circuit = CircuitBuilder()
    message = [circuit.bits(circuit.private_input(f"byte{k}"), 8)[::-1] for k in range(n_bytes)]
    bits = [bit for byte in message for bit in byte]
    padding = [1] + [0] * ((447 - len(bits)) % 512) + [len(bits) >> k & 1 for k in range(63, -1, -1)]
    bits += [Linear.of(bit) for bit in padding]
    words = [bits[k : k + 32][::-1] for k in range(0, len(bits), 32)]
    state = [_constant(value) for value in INITIAL]
    for k in range(0, len(words), 16):
        state = _compress(circuit, state, words[k : k + 16])
    for half in (state[:4], state[4:]):
        circuit.output(Linear.sum([_number(word) for word in half], [1 << 32 * k for k in (3, 2, 1, 0)]))
    return circuit


def sha256_inputs(message: bytes) -> dict[str, int]:
    """Inputs for ``sha256_preimage(len(message))``."""
    return {f"byte{k}": byte for k, byte in enumerate(message)}
