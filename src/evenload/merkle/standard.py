"""OpenZeppelin's StandardMerkleTree: leaves hashed twice and sorted, pairs sorted, nodes in a heap."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenload._bounded_json import parse_json
from evenload.errors import ConfigError, FormatError, quoted
from evenload.merkle.abi import encode
from evenload.merkle.engine import make_engine
from evenload.merkle.plain_engine import HashEngine
from evenload.merkle.proof import MultiProof, SortedProof
from evenload.merkle.rows import as_rows, new_nodes
from evenload.merkle.scheme import Scheme, from_hex
from evenload.merkle.shape import require_leaf

__all__ = ["MultiProof", "SortedProof", "StandardTree"]

FORMAT = "standard-v1"


class StandardTree:
    """A tree whose root and proofs OpenZeppelin's contracts accept.

    leaves   encoded leaves: uint8 [n, width], or a list of bytes of any lengths; ``of`` encodes values
    sort     order the leaves by hash, as the format's default is
    Leaves keep their index in the input. Raises ConfigError on no leaves, or on what are no leaves.
    """

    def __init__(
        self, leaves: Any, *, sort: bool = True, threads: int | None = None, engine: HashEngine | None = None
    ):
        self.scheme = Scheme("openzeppelin")
        self._engine = engine or make_engine(self.scheme, threads=threads)
        hashes = self._hash(leaves)
        n = len(hashes)
        if not n:
            raise ConfigError(
                "an openzeppelin tree without leaves has no root", hint="give at least one leaf"
            )
        # Sorted by big-endian words: the last key of lexsort is the first to count.
        keys = hashes.view(">u8")[:, ::-1].T
        order = np.lexsort(keys) if sort else np.arange(n)
        self._types: list[str] | None = None
        self._values: list[list[Any]] | None = None
        self._position = np.empty(n, np.int64)
        self._position[order] = 2 * n - 2 - np.arange(n)
        self._nodes = new_nodes(2 * n - 1)
        self._nodes[self._position] = hashes
        for depth in range((n - 1).bit_length() - 1, -1, -1):
            first, last = 2**depth - 1, min(2 ** (depth + 1) - 1, n - 1)
            if last > first:
                self._engine.pairs(self._nodes[2 * first + 1 : 2 * last + 1], self._nodes[first:last])

    @classmethod
    def of(cls, values: Sequence[Sequence[Any]], types: Sequence[str], **options: Any) -> "StandardTree":
        """Make a tree of tuples of values, encoded as ``types``: ["address", "uint256[]", "(bool,string)"].

        Arrays and tuples are given as lists.
        """
        tree = cls([encode(types, row) for row in values], **options)
        tree._types, tree._values = list(types), [list(row) for row in values]
        return tree

    @classmethod
    def load(cls, dump: str | Mapping[str, Any]) -> "StandardTree":
        """From the JSON of the JavaScript package. Raises FormatError unless every node can be made again.

        A dump may be of any size: it is a whole tree of yours, not a proof of somebody else's.
        """
        page = parse_json(dump, "a dump", len(dump)) if isinstance(dump, str) else dump
        if not isinstance(page, Mapping) or page.get("format") != FORMAT:
            given = quoted(page.get("format")) if isinstance(page, Mapping) else "none"
            raise FormatError(f"the dump's format is {given}", hint=f"only {quoted(FORMAT)} is read")
        try:
            types = page["leafEncoding"]
            values = [entry["value"] for entry in page["values"]]
            positions = [entry["treeIndex"] for entry in page["values"]]
            nodes = [from_hex(node, "node") for node in page["tree"]]
            trees = (cls.of(values, types, sort=is_sorted) for is_sorted in (True, False))
            for tree in trees:
                if tree._position.tolist() == positions and tree._nodes.tobytes() == b"".join(nodes):
                    return tree
        except (KeyError, TypeError, ConfigError) as error:
            raise FormatError(f"the dump is damaged: {type(error).__name__}: {error}") from error
        raise FormatError("the nodes of the dump do not follow from its values")

    def dump(self) -> dict[str, Any]:
        """The JSON of the JavaScript package. Raises ConfigError for a tree that was not made by ``of``."""
        if self._values is None:
            raise ConfigError(
                "only a tree of values can be dumped", hint="use StandardTree.of(values, types)"
            )
        values = [
            {"value": value, "treeIndex": int(at)}
            for value, at in zip(self._values, self._position, strict=True)
        ]
        nodes = ["0x" + node.tobytes().hex() for node in self._nodes]
        return {"format": FORMAT, "leafEncoding": self._types, "tree": nodes, "values": values}

    def __len__(self) -> int:
        return len(self._position)

    @property
    def root(self) -> bytes:
        return self._nodes[0].tobytes()

    def leaf_hash(self, index: int) -> bytes:
        """The node of leaf ``index`` of the input."""
        return self._nodes[self._at(index)].tobytes()

    def prove(self, index: int) -> SortedProof:
        """Prove that leaf ``index`` of the input is in the tree."""
        at, path = self._at(index), []
        while at:
            path.append(self._nodes[_sibling(at)].tobytes())
            at = (at - 1) // 2
        return SortedProof(tuple(path))

    def prove_many(self, indices: Sequence[int]) -> MultiProof:
        """One proof for several leaves; ``leaf_hashes`` are in the order that the contract wants."""
        places = sorted((self._at(index) for index in indices), reverse=True)
        if not places or len(set(places)) < len(places):
            raise ConfigError(f"{len(places)} indices, none or some twice", hint="name each leaf once")
        queue, proof, flags, at = list(places), [], [], 0
        while at < len(queue) and queue[at]:
            place, at = queue[at], at + 1
            is_queued = at < len(queue) and queue[at] == _sibling(place)
            flags.append(is_queued)
            if is_queued:
                at += 1
            else:
                proof.append(self._nodes[_sibling(place)].tobytes())
            queue.append((place - 1) // 2)
        leaf_hashes = tuple(self._nodes[place].tobytes() for place in places)
        return MultiProof(leaf_hashes, tuple(proof), tuple(flags))

    def _at(self, index: int) -> int:
        require_leaf(index, len(self))
        return int(self._position[index])

    def _hash(self, leaves: Any) -> np.ndarray:
        """[n, 32]; records of one length together."""
        if isinstance(leaves, np.ndarray):
            return self._engine.leaves(as_rows(leaves, self.scheme))
        lengths: dict[int, list[int]] = {}
        for k, leaf in enumerate(leaves):
            if not isinstance(leaf, bytes | bytearray):
                raise ConfigError(f"leaf {k} is a {type(leaf).__name__}", hint="leaves are bytes")
            lengths.setdefault(len(leaf), []).append(k)
        hashes = new_nodes(sum(map(len, lengths.values())))
        for places in lengths.values():
            hashes[places] = self._engine.leaves(as_rows([leaves[k] for k in places], self.scheme))
        return hashes


def _sibling(at: int) -> int:
    return at + 1 if at % 2 else at - 1
