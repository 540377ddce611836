"""Keys, witnesses and proofs that snarkjs made for circuits of our own (tests/data/zk)."""

from functools import cache
from pathlib import Path

import pytest
from node_calls import Node
from wgsl_adapter import context as context

DATA = Path(__file__).parent.parent / "data" / "zk"
CIRCUITS = ("multiplier", "public8", "boundary64", "boundary65", "dup_points")


@pytest.fixture(scope="session")
def node():
    """Programs of npm: ``node(name, *arguments)``."""
    with Node() as node:
        yield node


@pytest.fixture(params=CIRCUITS)
def circuit(request):
    """The folder of one circuit."""
    return DATA / request.param


BLINDING = (123456789, 987654321)


@cache
def plain_proof(folder):
    from reference import plain_prover

    from evenload.gpu.llvm import rows
    from evenload.zk import read_witness, read_zkey

    values = rows.to_integers(read_witness(folder / "witness.wtns"))
    return plain_prover.prove(read_zkey(folder / "circuit.zkey"), values, BLINDING)


@pytest.fixture
def oracle_proof(circuit, monkeypatch):
    """The oracle's proof of the circuit, with the blinding that the worker draws in this test, too.

    It is made once for all kernels that are compared with it.
    """
    slow = plain_proof(circuit)
    from evenload.zk import worker

    draws = iter(BLINDING)
    monkeypatch.setattr(worker.secrets, "randbelow", lambda _: next(draws))
    return slow


@pytest.fixture
def multiplier():
    return DATA / "multiplier"


@pytest.fixture(params=["ifma52", "fma52x8", "fma52x4", "word64"])
def level(request):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    from evenload.gpu.llvm import programs

    if request.param not in programs.levels_here():
        pytest.skip(f"this processor cannot run {request.param}")
    return request.param


@pytest.fixture
def public8():
    return DATA / "public8"


@pytest.fixture(scope="session")
def twist_point():
    """A point of the twist that is not of order r."""
    from evenload.gpu.field import FQ
    from evenload.zk.bn254.plain_curve import G2

    q = FQ.modulus
    for k in range(1, 100):
        real, imaginary = (k**3 + G2.b[0]) % q, G2.b[1]
        norm = pow((real * real + imaginary * imaginary) % q, (q + 1) // 4, q)
        for sign in (norm, -norm):
            root = pow((real + sign) * pow(2, -1, q) % q, (q + 1) // 4, q)
            y = (root, imaginary * pow(2 * root, -1, q) % q) if root else (0, 0)
            if G2.contains(((k, 0), y)):
                return (k, 0), y
    raise AssertionError("no such point")


@pytest.fixture(scope="session")
def gpu(context):
    """The adapter with one lock and one pace, for provers that share it."""
    from evenload.zk.wgsl_device import WgslDevice

    return WgslDevice(context=context)


@pytest.fixture(scope="session")
def draw():
    """``draw(degree, n, seed, scalars)``: rows of points, scalars, and the sum of their multiples.

    The points are few multiples of the generator, often repeated, with their negatives and infinity.
    """
    import random

    import numpy as np

    from evenload.gpu.field import FR
    from evenload.zk.bn254.plain_curve import G1, G2
    from evenload.zk.formats.zkey import point_rows

    @cache
    def multiples(group):
        factors, found, point = [0], [None], None
        for k in range(1, 40):
            point = group.add(point, group.generator)
            factors += [k, FR.modulus - k]
            found += [point, group.negate(point)]
        return point_rows(found, group.degree), factors

    def draw(degree, n, seed, scalars=None):
        group, dice = {1: G1, 2: G2}[degree], random.Random(seed)
        table, factors = multiples(group)
        chosen = [dice.randrange(len(factors)) for _ in range(n)]
        kinds = [
            0,
            1,
            FR.modulus - 1,
            2,
            1 << 64,
            (1 << 128) - 1,
            *(dice.randrange(FR.modulus) for _ in range(5)),
        ]
        scalars = scalars or [dice.choice(kinds) for _ in range(n)]
        total = sum(factors[k] * s for k, s in zip(chosen, scalars, strict=True))
        return (
            np.ascontiguousarray(table[chosen]),
            scalars,
            group.multiply(group.generator, total % FR.modulus),
        )

    return draw
