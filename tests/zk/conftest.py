"""Keys, witnesses and proofs that snarkjs made for circuits of our own (tests/data/zk)."""

from functools import cache
from pathlib import Path

import pytest
from node_calls import Node
from wgsl_adapter import context as context

DATA = Path(__file__).parent.parent / "data" / "zk"
CIRCUITS = ("multiplier", "public8", "boundary64", "boundary65", "dup_points")


@pytest.fixture(scope="module")
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
