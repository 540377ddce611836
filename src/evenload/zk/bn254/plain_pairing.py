"""The optimal ate pairing on BN254 in plain Python integers.

Fq12 = Fq2[w] / (w^6 - (9 + u)); an element is a tuple of six Fq2 coefficients of 1, w, ..., w^5.
Source: Vercauteren, "Optimal pairings" (2010); line formulas by direct computation on the twist.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from evenload.gpu.field import FQ, FR, X
from evenload.zk.bn254.plain_curve import G2, Fq2, fq2_inverse, fq2_multiply

Q, R = FQ.modulus, FR.modulus
SNARKJS_EXPONENT = 2 * X * (6 * X * X + 3 * X + 1)
"""snarkjs's final exponentiation gives this power of the pairing (Fuentes-Castaneda and others, 2011); as r
does not divide it, products are one in both or in neither."""
XI = (9, 1)
Fq12 = tuple[Fq2, Fq2, Fq2, Fq2, Fq2, Fq2]
ZERO2, ONE2 = (0, 0), (1, 0)
ONE: Fq12 = (ONE2, ZERO2, ZERO2, ZERO2, ZERO2, ZERO2)


def multiply(a: Fq12, b: Fq12) -> Fq12:
    real, imaginary = [0] * 11, [0] * 11
    for j, (b0, b1) in enumerate(b):
        if b0 or b1:  # half of a line's are zero
            for i, (a0, a1) in enumerate(a):
                real[i + j] += a0 * b0 - a1 * b1
                imaginary[i + j] += a0 * b1 + a1 * b0
    for k in range(5):  # w^(6+k) = (9 + u) * w^k
        real[k] += 9 * real[k + 6] - imaginary[k + 6]
        imaginary[k] += real[k + 6] + 9 * imaginary[k + 6]
    return tuple((real[k] % Q, imaginary[k] % Q) for k in range(6))  # pyrefly: ignore


def power(a: Any, exponent: int, times: Callable[[Any, Any], Any] = multiply, one: Any = ONE) -> Any:
    result = one
    for bit in bin(exponent)[2:]:
        result = times(result, result)
        if bit == "1":
            result = times(result, a)
    return result


def frobenius_point(point: Any, n: int) -> Any:
    """The q^n-power map, carried over to the twist."""
    if point is None:
        return None
    x, y = point
    if n % 2:
        x, y = (x[0], -x[1] % Q), (y[0], -y[1] % Q)
    powers = xi_powers(n)
    return fq2_multiply(x, powers[2]), fq2_multiply(y, powers[3])


def has_order_r(point: Any) -> bool:
    """Whether a point of the twist is in G2.

    With psi for the q-power map, [x + 1] P + psi([x] P) + psi^2([x] P) is psi^3([2x] P) in G2, and nowhere
    else: the norm of the difference and the cofactor, 2q - r, have no factor in common.

    Source: El Housni, Guillevic, Piellard, "Co-factor clearing and subgroup membership testing on
    pairing-friendly curves" (2022).
    """
    multiple = G2.multiply(point, X)
    left = G2.add(G2.add(multiple, point), frobenius_point(multiple, 1))
    left = G2.add(left, frobenius_point(multiple, 2))
    return left == frobenius_point(G2.add(multiple, multiple), 3)


@functools.cache
def xi_powers(n: int) -> tuple[Fq2, ...]:
    """XI^(k * (q^n - 1) / 6) for k = 0..5.

    (q^n - 1) / 6 is (q - 1) / 6 times 1 + q + ... + q^(n - 1), and the power q of an element its conjugate.
    """
    first = power(XI, (Q - 1) // 6, fq2_multiply, ONE2)
    base = ONE2
    for i in range(n):
        base = fq2_multiply(base, (first[0], -first[1] % Q) if i % 2 else first)
    powers = [ONE2]
    for _ in range(5):
        powers.append(fq2_multiply(powers[-1], base))
    return tuple(powers)


def line(t: Any, s: Any, p: tuple[int, int]) -> tuple[Fq12, Any]:
    """The line through t and s on the twist (the tangent if they are equal), at p of G1; and t + s."""
    if t == s:
        square = fq2_multiply(t[0], t[0])
        rise, run = tuple(3 * c % Q for c in square), tuple(2 * c % Q for c in t[1])
    else:
        rise = tuple((a - b) % Q for a, b in zip(s[1], t[1], strict=True))
        run = tuple((a - b) % Q for a, b in zip(s[0], t[0], strict=True))
    slope = fq2_multiply(rise, fq2_inverse(run))  # pyrefly: ignore
    at_x = fq2_multiply(slope, t[0])
    first = tuple(-c * p[0] % Q for c in slope)
    third = tuple((a - b) % Q for a, b in zip(at_x, t[1], strict=True))
    return ((p[1], 0), first, ZERO2, third, ZERO2, ZERO2), G2.add(t, s)  # pyrefly: ignore


def miller_loop(p: Any, q: Any) -> Fq12:
    """f_{6x+2,q}(p) times the two last lines; one for infinity."""
    if p is None or q is None:
        return ONE
    f, t = ONE, q
    for bit in bin(6 * X + 2)[3:]:
        tangent, t = line(t, t, p)
        f = multiply(multiply(f, f), tangent)
        if bit == "1":
            chord, t = line(t, q, p)
            f = multiply(f, chord)
    chord, t = line(t, frobenius_point(q, 1), p)
    f = multiply(f, chord)
    chord, _ = line(t, G2.negate(frobenius_point(q, 2)), p)
    return multiply(f, chord)


def final_exponentiation(f: Fq12) -> Fq12:
    """f^((q^12 - 1) / r), and that is (q^6 - 1) (q^2 + 1) (q^4 - q^2 + 1) / r: powers of q cost little."""
    f = multiply(_frobenius(f, 6), _inverse(f))
    f = multiply(_frobenius(f, 2), f)
    products = [ONE]
    for n in range(4):  # products[k] is f to the sum of q^n for the bits n of k
        products += [multiply(one, _frobenius(f, n)) for one in products]
    digits = [(Q**4 - Q**2 + 1) // R // Q**n % Q for n in range(4)]
    which = (sum((digit >> k & 1) << n for n, digit in enumerate(digits)) for k in range(253, -1, -1))
    return functools.reduce(lambda one, k: multiply(multiply(one, one), products[k]), which, ONE)


def _frobenius(f: Fq12, n: int) -> Fq12:
    """f^(q^n)."""
    sign = -1 if n % 2 else 1
    return tuple(fq2_multiply((a, sign * b), xi) for (a, b), xi in zip(f, xi_powers(n), strict=True))  # pyrefly: ignore


def _inverse(f: Fq12) -> Fq12:
    """The product of the other conjugates over Fq2, divided by that of all, which is in Fq2."""
    others = functools.reduce(multiply, (_frobenius(f, n) for n in (2, 4, 6, 8, 10)))
    norm = fq2_inverse(multiply(f, others)[0])
    return tuple(fq2_multiply(c, norm) for c in others)  # pyrefly: ignore


def pairing(p: Any, q: Any) -> Fq12:
    """e(p, q) for p in G1 and q in G2."""
    return final_exponentiation(miller_loop(p, q))


def is_one_product(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether the product of e(p, q) over ``pairs`` is one."""
    f = functools.reduce(multiply, (miller_loop(p, q) for p, q in pairs), ONE)
    return final_exponentiation(f) == ONE
