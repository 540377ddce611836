"""The constants of BN254 agree with each other."""

import pytest

from evenload.gpu import field
from evenload.gpu.field import FQ, FR, X
from evenload.zk.bn254.plain_curve import G1, G2, fq2_inverse


def test_moduli_are_the_bn_polynomials():
    assert FQ.modulus == 36 * X**4 + 36 * X**3 + 24 * X**2 + 6 * X + 1
    assert FR.modulus == 36 * X**4 + 36 * X**3 + 18 * X**2 + 6 * X + 1


@pytest.mark.parametrize("prime", [FQ, FR], ids=lambda p: p.name)
def test_two_adicity_and_non_residue(prime):
    assert (prime.modulus - 1) % 2**prime.two_adicity == 0
    assert (prime.modulus - 1) >> prime.two_adicity & 1
    assert pow(prime.generator, (prime.modulus - 1) // 2, prime.modulus) == prime.modulus - 1


def test_roots_of_unity_have_exactly_their_order():
    for log_order in (1, 2, 10, 28):
        root = FR.root_of_unity(1 << log_order)
        assert pow(root, 1 << log_order, FR.modulus) == 1
        assert pow(root, 1 << log_order - 1, FR.modulus) == FR.modulus - 1
    with pytest.raises(ValueError, match="no root of unity"):
        FR.root_of_unity(1 << 29)
    with pytest.raises(ValueError, match="no root of unity"):
        FR.root_of_unity(12)


def test_generators_are_on_their_curves_and_have_order_r():
    for group in (G1, G2):
        assert group.contains(group.generator)
        assert group.multiply(group.generator, FR.modulus) is None
    inverse = fq2_inverse((9, 1))
    assert tuple(3 * c % FQ.modulus for c in inverse) == field.TWIST_B


def test_no_point_has_x_zero():
    """The kernels take a row with x = 0 for infinity: the curves' constants are not squares."""
    q = FQ.modulus
    assert pow(3, (q - 1) // 2, q) == q - 1
    c0, c1 = field.TWIST_B
    assert pow(c0 * c0 + c1 * c1, (q - 1) // 2, q) == q - 1  # a non-square norm is a non-square
