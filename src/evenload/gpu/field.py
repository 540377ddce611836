"""The fields and the curve of BN254 (also called alt_bn128 or bn128), as plain Python integers.

Source of the constants: EIP-196 and EIP-197; checked against each other by ``tests/gpu/test_field.py``.
"""

from dataclasses import dataclass

X = 4965661367192848881
"""The parameter of the curve: q and r are polynomials in it."""


@dataclass(frozen=True, slots=True)
class Prime:
    """A prime field. ``generator`` generates its multiplicative group; ``two_adicity`` is that of ``modulus
    - 1``."""

    name: str
    modulus: int
    generator: int
    two_adicity: int

    def montgomery(self, value: int, bits: int = 256) -> int:
        """``value * 2^bits`` in the field."""
        return (value << bits) % self.modulus

    def plain(self, value: int, bits: int = 256) -> int:
        """The inverse of ``montgomery``."""
        return value * pow(2, -bits, self.modulus) % self.modulus

    def root_of_unity(self, order: int) -> int:
        """The root that snarkjs uses for a domain of ``order`` (a power of two):
        ``generator^((p-1)/order)``."""
        if order & (order - 1) or (self.modulus - 1) % order:
            raise ValueError(f"{self.name} has no root of unity of order {order}")
        return pow(self.generator, (self.modulus - 1) // order, self.modulus)


FQ = Prime("Fq", 21888242871839275222246405745257275088696311157297823662689037894645226208583, 3, 1)
FR = Prime("Fr", 21888242871839275222246405745257275088548364400416034343698204186575808495617, 5, 28)

G1 = (1, 2)
"""Generator of G1: y^2 = x^3 + 3 over Fq; the group has prime order r."""

G2 = (
    (
        10857046999023057135944570762232829481370756359578518086990519993285655852781,
        11559732032986387107991004021392285783925812861821192530917403151452391805634,
    ),
    (
        8495653923123431417604973247489272438418190587263600148770280649306958101930,
        4082367875863433681332203403145435568316851327593401208105741076214120093531,
    ),
)
"""Generator of G2: y^2 = x^3 + 3/(9+u) over Fq2 = Fq[u]/(u^2+1); coordinates are (c0, c1) = c0 + c1*u."""

TWIST_B = (
    19485874751759354771024239261021720505790618469301721065564631296452457478373,
    266929791119991161246907387137283842545076965332900288569378510910307636690,
)
