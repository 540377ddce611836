"""One large tree over several devices: each hashes blocks of leaves, the blocks' roots are joined here."""

import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenload._private_files import plain_file
from evenload.errors import ConfigError, FormatError
from evenload.merkle.rows import as_rows
from evenload.merkle.scheme import DIGEST_BYTES, Scheme, as_scheme
from evenload.merkle.stream import RootStream, npy_width, subtree_roots

if TYPE_CHECKING:
    from evenload.executor import Executor, ParallelResult

BLOCKS_PER_DEVICE = 64
LEAST_HEIGHT, MOST_HEIGHT = 10, 18


@dataclass(frozen=True, slots=True)
class ParallelRoot:
    """The ``root`` of ``size`` leaves; ``parts``: what each device did, and how close to the bound that
    came."""

    root: bytes
    size: int
    is_mutated: bool
    parts: "ParallelResult"


def parallel_root(
    source: Any,
    *,
    scheme: str | Scheme = "rfc6962",
    width: int = DIGEST_BYTES,
    devices: Any = "all",
    strategy: str = "measured",
    executor: "Executor | None" = None,
) -> ParallelRoot:
    """The root of many leaves, hashed by all devices together.

    source    uint8 [n, width], or the path of a file of records (.npy or raw); workers map the file
    strategy  equal | proportional | dynamic | measured, as for ``run_partitioned``
    executor  whose warm workers to use
    An array that is no ``numpy.memmap`` is written to memory that the workers share, or to a temporary file.
    The file must not change meanwhile. Raises ConfigError, FormatError, UnknownName or NoUsableDevice.
    """
    from evenload.executor import Executor, run_partitioned
    from evenload.gpu.wgsl.adapters import adapters_of

    chosen = as_scheme(scheme)
    stream = RootStream(chosen, threads=1)  # refuses what cannot be cut before anything is started
    if executor is None:
        with Executor(devices) as own:
            return parallel_root(source, scheme=chosen, width=width, strategy=strategy, executor=own)
    with _as_file(source, width) as leaves:
        height = _block_height(leaves.size, len(executor.devices))
        blocks = Blocks(leaves, height, range(leaves.size >> height))
        task = functools.partial(HashBlocks, scheme=chosen, adapters=adapters_of(executor.devices))
        parts = run_partitioned(task, blocks, strategy, executor=executor)
        for roots, has_twins in parts.results:
            stream.push_roots(height, roots, has_twins)
        stream.update(as_rows(leaves.rows(blocks.stop << height, leaves.size), chosen))
        return ParallelRoot(stream.root(), leaves.size, stream.is_mutated, parts)


@dataclass(frozen=True, slots=True)
class LeafPart:
    """A file of leaves: ``size`` records of ``width`` bytes in ``path``, from byte ``offset``."""

    path: str
    offset: int
    width: int
    size: int

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` .. ``stop - 1``, mapped, not read."""
        if start == stop:
            return np.empty((0, self.width), np.uint8)
        shape = (stop - start, self.width)
        return np.memmap(self.path, np.uint8, "r", self.offset + start * self.width, shape)


@dataclass(frozen=True, slots=True)
class Blocks:
    """An array of blocks of 2^height leaves, those with these ``numbers``; it can be cut and sent."""

    leaves: LeafPart
    height: int
    numbers: range

    @property
    def stop(self) -> int:
        return self.numbers.stop

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice) -> "Blocks":
        return Blocks(self.leaves, self.height, self.numbers[part])


class HashBlocks:
    """The roots of blocks, on the device that it is built for: WGSL where ``adapters`` has one for it."""

    def __init__(self, device: Any, *, scheme: Scheme, adapters: Mapping[str, str | None] | None = None):
        from evenload.merkle.engine import make_engine

        adapter = (adapters or {}).get(device.id, device.adapter)
        family = "wgpu" if adapter or device.family == "wgpu" else "cpu"
        self._engine = make_engine(scheme, threads=device.threads, family=family, adapter=adapter)

    def __call__(self, blocks: Blocks) -> tuple[np.ndarray, bool]:
        first, last = blocks.numbers.start << blocks.height, blocks.numbers.stop << blocks.height
        rows = as_rows(blocks.leaves.rows(first, last), self._engine.scheme)
        return subtree_roots(self._engine, rows, blocks.height)

    def close(self) -> None:
        self._engine.close()


def _block_height(size: int, n_devices: int) -> int:
    """Blocks so small that each device gets several, and so large that they are worth sending."""
    per_block = size // (BLOCKS_PER_DEVICE * n_devices)
    return min(MOST_HEIGHT, max(LEAST_HEIGHT, per_block.bit_length() - 1))


@contextmanager
def _as_file(source: Any, width: int) -> Iterator[LeafPart]:
    if isinstance(source, str | Path):
        yield _open_file(Path(source), width)
        return
    if (
        not isinstance(source, np.ndarray)
        or source.dtype != np.uint8
        or source.ndim != 2
        or not source.shape[1]
    ):
        raise ConfigError(
            f"{type(source).__name__} cannot be hashed in blocks", hint="give uint8 [n, width] or a path"
        )
    n, row_bytes = source.shape
    if (
        isinstance(source, np.memmap)
        and source.flags.c_contiguous
        and source.filename
        and source.base is not None
    ):
        # The address within the mapping tells where in the file a slice of it begins.
        whole = source
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        yield LeafPart(
            str(source.filename), whole.offset + source.ctypes.data - whole.ctypes.data, row_bytes, n
        )
        return
    shared = Path("/dev/shm")
    folder = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    with tempfile.NamedTemporaryFile(prefix="evenload-leaves-", dir=folder) as file:
        file.write(np.ascontiguousarray(source).data)
        file.flush()
        yield LeafPart(file.name, 0, row_bytes, n)


def _open_file(path: Path, width: int) -> LeafPart:
    try:
        with plain_file(path) as file:
            width = npy_width(file) or width
            offset, n_bytes = file.tell(), path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if width < 1 or (n_bytes - offset) % width:
        raise FormatError(
            f"{path} has {n_bytes - offset} bytes: no whole number of records",
            hint=f"records have {width} bytes",
        )
    return LeafPart(str(path), offset, width, (n_bytes - offset) // width)
