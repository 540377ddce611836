"""What kind of tree: which hash, how leaves and nodes are told apart, and what becomes of an odd node."""

import functools
import hashlib
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from evenload.errors import ConfigError, UnknownName, quoted
from evenload.gpu.hashing import blake2s

DIGEST_BYTES = 32
MAX_DEPTH = 63

KEYED = "rfc6962-blake2s"
SCHEMES = ("rfc6962", "bitcoin", "openzeppelin", "poseidon", KEYED)
OLD_NAME = "blake2s"  # of the same trees, from before the name said what they are
Odd = Literal["promote", "duplicate", "zeros", "heap"]
ODD: dict[str, Odd] = {
    "rfc6962": "promote",
    "bitcoin": "duplicate",
    "openzeppelin": "heap",
    "poseidon": "zeros",
    KEYED: "promote",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A kind of Merkle tree; digests and nodes are 32 bytes.

    name    rfc6962       SHA-256(00 leaf), SHA-256(01 left right); an odd node moves up as it is
            bitcoin       leaves as they are, double SHA-256; an odd node is paired with itself
            openzeppelin  Keccak-256 as StandardMerkleTree of @openzeppelin/merkle-tree; see ``StandardTree``
            poseidon      leaves are elements of BN254's Fr (little-endian), as they are; zeros fill the tree
            rfc6962-blake2s  the shape of rfc6962, hashed by BLAKE2s: leaves with node depth 0, pairs with 1.
                          Not the tree mode of BLAKE2's specification. "blake2s" is its old name
    key     rfc6962-blake2s: up to 32 bytes, hashed before each leaf and node
    person  rfc6962-blake2s: up to 8 bytes that set this use apart from all others
    depth   poseidon: levels above the leaves; None for the least that holds them all
    Raises UnknownName, and ConfigError on an option that the scheme does not have or that is too long.
    """

    name: str = "rfc6962"
    key: bytes = b""
    person: bytes = b""
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.name == OLD_NAME:
            _warn_of_old_name()
            object.__setattr__(self, "name", KEYED)
        if self.name not in SCHEMES:
            raise UnknownName("tree", self.name, SCHEMES)
        if (self.key or self.person) and self.name != KEYED:
            raise ConfigError(f"a {self.name} tree has no key or personalisation", hint=f"use {KEYED}")
        if len(self.key) > 32 or len(self.person) > 8:
            raise ConfigError(
                f"key of {len(self.key)} bytes, personalisation of {len(self.person)}",
                hint="a BLAKE2s key has up to 32 bytes, a personalisation up to 8",
            )
        if self.depth is not None and self.name != "poseidon":
            raise ConfigError(
                f"a {self.name} tree has no fixed depth", hint="only poseidon trees are filled up"
            )
        if self.depth is not None and not 0 <= self.depth <= MAX_DEPTH:
            raise ConfigError(f"depth {self.depth} is out of range", hint=f"use 0 to {MAX_DEPTH}")

    @property
    def odd(self) -> Odd:
        """What becomes of a node without a right neighbour."""
        return ODD[self.name]

    @property
    def rule(self) -> str:
        """The name of what it hashes, in ``evenload.gpu.hashing.rules``."""
        return "blake2s" if self.name == KEYED else self.name

    @property
    def hashes_leaves(self) -> bool:
        """Leaves of any length are hashed; else they are 32 bytes and stay as they are."""
        return self.name in ("rfc6962", "openzeppelin", KEYED)

    @property
    def flags_twins(self) -> bool:
        """Equal neighbours mean that somebody may have repeated leaves (CVE-2012-2459)."""
        return self.odd == "duplicate"

    def height(self, size: int) -> int:
        """Levels above the leaves. Raises ConfigError if so many leaves do not fit the depth."""
        least = max(size - 1, 0).bit_length()
        if self.depth is not None and least > self.depth:
            raise ConfigError(
                f"{size} leaves do not fit into a tree of depth {self.depth}",
                hint=f"use depth {least} or more",
            )
        return least if self.depth is None else self.depth

    def params(self) -> list[int]:
        """The 18 words that kernels take: BLAKE2s' state for leaves and for nodes."""
        if self.name != KEYED:
            return [0] * 18
        leaf, seen = blake2s.initial_state(key=self.key, person=self.person)
        node, seen_too = blake2s.initial_state(key=self.key, person=self.person, node_depth=1)
        return [*leaf, seen, *node, seen_too]

    def empty_root(self) -> bytes:
        """The root of no leaves. Raises ConfigError where no standard or depth defines one."""
        if self.name == "rfc6962":
            return hashlib.sha256().digest()
        if self.name == "poseidon" and self.depth is not None:
            return zero_node(self.depth)
        raise ConfigError(f"a {self.name} tree without leaves has no root", hint="give at least one leaf")

    def hash_leaf(self, leaf: bytes) -> bytes:
        """One leaf, without compiled kernels. Raises ConfigError if it is not a leaf of this scheme."""
        if not self.hashes_leaves:
            self.check_nodes(np.frombuffer(leaf, np.uint8).reshape(1, -1))
            return bytes(leaf)
        return _leaf_function(self)(leaf)

    def hash_pair(self, left: bytes, right: bytes) -> bytes:
        """One node, without compiled kernels."""
        return _pair_function(self)(left, right)

    def check_nodes(self, rows: np.ndarray) -> None:
        """Refuse rows that cannot be nodes: not 32 bytes wide, or no field elements. Raises ConfigError."""
        if rows.shape[1] != DIGEST_BYTES:
            raise ConfigError(
                f"leaves of {rows.shape[1]} bytes in a {self.name} tree", hint="its leaves are 32 bytes each"
            )
        if self.name == "poseidon":
            _refuse_large_elements(rows)


def written_name(name: str) -> str:
    """Today's name of a scheme that an older version wrote into a file."""
    return KEYED if name == OLD_NAME else name


def as_scheme(scheme: "str | Scheme") -> Scheme:
    return scheme if isinstance(scheme, Scheme) else Scheme(scheme)


def from_hex(text: Any, what: str, n_bytes: int | None = DIGEST_BYTES) -> bytes:
    """The bytes of a hexadecimal text, with or without 0x. Raises ConfigError."""
    digits = text[2:] if isinstance(text, str) and text[:2] in ("0x", "0X") else text
    if not isinstance(digits, str) or len(digits) % 2 or not re.fullmatch(r"[0-9a-fA-F]*", digits):
        raise ConfigError(f"{what} {quoted(text)} is not hexadecimal", hint="write two digits per byte")
    if n_bytes is not None and len(digits) != 2 * n_bytes:
        raise ConfigError(f"{what} has {len(digits) // 2} bytes, not {n_bytes}")
    return bytes.fromhex(digits)


def _warn_of_old_name() -> None:
    """Warn at the line of the program that is not ours, however deep below it the name was looked at."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__", "").startswith("evenload."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f'a tree called "{OLD_NAME}" is "{KEYED}" now', DeprecationWarning, stacklevel=level + 1)


@functools.cache
def zero_node(height: int) -> bytes:
    """The root of 2^height zero leaves of a Poseidon tree."""
    if not height:
        return bytes(DIGEST_BYTES)
    below = zero_node(height - 1)
    return _poseidon_pair(below, below)


def _refuse_large_elements(rows: np.ndarray) -> None:
    from evenload.gpu.field import FR
    from evenload.gpu.llvm.rows import rows_not_below

    large = rows_not_below(np.ascontiguousarray(rows).view("<u8").reshape(-1, 4), FR.modulus)
    if len(large):
        raise ConfigError(
            f"node {int(large[0])} is not below the order of BN254",
            hint="elements are 32 bytes, little-endian, reduced modulo r",
        )


@functools.lru_cache(maxsize=64)
def _leaf_function(scheme: Scheme) -> Callable[[bytes], bytes]:
    if scheme.name == "rfc6962":
        return lambda leaf: hashlib.sha256(b"\0" + leaf).digest()
    if scheme.name == KEYED:
        options = {"key": scheme.key, "person": scheme.person, "fanout": 2, "depth": 255, "inner_size": 32}
        return lambda leaf: hashlib.blake2s(leaf, **options).digest()
    return lambda leaf: keccak256(keccak256(leaf))


@functools.lru_cache(maxsize=64)
def _pair_function(scheme: Scheme) -> Callable[[bytes, bytes], bytes]:
    if scheme.name == "rfc6962":
        return lambda left, right: hashlib.sha256(b"\1" + left + right).digest()
    if scheme.name == "bitcoin":
        return lambda left, right: hashlib.sha256(hashlib.sha256(left + right).digest()).digest()
    if scheme.name == KEYED:
        options = {"key": scheme.key, "person": scheme.person, "fanout": 2, "depth": 255, "inner_size": 32}
        return lambda left, right: hashlib.blake2s(left + right, node_depth=1, **options).digest()
    if scheme.name == "poseidon":
        return _poseidon_pair
    return lambda left, right: keccak256(min(left, right) + max(left, right))


def _poseidon_pair(left: bytes, right: bytes) -> bytes:
    from evenload.gpu.poseidon import poseidon

    return poseidon([int.from_bytes(node, "little") for node in (left, right)]).to_bytes(32, "little")


def keccak256(message: bytes) -> bytes:
    """Ethereum's Keccak-256, in plain Python."""
    from evenload.gpu.hashing.keccak import RATE_WORDS, permute
    from evenload.gpu.hashing.words import Words

    rate = 8 * RATE_WORDS
    padded = bytearray(message.ljust((len(message) // rate + 1) * rate, b"\0"))
    padded[len(message)] ^= 0x01
    padded[-1] ^= 0x80
    state, words = [0] * 25, Words(64)
    for at in range(0, len(padded), rate):
        block = [int.from_bytes(padded[at + 8 * k : at + 8 * k + 8], "little") for k in range(RATE_WORDS)]
        mixed = [a ^ b for a, b in zip(state, block, strict=False)]
        state = permute(words, [*mixed, *state[RATE_WORDS:]])
    return b"".join(lane.to_bytes(8, "little") for lane in state[:4])
