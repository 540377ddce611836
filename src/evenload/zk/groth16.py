"""Proofs and verification keys as values, and their JSON as snarkjs writes and reads it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload._bounded_json import parse_json
from evenload.errors import FormatError, printable, quoted
from evenload.gpu.field import FQ, FR

G1Point = tuple[int, int] | None
G2Point = tuple[tuple[int, int], tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class Proof:
    """A Groth16 proof: three affine points, None for infinity.

    Proofs are malleable: from one proof anybody can make others of the same statement, e.g. (-a, -b, c).
    Never use a proof's bytes to tell whether a statement was seen before.
    """

    a: G1Point
    b: G2Point
    c: G1Point

    def to_json(self) -> str:
        """Byte for byte what snarkjs writes to proof.json."""
        fields = {"pi_a": _g1_out(self.a), "pi_b": _g2_out(self.b), "pi_c": _g1_out(self.c)}
        return json.dumps({**fields, "protocol": "groth16", "curve": "bn128"}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "proof") -> "Proof":
        """Raises FormatError if a field is missing, a number is not a canonical decimal, it is another
        protocol, or the text has more than 10 MB (it is not parsed then)."""
        fields, source = _object(text, source), printable(source)
        _expect_groth16(fields, source, curve_required=False)  # rapidsnark leaves the curve out
        a, c = (_g1_in(fields, name, source) for name in ("pi_a", "pi_c"))
        return cls(a, _g2_in(fields, "pi_b", source), c)


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A verification key; ``ic`` holds one point for the constant and one for each public input."""

    alpha1: G1Point
    beta2: G2Point
    gamma2: G2Point
    delta2: G2Point
    ic: tuple[G1Point, ...]

    @property
    def n_public(self) -> int:
        return len(self.ic) - 1

    def to_json(self) -> str:
        """vkey.json as snarkjs exports it, e(alpha, beta) included."""
        from evenload.zk.bn254.plain_pairing import SNARKJS_EXPONENT, pairing, power

        target = power(pairing(self.alpha1, self.beta2), SNARKJS_EXPONENT)
        return json.dumps(
            {
                "protocol": "groth16",
                "curve": "bn128",
                "nPublic": self.n_public,
                "vk_alpha_1": _g1_out(self.alpha1),
                "vk_beta_2": _g2_out(self.beta2),
                "vk_gamma_2": _g2_out(self.gamma2),
                "vk_delta_2": _g2_out(self.delta2),
                "vk_alphabeta_12": [
                    [[str(c) for c in target[i + 2 * j]] for j in range(3)] for i in range(2)
                ],
                "IC": [_g1_out(point) for point in self.ic],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "verification key") -> "VerificationKey":
        """Raises FormatError as ``Proof.from_json``; e(alpha, beta) is not read but computed."""
        fields, source = _object(text, source), printable(source)
        _expect_groth16(fields, source, curve_required=True)
        if not isinstance(fields.get("IC"), list) or not fields["IC"]:
            raise FormatError(f"{source}: IC must be a list of points")
        n_public, n_points = fields.get("nPublic"), len(fields["IC"])
        if n_public != n_points - 1:
            raise FormatError(f"{source}: nPublic is {quoted(n_public)} but IC holds {n_points} points")
        ic = {f"IC[{k}]": point for k, point in enumerate(fields["IC"])}
        return cls(
            _g1_in(fields, "vk_alpha_1", source),
            _g2_in(fields, "vk_beta_2", source),
            _g2_in(fields, "vk_gamma_2", source),
            _g2_in(fields, "vk_delta_2", source),
            tuple(_g1_in(ic, name, source) for name in ic),
        )


def public_to_json(values: Sequence[int]) -> str:
    """Byte for byte what snarkjs writes to public.json."""
    # Its writer ends the line after every opening bracket, also where nothing follows.
    return json.dumps([str(value) for value in values], indent=1) if len(values) else "[\n]"


def public_from_json(text: str | bytes, source: str = "public inputs") -> list[int]:
    """Raises FormatError unless it is a list of canonical decimals below r (a value plus r would be an
    alias), in a text of at most 10 MB (a larger one is not parsed)."""
    values, source = parse_json(text, source), printable(source)
    if not isinstance(values, list):
        raise FormatError(f"{source}: must be a list of decimal strings")
    return [_number(value, FR.modulus, f"{source}: entry {k}", "r") for k, value in enumerate(values)]


# --- JSON -----------------------------------------------------------------------------------------
def decimal(value: Any) -> int | None:
    """The integer of a decimal string in canonical form, as snarkjs writes it; None for anything else."""
    is_decimal = type(value) is str and value.isascii() and value.isdecimal() and len(value) <= 78
    return int(value) if is_decimal and (value[0] != "0" or value == "0") else None


def _object(text: str | bytes, source: str) -> dict[str, Any]:
    value = parse_json(text, source)
    if not isinstance(value, dict):
        raise FormatError(f"{source}: must be a JSON object")
    return value


def _expect_groth16(fields: dict[str, Any], source: str, curve_required: bool) -> None:
    if fields.get("protocol") != "groth16":
        raise FormatError(
            f"{source}: protocol is {quoted(fields.get('protocol'))}, only 'groth16' is supported"
        )
    curve = fields.get("curve", None if curve_required else "bn128")
    if curve not in ("bn128", "bn254"):
        raise FormatError(f"{source}: curve is {quoted(curve)}, only 'bn128' (BN254) is supported")


def _number(value: Any, modulus: int, where: str, name: str) -> int:
    number = decimal(value)
    if number is None:
        raise FormatError(f"{where}: {quoted(value)} is not a decimal string in canonical form")
    if number >= modulus:
        raise FormatError(
            f"{where}: {number} is not below {name}", hint="non-canonical numbers are never accepted"
        )
    return number


def _coordinates(value: Any, n: int, where: str) -> list[int]:
    if not isinstance(value, list) or len(value) != n:
        raise FormatError(f"{where}: must be a list of {n} decimal strings")
    return [_number(c, FQ.modulus, where, "q") for c in value]


def _g1_in(fields: dict[str, Any], name: str, source: str) -> G1Point:
    x, y, z = _coordinates(fields.get(name), 3, f"{source}: {name}")
    return _affine((x, y), z, (0, 1), f"{source}: {name}")


def _g2_in(fields: dict[str, Any], name: str, source: str) -> G2Point:
    where, value = f"{source}: {name}", fields.get(name)
    if not isinstance(value, list) or len(value) != 3:
        raise FormatError(f"{where}: must be a list of three pairs")
    x, y, z = (tuple(_coordinates(pair, 2, where)) for pair in value)
    if z[1]:
        raise FormatError(f"{where}: the third coordinate must be one (or zero for infinity)")
    return _affine((x, y), z[0], ((0, 0), (1, 0)), where)


def _affine(point: Any, z: int, infinity: Any, where: str) -> Any:
    if z == 1:
        return point
    if z == 0 and point == infinity:
        return None
    raise FormatError(f"{where}: the third coordinate must be one (or zero for infinity)")


def _g1_out(point: G1Point) -> list[str]:
    return ["0", "1", "0"] if point is None else [str(point[0]), str(point[1]), "1"]


def _g2_out(point: G2Point) -> list[list[str]]:
    if point is None:
        return [["0", "0"], ["1", "0"], ["0", "0"]]
    return [[str(c) for c in point[0]], [str(c) for c in point[1]], ["1", "0"]]
