"""Build an R1CS and a solver for its witness at the same time.

    circuit = CircuitBuilder()
    a, b = circuit.private_input("a"), circuit.private_input("b")
    circuit.output(circuit.product(a, b))
    circuit.r1cs(), circuit.solve({"a": 3, "b": 11})

A value inside a circuit is a ``Linear``: a sum of coefficient * wire. Sums are free, each product is a
constraint.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from evenload.errors import ConfigError, quoted
from evenload.gpu.field import FR
from evenload.zk.formats.r1cs import R1cs
from evenload.zk.formats.zkey import COEFFICIENT

R = FR.modulus


class Linear:
    """A sum of coefficient * wire. Wire 0 is the constant 1. Immutable."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[int, int]):
        self.terms = {wire: c for wire, value in terms.items() if (c := value % R)}

    @classmethod
    def of(cls, value: "Linear | int") -> "Linear":
        return value if isinstance(value, Linear) else cls({0: value})

    @classmethod
    def sum(cls, values: Sequence["Linear"], weights: Sequence[int] | None = None) -> "Linear":
        """sum of weights[i] * values[i]; without weights, the sum. Linear in the number of terms."""
        total: dict[int, int] = {}
        for value, weight in zip(values, weights or [1] * len(values), strict=True):
            for wire, coefficient in value.terms.items():
                total[wire] = total.get(wire, 0) + weight * coefficient
        return cls(total)

    def __add__(self, other: "Linear | int") -> "Linear":
        return Linear.sum([self, Linear.of(other)])

    def __sub__(self, other: "Linear | int") -> "Linear":
        return Linear.sum([self, Linear.of(other)], [1, -1])

    def __rsub__(self, other: int) -> "Linear":
        return Linear.of(other) - self

    def __mul__(self, factor: int) -> "Linear":
        return Linear({wire: factor * c for wire, c in self.terms.items()})

    __radd__, __rmul__ = __add__, __mul__

    def at(self, values: Sequence[int]) -> int:
        return sum(c * values[wire] for wire, c in self.terms.items()) % R


class CircuitBuilder:
    """A circuit that grows: wires, constraints and the steps that compute each wire from those before it.

    Wires are numbered in order of creation; ``r1cs`` and ``solve`` renumber them as the format wants.
    """

    def __init__(self) -> None:
        self._kinds = ["one"]
        self._names: dict[str, int] = {}
        self._constraints: list[tuple[Linear, Linear, Linear]] = []
        self._steps: list[tuple[Sequence[int], Callable[[list[int]], Sequence[int]]]] = []

    # --- wires ----------------------------------------------------------------------------------
    def _wire(self, kind: str) -> int:
        self._kinds.append(kind)
        return len(self._kinds) - 1

    def _input(self, name: str, kind: str) -> Linear:
        if name in self._names:
            raise ConfigError(f"an input named {quoted(name)} exists already")
        self._names[name] = self._wire(kind)
        return Linear({self._names[name]: 1})

    def public_input(self, name: str) -> Linear:
        return self._input(name, "public")

    def private_input(self, name: str) -> Linear:
        return self._input(name, "private")

    def output(self, value: Linear | int) -> Linear:
        """A public output that equals ``value``."""
        value = Linear.of(value)
        wire = self._wire("output")
        self._steps.append(([wire], lambda values: [value.at(values)]))
        result = Linear({wire: 1})
        self.enforce(value, Linear.of(1), result)
        return result

    # --- constraints ----------------------------------------------------------------------------
    def enforce(self, a: Linear, b: Linear, c: Linear) -> None:
        """a * b = c."""
        self._constraints.append((a, b, c))

    def product(self, a: Linear, b: Linear) -> Linear:
        """A new wire a * b, at the price of a constraint."""
        wire = self._wire("internal")
        self._steps.append(([wire], lambda values: [a.at(values) * b.at(values) % R]))
        result = Linear({wire: 1})
        self.enforce(a, b, result)
        return result

    def bits(self, value: Linear, n: int) -> list[Linear]:
        """``n`` wires, least significant first, each 0 or 1, that make up ``value``; unsatisfiable from 2^n
        on."""
        wires = [self._wire("internal") for _ in range(n)]
        self._steps.append((wires, lambda values: [w >> k & 1 for w in [value.at(values)] for k in range(n)]))
        bits = [Linear({wire: 1}) for wire in wires]
        for bit in bits:
            self.enforce(bit, bit - 1, Linear({}))
        self.enforce(Linear.sum(bits, [1 << k for k in range(n)]), Linear.of(1), value)
        return bits

    # --- results --------------------------------------------------------------------------------
    def _numbers(self) -> list[int]:
        """Wire in order of creation -> wire in the format's order."""
        order = {"one": 0, "output": 1, "public": 2, "private": 3, "internal": 4}
        sorted_wires = sorted(range(len(self._kinds)), key=lambda wire: order[self._kinds[wire]])
        numbers = [0] * len(self._kinds)
        for number, wire in enumerate(sorted_wires):
            numbers[wire] = number
        return numbers

    def r1cs(self) -> R1cs:
        numbers = self._numbers()
        entries = [
            (matrix, row, numbers[wire], coefficient)
            for row, constraint in enumerate(self._constraints)
            for matrix, linear in enumerate(constraint)
            for wire, coefficient in sorted(linear.terms.items(), key=lambda term: numbers[term[0]])
        ]
        terms = np.empty(len(entries), COEFFICIENT)
        for k, name in enumerate(("matrix", "row", "wire")):
            terms[name] = [entry[k] for entry in entries]
        content = b"".join(entry[3].to_bytes(32, "little") for entry in entries)
        terms["value"] = np.frombuffer(content, np.uint64).reshape(-1, 4)
        count = self._kinds.count
        sizes = (len(self._kinds), count("output"), count("public"), count("private"), len(self._constraints))
        return R1cs(*sizes, terms=terms)

    def solve(self, inputs: Mapping[str, int]) -> list[int]:
        """The witness. Raises ConfigError if the names of the inputs are not exactly those of the circuit."""
        if set(inputs) != set(self._names):
            missing, extra = sorted(set(self._names) - set(inputs)), sorted(set(inputs) - set(self._names))
            raise ConfigError(f"inputs do not match the circuit: missing {missing[:5]}, unknown {extra[:5]}")
        values = [0] * len(self._kinds)
        values[0] = 1
        for name, value in inputs.items():
            values[self._names[name]] = value % R
        for wires, compute in self._steps:
            for wire, value in zip(wires, compute(values), strict=True):
                values[wire] = value
        witness = [0] * len(values)
        for wire, number in enumerate(self._numbers()):
            witness[number] = values[wire]
        return witness


def squaring_chain(n: int, start: int = 123456789123456789) -> tuple[R1cs, list[int]]:
    """A circuit of ``n`` constraints whose output is start^(2^n), and its witness. ``start`` is a private
    input."""
    wire = np.concatenate([[2], np.arange(3, n + 2), [1]]).astype(np.uint32)  # input, internal ones, output
    terms = np.zeros(3 * n, COEFFICIENT)
    terms["matrix"] = np.tile([0, 1, 2], n)
    terms["row"] = np.repeat(np.arange(n), 3)
    terms["wire"] = np.stack([wire[:-1], wire[:-1], wire[1:]], axis=1).reshape(-1)
    terms["value"][:, 0] = 1
    witness = [1, 0, start % FR.modulus] + [0] * (n - 1)
    value = start % FR.modulus
    for k in wire[1:].tolist():
        value = value * value % FR.modulus
        witness[k] = value
    return R1cs(n + 2, 1, 0, 1, n, terms), witness
