"""A contract in Solidity that verifies the proofs of one key, on any chain with the precompiles of BN254."""

import re
from collections.abc import Sequence
from string import Template
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.gpu.field import FQ, FR
from evenload.zk.groth16 import Proof, VerificationKey
from evenload.zk.verifier import Verifier

_CONTRACT = Template("""\
// SPDX-License-Identifier: CC0-1.0
// Made by evenload from a Groth16 verification key over BN254.
pragma solidity >=0.8.4 <0.9.0;

/// Verifies proofs of one circuit. Uses the precompiles of EIP-196 and EIP-197, and keeps nothing.
contract $name {
    // The order of the groups; public inputs are below it, so that none passes for another.
    uint256 private constant R = $r;
    // The field of the coordinates.
    uint256 private constant Q = $q;

    /// Whether a, b and c prove the statement with these public inputs. Points are encoded as for the
    /// precompiles: of a coordinate of b, the part that is multiplied by the root comes first.
    /// A point at infinity, off its curve or outside its group, or a number that is not reduced, is no proof.
    function verifyProof(
        uint256[2] calldata a,
        uint256[2][2] calldata b,
        uint256[2] calldata c,
        uint256[$n_public] calldata publicInputs
    ) external view returns (bool) {
        if (a[0] >= Q || a[1] >= Q || a[0] | a[1] == 0) return false;
        if (b[0][0] | b[0][1] | b[1][0] | b[1][1] == 0 || c[0] | c[1] == 0) return false;

        uint256[2] memory sum;
        sum[0] = $ic0_x;
        sum[1] = $ic0_y;
$terms
        uint256[24] memory pairs;
        // e(-a, b) * e(alpha, beta) * e(sum, gamma) * e(c, delta) = 1
        (pairs[0], pairs[1]) = (a[0], a[1] == 0 ? 0 : Q - a[1]);
        (pairs[2], pairs[3], pairs[4], pairs[5]) = (b[0][0], b[0][1], b[1][0], b[1][1]);
$pairs
        (pairs[12], pairs[13]) = (sum[0], sum[1]);
        (pairs[18], pairs[19]) = (c[0], c[1]);
        uint256[1] memory answer;
        bool done;
        assembly ("memory-safe") {
            done := staticcall(gas(), 8, pairs, 768, answer, 32)
        }
        return done && answer[0] == 1;
    }

    /// sum += factor * (x, y)
    function _add(uint256[2] memory sum, uint256 x, uint256 y, uint256 factor) private view returns (bool) {
        if (factor >= R) return false;
        uint256[4] memory words;
        (words[0], words[1], words[2]) = (x, y, factor);
        bool done;
        assembly ("memory-safe") {
            done := staticcall(gas(), 7, words, 96, words, 64)
        }
        (words[2], words[3]) = (sum[0], sum[1]);
        bool added;
        assembly ("memory-safe") {
            added := staticcall(gas(), 6, words, 128, sum, 64)
        }
        return done && added;
    }
}
""")


def verifier_contract(key: VerificationKey, name: str = "Groth16Verifier") -> str:
    """The source of a contract ``name``: its ``verifyProof(a, b, c, publicInputs)`` is ``verify``.

    It takes the calldata of snarkjs's contracts. Raises FormatError for a bad key, ConfigError if it has no
    public input (Solidity has no empty arrays) or ``name`` cannot name a contract.
    """
    if not re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]{0,99}", name):
        raise ConfigError(f"a contract cannot be called {quoted(name)}", hint="letters, digits and _")
    key = Verifier(key).key
    if not key.n_public:
        raise ConfigError(
            "the key has no public input, and Solidity has no array of none",
            hint="make one signal of the circuit public",
        )
    (x0, y0), *rest = [point or (0, 0) for point in key.ic]
    terms = [
        f"        if (!_add(sum, {x}, {y}, publicInputs[{k}])) return false;" for k, (x, y) in enumerate(rest)
    ]
    words = {6: key.alpha1 or (0, 0), 8: _words(key.beta2), 14: _words(key.gamma2), 20: _words(key.delta2)}
    pairs = [
        f"        pairs[{start + k}] = {value};"
        for start, point in words.items()
        for k, value in enumerate(point)
    ]
    return _CONTRACT.substitute(
        name=name, r=FR.modulus, q=FQ.modulus, n_public=key.n_public, ic0_x=x0, ic0_y=y0,
        terms="\n".join(terms), pairs="\n".join(pairs),
    )  # fmt: skip


def calldata_text(public: Sequence[int], proof: Proof) -> str:
    """The arguments of ``verifyProof`` in hexadecimal, as snarkjs exports calldata."""
    b = _words(proof.b)
    words = ",".join(f'"0x{value:064x}"' for value in public)
    return f"{_pair(proof.a)},[{_pair(b[:2])},{_pair(b[2:])}],{_pair(proof.c)},[{words}]"


def _pair(point: Any) -> str:
    x, y = point or (0, 0)
    return f'["0x{x:064x}", "0x{y:064x}"]'


def _words(point: Any) -> tuple[int, int, int, int]:
    """A point of G2 as the precompiles take it."""
    (x0, x1), (y0, y1) = point or ((0, 0), (0, 0))
    return x1, x0, y1, y0
