"""Slow twins: trees straight from their definitions, with hashlib; and the engines to test against them."""

import hashlib

import numpy as np
import pytest
from wgsl_adapter import context as context

from evenload.merkle import Scheme
from evenload.merkle.engine import make_engine
from evenload.merkle.plain_engine import PlainEngine

ENGINES = ("plain", "cpu", "threads", "wgsl")


class Twin:
    """Roots by the recursion of RFC 6962, or by lists of levels as Bitcoin does it."""

    def __init__(self, scheme):
        self.scheme = scheme
        self.leaf = scheme.hash_leaf
        self.pair = scheme.hash_pair

    def root(self, leaves):
        if self.scheme.odd == "promote":
            return self._rfc(leaves)
        level = [self.leaf(leaf) for leaf in leaves]
        if self.scheme.odd == "zeros":
            level += [bytes(32)] * (2 ** self.scheme.height(len(leaves)) - len(leaves))
        while len(level) > 1:
            level += level[-1:] if len(level) % 2 else []
            level = [self.pair(*level[k : k + 2]) for k in range(0, len(level), 2)]
        return level[0]

    def _rfc(self, leaves):
        """RFC 6962, section 2.1."""
        if not leaves:
            return hashlib.sha256().digest()
        if len(leaves) == 1:
            return self.leaf(leaves[0])
        split = 1 << (len(leaves) - 1).bit_length() - 1
        return self.pair(self._rfc(leaves[:split]), self._rfc(leaves[split:]))


@pytest.fixture
def twin():
    return Twin


@pytest.fixture(params=ENGINES)
def engine_of(request):
    """A function from a scheme to an engine of each kind."""
    kind = request.param
    if kind == "plain":
        return PlainEngine
    if kind == "wgsl":
        context = request.getfixturevalue("context")
        from evenload.merkle.wgsl_engine import WgslEngine

        return lambda scheme: WgslEngine(scheme, context=context)
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    return lambda scheme: make_engine(scheme, threads=1 if kind == "cpu" else 3)


@pytest.fixture
def rows_for():
    """Random leaves that every scheme takes: below the order of BN254."""

    def make(n, width=32, seed=0):
        rows = np.random.default_rng(seed).integers(0, 256, (n, width), dtype=np.uint8)
        if width == 32:
            rows[:, 31] &= 0x0F
        return rows

    return make


@pytest.fixture(params=["rfc6962", "bitcoin", "poseidon", "rfc6962-blake2s"])
def scheme(request):
    return Scheme(request.param)
