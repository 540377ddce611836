"""Proofs: that a leaf is in a tree, and that a tree only grew. Checked without any tree, and without kernels.

Where pairs are sorted (openzeppelin), the path needs no index, and one proof can cover many leaves.

A proof is what a stranger sent. ``from_json`` refuses what is malformed (FormatError says where); ``verify``
answers False to what does not lead to the root. Neither does more work than the size of the proof calls for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenload._bounded_json import parse_json
from evenload.errors import ConfigError, EvenloadError, FormatError, quoted
from evenload.merkle.scheme import DIGEST_BYTES, MAX_DEPTH, Scheme, from_hex, written_name, zero_node

FORMAT = "evenload-merkle-1"
MAX_SIZE = 1 << MAX_DEPTH
MAX_PROOF_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """A proof of leaf ``index`` in a tree of ``size`` leaves; ``path``: siblings from the leaf up.

    leaf_hash  the leaf's node as the prover saw it: ``verify`` never trusts it
    """

    scheme: Scheme
    index: int
    size: int
    path: tuple[bytes, ...]
    leaf_hash: bytes | None = None

    def __post_init__(self) -> None:
        _check_whole("size", self.size, 1, MAX_SIZE)
        _check_whole("index", self.index, 0, self.size - 1)
        _check_path(self.path)
        if self.scheme.odd == "heap":
            raise ConfigError("an openzeppelin proof has no index", hint="see StandardTree")
        self.scheme.check_nodes(_rows(self.path))

    def root_from(self, leaf_hash: bytes) -> bytes | None:
        """The root that the path leads to from a leaf's node; None if the path does not fit the tree.

        Source: RFC 9162, section 2.1.3.2, for trees whose odd nodes move up.
        """
        try:
            height = self.scheme.height(self.size)
        except ConfigError:
            return None
        node, rest, odd = leaf_hash, list(self.path), self.scheme.odd
        for level in range(height):
            at, last = self.index >> level, self.size - 1 >> level
            is_lonely = at == last and not at & 1
            if is_lonely and odd == "promote":
                continue
            if not rest:
                return None
            sibling = rest.pop(0)
            expected = {"duplicate": node, "zeros": None}.get(odd) if is_lonely else sibling
            if expected is None:
                expected = zero_node(level)
            if sibling != expected:
                return None
            node = self.scheme.hash_pair(*((sibling, node) if at & 1 else (node, sibling)))
        return None if rest else node

    def verify(self, leaf: Any, root: bytes, size: int | None = None) -> bool:
        """Is ``leaf`` (bytes, or a row of uint8) the leaf ``index`` under ``root``?

        size  of the tree, if you know it. Give it for schemes that do not hash leaves (bitcoin, poseidon):
              there, a node of 32 bytes is a leaf of the smaller tree above it.
        """
        return self.verify_hash(self.scheme.hash_leaf(bytes(leaf)), root, size)

    def verify_hash(self, leaf_hash: bytes, root: bytes, size: int | None = None) -> bool:
        """Whether the leaf of this node is in the tree, as ``verify`` says of the leaf itself."""
        _check_path((leaf_hash, root))
        if size is not None and size != self.size:
            return False
        self.scheme.check_nodes(_rows((leaf_hash, root)))
        return self.root_from(bytes(leaf_hash)) == bytes(root)

    def to_json(self) -> dict[str, Any]:
        page = _head("inclusion", self.scheme) | {"index": self.index, "size": self.size}
        if self.leaf_hash is not None:
            page["leaf_hash"] = self.leaf_hash.hex()
        return page | {"path": [node.hex() for node in self.path]}


@dataclass(frozen=True, slots=True)
class ConsistencyProof:
    """A proof that the tree of ``new_size`` leaves begins with the ``old_size`` leaves of the old one."""

    scheme: Scheme
    old_size: int
    new_size: int
    path: tuple[bytes, ...] = field(default=())

    def __post_init__(self) -> None:
        _check_whole("new_size", self.new_size, 1, MAX_SIZE)
        _check_whole("old_size", self.old_size, 1, self.new_size)
        _check_path(self.path)
        if self.scheme.odd != "promote":
            raise ConfigError(
                f"a {self.scheme.name} tree has no consistency proofs", hint="use rfc6962 or rfc6962-blake2s"
            )

    def verify(self, old_root: bytes, new_root: bytes) -> bool:
        """Source: RFC 9162, section 2.1.4.2."""
        _check_path((old_root, new_root))
        old_root, new_root = bytes(old_root), bytes(new_root)
        if self.old_size == self.new_size:
            return not self.path and old_root == new_root
        rest = list(self.path)
        if not self.old_size & self.old_size - 1:
            rest.insert(0, old_root)
        if not rest:
            return False
        at, last = self.old_size - 1, self.new_size - 1
        while at & 1:
            at, last = at >> 1, last >> 1
        old = new = rest.pop(0)
        pair = self.scheme.hash_pair
        for sibling in rest:
            if not last:
                return False
            if at & 1 or at == last:
                old, new = pair(sibling, old), pair(sibling, new)
                while not at & 1 and at:
                    at, last = at >> 1, last >> 1
            else:
                new = pair(new, sibling)
            at, last = at >> 1, last >> 1
        return not last and old == old_root and new == new_root

    def to_json(self) -> dict[str, Any]:
        page = _head("consistency", self.scheme)
        page |= {"old_size": self.old_size, "new_size": self.new_size}
        return page | {"path": [node.hex() for node in self.path]}


def proof_from_json(text: str | bytes | Mapping[str, Any]) -> InclusionProof | ConsistencyProof:
    """A proof that ``to_json`` made. Raises FormatError on anything else, naming the key."""
    page = read_object(text)
    if page.get("format") != FORMAT:
        raise FormatError(f"format is {quoted(page.get('format'))}, not {quoted(FORMAT)}")
    keys = {"inclusion": ("index", "size", "path"), "consistency": ("old_size", "new_size", "path")}
    kind = page.get("kind")
    if not isinstance(kind, str) or kind not in keys:
        raise FormatError(f"kind is {quoted(kind)}", hint="use inclusion or consistency")
    missing = [key for key in (*keys[kind], "scheme") if key not in page]
    known = {*keys[kind], "format", "kind", "scheme", "person", "depth", "leaf_hash", "key"}
    unknown = sorted(map(quoted, set(page) - known))
    if missing or unknown:
        raise FormatError(f"keys that are missing: {missing}, unknown: {', '.join(unknown[:1]) or 'none'}")
    try:
        scheme = _scheme_of(page)
        path = tuple(node_list(page["path"], "path"))
        if kind == "consistency":
            return ConsistencyProof(scheme, page["old_size"], page["new_size"], path)
        leaf_hash = from_hex(page["leaf_hash"], "leaf_hash") if "leaf_hash" in page else None
        return InclusionProof(scheme, page["index"], page["size"], path, leaf_hash)
    except FormatError:
        raise
    except EvenloadError as error:
        raise FormatError(error.message, hint=error.hint) from error


def read_object(text: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """A JSON object of at most a megabyte, without duplicate keys. Raises FormatError."""
    if isinstance(text, Mapping):
        return text
    page = parse_json(text, "a proof", MAX_PROOF_BYTES, object_pairs_hook=_without_duplicates)
    if not isinstance(page, dict):
        raise FormatError(f"a JSON {type(page).__name__} is no proof", hint="a proof is an object")
    return page


def node_list(nodes: Any, what: str) -> list[bytes]:
    if not isinstance(nodes, list):
        raise FormatError(f"{what} is a {type(nodes).__name__}, not a list")
    return [from_hex(node, f"{what}[{k}]") for k, node in enumerate(nodes)]


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    page = dict(pairs)
    if len(page) < len(pairs):
        raise ValueError("a key stands twice")
    return page


def _scheme_of(page: Mapping[str, Any]) -> Scheme:
    name, depth = page["scheme"], page.get("depth")
    if not isinstance(name, str):
        raise FormatError(f"scheme is {quoted(name)}, not a name")
    if depth is not None:
        _check_whole("depth", depth, 0, MAX_DEPTH)
    key = from_hex(page.get("key", ""), "key", None)
    person = from_hex(page.get("person", ""), "person", None)
    return Scheme(written_name(name), key=key, person=person, depth=depth)


def _head(kind: str, scheme: Scheme) -> dict[str, Any]:
    page: dict[str, Any] = {"format": FORMAT, "kind": kind, "scheme": scheme.name}
    if scheme.person:
        page["person"] = scheme.person.hex()
    if scheme.key:
        raise ConfigError("a proof of a keyed tree is not written: it would give the key away")
    if scheme.depth is not None:
        page["depth"] = scheme.depth
    return page


def _check_whole(what: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise ConfigError(f"{what} is {quoted(value)}, not a whole number")
    if not least <= value <= most:
        raise ConfigError(f"{what} {quoted(value)} is not in {least}..{most}")


def _check_path(path: Any) -> None:
    if not isinstance(path, tuple | list) or len(path) > 2 * MAX_DEPTH + 2:
        raise ConfigError("a path is a list of nodes, at most two for each level")
    for k, node in enumerate(path):
        if not isinstance(node, bytes | bytearray | memoryview) or len(node) != DIGEST_BYTES:
            raise ConfigError(f"node {k} of the path is not {DIGEST_BYTES} bytes", hint="nodes are bytes")


def _rows(nodes: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(map(bytes, nodes)), np.uint8).reshape(-1, DIGEST_BYTES)


OPENZEPPELIN = Scheme("openzeppelin")
MAX_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class SortedProof:
    """A proof of one leaf: its siblings on the way up. It does not say which leaf: sorting forgets that."""

    path: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _check_path(self.path)

    def verify(self, leaf: bytes, root: bytes) -> bool:
        """Is ``leaf`` (as encoded, before hashing) in the tree with this root?"""
        return self.verify_hash(OPENZEPPELIN.hash_leaf(bytes(leaf)), root)

    def verify_hash(self, leaf_hash: bytes, root: bytes) -> bool:
        """Whether the leaf of this node is in the tree. Give no node that you have not hashed from a leaf."""
        _check_path((leaf_hash, root))
        node = bytes(leaf_hash)
        for sibling in self.path:
            node = OPENZEPPELIN.hash_pair(node, sibling)
        return node == bytes(root)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": "sorted",
            "scheme": "openzeppelin",
            "path": [_hex(node) for node in self.path],
        }


@dataclass(frozen=True, slots=True)
class MultiProof:
    """A proof of several leaves; ``flags[k]``: step k takes both nodes from the queue, none from
    ``proof``."""

    leaf_hashes: tuple[bytes, ...]
    proof: tuple[bytes, ...]
    flags: tuple[bool, ...]

    def __post_init__(self) -> None:
        for name, nodes in (("leaf_hashes", self.leaf_hashes), ("proof", self.proof)):
            if len(nodes) > MAX_NODES:
                raise ConfigError(f"{name} has {len(nodes)} nodes", hint=f"the most is {MAX_NODES}")
            for start in range(0, len(nodes), MAX_DEPTH):
                _check_path(tuple(nodes[start : start + MAX_DEPTH]))
        if not all(isinstance(flag, bool) for flag in self.flags):
            raise ConfigError("flags are true or false")

    def root(self) -> bytes | None:
        """The root that leaves and proof lead to; None if they do not fit together, or there is no leaf.

        Every node of ``proof`` must be used up by a step (GHSA-wprv-93r4-jj2p: a left-over one would do for
        a root).
        """
        n_leaves, n_steps = len(self.leaf_hashes), len(self.flags)
        n_taken = self.flags.count(False)
        if not n_leaves or n_leaves + len(self.proof) != n_steps + 1 or n_taken != len(self.proof):
            return None
        queue, rest, at = list(self.leaf_hashes), iter(self.proof), 0
        for is_queued in self.flags:
            if at + is_queued >= len(queue):
                return None
            first, at = queue[at], at + 1
            if is_queued:
                second, at = queue[at], at + 1
            else:
                second = next(rest)
            queue.append(OPENZEPPELIN.hash_pair(first, second))
        return queue[-1] if at == len(queue) - 1 else None

    def verify(self, leaves: Sequence[bytes], root: bytes) -> bool:
        """Are all ``leaves`` (as encoded, in the order of ``leaf_hashes``) in the tree with this root?"""
        hashed = tuple(OPENZEPPELIN.hash_leaf(bytes(leaf)) for leaf in leaves)
        return hashed == self.leaf_hashes and self.verify_hashes(root)

    def verify_hashes(self, root: bytes) -> bool:
        """Whether leaves with these ``leaf_hashes`` are in the tree, as ``verify`` says."""
        _check_path((root,))
        return self.root() == bytes(root)

    def to_json(self) -> dict[str, Any]:
        page: dict[str, Any] = {"format": FORMAT, "kind": "multi", "scheme": "openzeppelin"}
        page["leaf_hashes"] = [_hex(node) for node in self.leaf_hashes]
        page["proof"] = [_hex(node) for node in self.proof]
        return page | {"flags": list(self.flags)}


def sorted_proof_from_json(text: str | bytes | Mapping[str, Any]) -> SortedProof | MultiProof:
    """A proof that ``to_json`` made. Raises FormatError on anything else."""
    page = read_object(text)
    keys = {"sorted": {"path"}, "multi": {"leaf_hashes", "proof", "flags"}}
    kind = page.get("kind")
    head = {"format": FORMAT, "kind": kind, "scheme": "openzeppelin"}
    if not isinstance(kind, str) or kind not in keys or any(page.get(key) != head[key] for key in head):
        raise FormatError("no proof of an openzeppelin tree", hint=f"format {FORMAT}, kind sorted or multi")
    if set(page) != keys[kind] | set(head):
        raise FormatError(f"keys are {quoted(list(page))}, not {sorted(keys[kind] | set(head))}")
    try:
        if kind == "sorted":
            return SortedProof(tuple(node_list(page["path"], "path")))
        if not isinstance(page["flags"], list):
            raise FormatError("flags is no list")
        leaf_hashes, proof = (tuple(node_list(page[key], key)) for key in ("leaf_hashes", "proof"))
        return MultiProof(leaf_hashes, proof, tuple(page["flags"]))
    except ConfigError as error:
        raise FormatError(error.message, hint=error.hint) from error


def _hex(node: bytes) -> str:
    assert len(node) == DIGEST_BYTES
    return "0x" + node.hex()
