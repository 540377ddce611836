"""What each kind of Merkle tree hashes: a leaf of 32 bytes, a pair of nodes, a message of any length.

A rule is written over ``Words``; back ends turn it into kernels, ``Words`` itself runs it on integers.
Rows of memory are words in the machine's little-endian order; a rule swaps bytes where its hash wants that.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from evenload.gpu.hashing import blake2s, keccak, sha256
from evenload.gpu.hashing.words import Words


class Rule:
    """A way to hash leaves and pairs of nodes. ``params`` are 18 words given at run time (9 for leaves, 9
    for pairs); most rules ignore them."""

    name = ""
    bits = 32
    block_bytes = 64

    def leaf(self, w: Words, row: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        """The digest of a leaf of 32 bytes."""
        raise NotImplementedError

    def pair(self, w: Words, row: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        """The digest of two digests, 64 bytes."""
        raise NotImplementedError

    def start(self, w: Words, params: Sequence[Any]) -> list[Any]:
        """The state before the first block of a leaf of any length."""
        raise NotImplementedError

    def absorb(
        self,
        w: Words,
        state: Sequence[Any],
        block: Sequence[Any],
        seen: Any,
        last: Any,
        params: Sequence[Any],
    ) -> list[Any]:
        """The state after a block of the padded leaf; ``seen`` message bytes so far, ``last``: all ones."""
        raise NotImplementedError

    def finish(self, w: Words, state: Sequence[Any]) -> list[Any]:
        """The digest after the last block."""
        raise NotImplementedError

    def padded_bytes(self, width: int) -> int:
        """Length of a leaf of ``width`` bytes with prefix and padding: whole blocks."""
        raise NotImplementedError

    def pad(self, rows: np.ndarray, padded: np.ndarray) -> None:
        """Write [n, width] uint8 leaves, with prefix and padding, to the first rows of zeros ``padded``."""
        raise NotImplementedError


class Rfc6962Rule(Rule):
    """The rule of RFC 6962: SHA-256(00 leaf) and SHA-256(01 left right). Source: RFC 9162, section 2.1.1."""

    name = "rfc6962"

    def leaf(self, w, row, params):
        return self._prefixed(w, 0x00, row, 33)

    def pair(self, w, row, params):
        return self._prefixed(w, 0x01, row, 65)

    def _prefixed(self, w: Words, prefix: int, row: Sequence[Any], n_bytes: int) -> list[Any]:
        """Words of the message are the row's, moved on by one byte."""
        row = [prefix, *map(w.swap_bytes, row)]
        shifted = [w.or_(w.left(a, 24), w.right(b, 8)) for a, b in pairwise(row)]
        shifted.append(w.or_(w.left(row[-1], 24), 0x800000))
        message = [*shifted, *sha256.padding(n_bytes)[1:]]
        state = list(sha256.INITIAL)
        for at in range(0, len(message), 16):
            state = sha256.compress(w, state, message[at : at + 16])
        return [w.swap_bytes(word) for word in state]

    def start(self, w, params):
        return list(sha256.INITIAL)

    def absorb(self, w, state, block, seen, last, params):
        return sha256.compress(w, state, [w.swap_bytes(word) for word in block])

    def finish(self, w, state):
        return [w.swap_bytes(word) for word in state]

    def padded_bytes(self, width):
        return (width + 1 + 9 + 63) // 64 * 64

    def pad(self, rows, padded):
        n, width = rows.shape
        padded[:n, 1 : 1 + width] = rows
        padded[:n, 1 + width] = 0x80
        padded[:n, -8:] = np.frombuffer((8 * (width + 1)).to_bytes(8, "big"), np.uint8)


class BitcoinRule(Rule):
    """The rule of Bitcoin: SHA-256(SHA-256(left right)); leaves are transaction ids and stay as they are."""

    name = "bitcoin"

    def pair(self, w, row, params):
        message = [w.swap_bytes(word) for word in row]
        state = sha256.compress(w, sha256.INITIAL, message)
        state = sha256.compress(w, state, sha256.padding(64))
        state = sha256.compress(w, sha256.INITIAL, [*state, *sha256.padding(32)])
        return [w.swap_bytes(word) for word in state]


class Blake2sRule(Rule):
    """BLAKE2s in its tree mode: depth 0 for leaves, 1 for nodes; key and personalisation in ``params``.

    params  [18] the initial state for leaves and the bytes it has seen, then the same for nodes
    """

    name = "blake2s"

    def leaf(self, w, row, params):
        return blake2s.compress(w, params[:8], [*row, *[0] * 8], w.add(params[8], 32), w.mask)

    def pair(self, w, row, params):
        return blake2s.compress(w, params[9:17], row, w.add(params[17], 64), w.mask)

    def start(self, w, params):
        return list(params[:8])

    def absorb(self, w, state, block, seen, last, params):
        return blake2s.compress(w, state, block, w.add(params[8], seen), last)

    def finish(self, w, state):
        return list(state)

    def padded_bytes(self, width):
        return max(64, -(-width // 64) * 64)

    def pad(self, rows, padded):
        n, width = rows.shape
        padded[:n, :width] = rows


class KeccakRule(Rule):
    """The rule of OpenZeppelin: Keccak-256(Keccak-256(leaf)), and Keccak-256 of the smaller and larger node.

    Source: OpenZeppelin's StandardMerkleTree, format standard-v1.
    """

    name = "openzeppelin"
    bits = 64
    block_bytes = 136

    def leaf(self, w, row, params):
        return self._hash(w, self._hash(w, row))

    def pair(self, w, row, params):
        left, right = row[:4], row[4:]
        swapped = [[w.swap_bytes(word) for word in node] for node in (left, right)]
        is_sorted = w.is_below(*swapped)
        ordered = [w.choose(is_sorted, a, b) for a, b in zip(row, [*right, *left], strict=True)]
        return self._hash(w, ordered)

    def _hash(self, w: Words, message: Sequence[Any]) -> list[Any]:
        n_zeros = keccak.RATE_WORDS - len(message) - 2
        block = [*message, 0x01, *[0] * n_zeros, 1 << 63]
        return keccak.permute(w, [*block, *[0] * (25 - keccak.RATE_WORDS)])[:4]

    def start(self, w, params):
        return [0] * 25

    def absorb(self, w, state, block, seen, last, params):
        mixed = [w.xor(lane, word) for lane, word in zip(state, block, strict=False)]
        return keccak.permute(w, [*mixed, *state[len(block) :]])

    def finish(self, w, state):
        return self._hash(w, state[:4])

    def padded_bytes(self, width):
        return (width // 136 + 1) * 136

    def pad(self, rows, padded):
        n, width = rows.shape
        padded[:n, :width] = rows
        padded[:n, width] = 0x01
        padded[:n, -1] |= 0x80


RULES: dict[str, Rule] = {
    rule.name: rule for rule in (Rfc6962Rule(), BitcoinRule(), Blake2sRule(), KeccakRule())
}
