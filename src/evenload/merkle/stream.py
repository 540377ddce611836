"""The root alone, of leaves that come piece by piece: memory stays bounded, however many there are."""

import copy
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from evenload._private_files import open_named
from evenload.errors import ConfigError, FormatError
from evenload.merkle.engine import make_engine
from evenload.merkle.plain_engine import HashEngine
from evenload.merkle.rows import as_rows
from evenload.merkle.scheme import DIGEST_BYTES, Scheme, as_scheme
from evenload.merkle.shape import Edge, has_twins

CHUNK_HEIGHT = 14
CHUNK = 1 << CHUNK_HEIGHT
READ_BYTES = 8 << 20


def subtree_roots(engine: HashEngine, rows: np.ndarray, height: int) -> tuple[np.ndarray, bool]:
    """Roots [n >> height, 32] of complete subtrees, and whether a tree that flags twins has any in them."""
    if not engine.scheme.flags_twins:
        return engine.subtree_roots(rows, height), False
    levels = [engine.leaves(rows)]
    levels += engine.climb(levels[0], height)
    return levels[height], any(has_twins(level) for level in levels[:height])


class RootStream:
    """A tree of which only the right edge is kept: ``update`` takes leaves, ``root`` is that of all so far.

    scheme   any but openzeppelin, which has to see all leaves before it can sort them
    Keeps one node per level and up to 2^14 leaves. Raises ConfigError as ``MerkleTree`` does.
    """

    def __init__(
        self,
        scheme: str | Scheme = "rfc6962",
        *,
        threads: int | None = None,
        engine: HashEngine | None = None,
    ):
        self.scheme = as_scheme(scheme) if engine is None else engine.scheme
        if self.scheme.odd == "heap":
            raise ConfigError(
                "an openzeppelin tree sorts all its leaves and cannot be streamed", hint="use StandardTree"
            )
        self._engine = engine or make_engine(self.scheme, threads=threads)
        self._complete: dict[int, bytes] = {}  # height -> root of the last complete subtree of that height
        self._size = 0  # leaves in them
        self._waiting: list[np.ndarray] = []  # nodes of leaves that fill no chunk yet
        self._width: int | None = None
        self._has_twins = False

    def __len__(self) -> int:
        return self._size + sum(map(len, self._waiting))

    def update(self, leaves: Any) -> None:
        """Add leaves: uint8 [n, width] or bytes of one length, the same in every call."""
        rows = as_rows(leaves, self.scheme, self._width)
        if not len(rows):
            return
        self._width = rows.shape[1]
        n_missing = min(-len(self) % CHUNK, len(rows))
        if n_missing:
            self._wait(self._engine.leaves(rows[:n_missing]))
            rows = rows[n_missing:]
        n_full = len(rows) // CHUNK * CHUNK
        if n_full:
            self.push_roots(CHUNK_HEIGHT, *subtree_roots(self._engine, rows[:n_full], CHUNK_HEIGHT))
        if n_full < len(rows):
            self._wait(self._engine.leaves(rows[n_full:]))

    def update_records(self, records: Iterable[bytes]) -> None:
        """Add leaves of different lengths, hashed one by one."""
        remaining = iter(records)
        while batch := list(islice(remaining, CHUNK - len(self) % CHUNK)):
            nodes = [self.scheme.hash_leaf(bytes(record)) for record in batch]
            self._wait(np.frombuffer(b"".join(nodes), np.uint8).reshape(-1, DIGEST_BYTES))

    def push_roots(self, height: int, roots: np.ndarray, twins: bool = False) -> None:
        """Add complete subtrees of 2^height leaves by their roots [m, 32], where one may begin."""
        if len(self) % (1 << height) or self._waiting:
            raise ConfigError(f"{len(self)} leaves do not end where a subtree of 2^{height} may begin")
        self._has_twins |= twins
        for root in roots:
            node, level = root.tobytes(), height
            while self._size >> level & 1:
                left = self._complete[level]
                self._has_twins |= left == node
                node, level = self.scheme.hash_pair(left, node), level + 1
            self._complete[level] = node
            self._size += 1 << height

    def root(self) -> bytes:
        """The root of all leaves so far; more may follow."""
        return self._finished()[0]

    @property
    def is_mutated(self) -> bool:
        """Bitcoin: equal neighbours, which may stand for repeated transactions (CVE-2012-2459)."""
        return self.scheme.flags_twins and len(self) > 0 and self._finished()[1]

    def _finished(self) -> tuple[bytes, bool]:
        """The root, and whether there are twins, without taking anything from this stream."""
        done = copy.copy(self)
        done._complete, done._waiting = dict(self._complete), list(self._waiting)
        done._settle()
        edge = Edge(self.scheme, done._size, lambda height, index: done._complete[height])
        root = edge.root()
        return root, done._has_twins or edge.has_twins

    def _wait(self, nodes: np.ndarray) -> None:
        self._waiting.append(nodes)
        if not len(self) % CHUNK:
            self._settle()

    def _settle(self) -> None:
        """Turn the waiting nodes into the largest subtrees that may begin where they do."""
        if not self._waiting:
            return
        nodes = np.concatenate(self._waiting)
        self._waiting.clear()
        while len(nodes):
            height = len(nodes).bit_length() - 1
            if self._size:
                height = min(height, (self._size & -self._size).bit_length() - 1)
            levels = [nodes[: 1 << height]]
            levels += self._engine.climb(levels[0], height)
            twins = self.scheme.flags_twins and any(map(has_twins, levels[:-1]))
            self.push_roots(height, levels[-1], twins)
            nodes = nodes[1 << height :]


def root_of_file(
    source: str | Path | IO[bytes],
    *,
    width: int = DIGEST_BYTES,
    scheme: str | Scheme = "rfc6962",
    threads: int | None = None,
    engine: HashEngine | None = None,
) -> tuple[bytes, int]:
    """The root of a file's records and how many there are; 16 MiB of memory, whatever the file's size.

    source  a path (a .npy file must hold uint8 [n, width]) or an open binary file, such as a pipe
    width   bytes per record
    Raises ConfigError if there is no such file, FormatError if it does not consist of whole records.
    """
    stream = RootStream(scheme, threads=threads, engine=engine)
    for rows in read_rows(source, width):
        stream.update(rows)
    return stream.root(), len(stream)


def read_rows(source: str | Path | IO[bytes], width: int) -> Iterator[np.ndarray]:
    """Records of a file in blocks uint8 [n, width]; a block's memory is used again for the next one."""
    if width < 1:
        raise ConfigError(f"records of {width} bytes", hint="use 1 or more")
    if isinstance(source, str | Path):
        try:
            with open_named(source) as file:
                yield from _blocks(file, npy_width(file) or width, str(source))
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}") from error
    else:
        yield from _blocks(source, width, getattr(source, "name", "the stream"))


def npy_width(file: IO[bytes]) -> int | None:
    """Bytes per row of a .npy file; leaves ``file`` at its first row. None for other files."""
    magic = file.read(6)
    file.seek(0)
    if magic != b"\x93NUMPY":
        return None
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file)
    except ValueError as error:
        raise FormatError(f"the header of the .npy file is damaged: {error}") from error
    if dtype != np.uint8 or len(shape) != 2 or is_fortran or not shape[1]:
        raise FormatError(
            f"the .npy file holds {dtype} {list(shape)}", hint="store uint8 [n, width] in C order"
        )
    return shape[1]


def _blocks(file: Any, width: int, name: str) -> Iterator[np.ndarray]:
    chunk = width << CHUNK_HEIGHT
    buffer = bytearray(chunk * max(1, READ_BYTES // chunk))
    view, offset = memoryview(buffer), 0
    readinto = file.readinto if hasattr(file, "readinto") else io.BufferedReader(file).readinto
    while True:
        filled = 0
        while filled < len(buffer) and (n_read := readinto(view[filled:])):
            filled += n_read
        if filled % width:
            raise FormatError(
                f"{name} ends within a record, at byte {offset + filled}",
                hint=f"records have {width} bytes each",
            )
        if filled:
            yield np.frombuffer(view[:filled], np.uint8).reshape(-1, width)
        offset += filled
        if filled < len(buffer):
            return
