"""Proofs for trees whose pairs are sorted: the path needs no index, and one proof can cover many leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError, FormatError, quoted
from evenload.merkle.proof import FORMAT, _check_path, node_list, read_object
from evenload.merkle.scheme import DIGEST_BYTES, MAX_DEPTH, Scheme

SCHEME = Scheme("openzeppelin")
MAX_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class SortedProof:
    """A proof of one leaf: its siblings on the way up. It does not say which leaf: sorting forgets that."""

    path: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _check_path(self.path)

    def verify(self, leaf: bytes, root: bytes) -> bool:
        """Is ``leaf`` (as encoded, before hashing) in the tree with this root?"""
        return self.verify_hash(SCHEME.hash_leaf(bytes(leaf)), root)

    def verify_hash(self, leaf_hash: bytes, root: bytes) -> bool:
        """Whether the leaf of this node is in the tree. Give no node that you have not hashed from a leaf."""
        _check_path((leaf_hash, root))
        node = bytes(leaf_hash)
        for sibling in self.path:
            node = SCHEME.hash_pair(node, sibling)
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
            queue.append(SCHEME.hash_pair(first, second))
        return queue[-1] if at == len(queue) - 1 else None

    def verify(self, leaves: Sequence[bytes], root: bytes) -> bool:
        """Are all ``leaves`` (as encoded, in the order of ``leaf_hashes``) in the tree with this root?"""
        hashed = tuple(SCHEME.hash_leaf(bytes(leaf)) for leaf in leaves)
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
