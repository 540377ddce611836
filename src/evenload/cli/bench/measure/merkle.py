"""Roots of Merkle trees: by worker processes over a file of leaves, and by hashlib in a loop."""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from evenload.balance.metrics import amdahl, speed_up, utilisation_deviation
from evenload.cli.bench.measure.timing import least_time
from evenload.cli.bench.measure.trial_report import (
    BenchOptions,
    Row,
    TrialReport,
    compare_selections,
    compare_with_first,
    device_row,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.devices import DevicePool
    from evenload.merkle.partition import ParallelRoot

BLOCK_ROWS = 1 << 18
Hash = Callable[[bytes], bytes]


def _rfc6962_leaf(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\0" + leaf).digest()


def _rfc6962_node(pair: bytes) -> bytes:
    return hashlib.sha256(b"\1" + pair).digest()


@dataclass(frozen=True, slots=True)
class RootTime:
    """Seconds that one count of a root took, workers warm.

    wall_s         in all
    parent_cpu_s   CPU of this process;  ``worker_cpu_s``: of each worker
    done           the root, and what the devices did
    """

    wall_s: float
    parent_cpu_s: float
    worker_cpu_s: tuple[float, ...]
    done: "ParallelRoot"


def merkle(options: BenchOptions) -> TrialReport:
    """The root of random leaves, on each selection; hashlib in a loop beside it."""
    from evenload.devices import DevicePool

    n_leaves = 1_000_000 if options.is_quick else 2_000_000
    rows: list[dict[str, Any]] = []
    with written_leaves(n_leaves) as path:
        for spec in options.specs:
            pool, n_runs = DevicePool.find(spec), 1 if options.is_quick else 3
            best = time_pool(pool, path, "rfc6962", "measured", n_runs)
            names = ("n_devices", "total_s", "ratio_to_bound", "utilisation_std")
            rows.append(device_row(spec, *(best[name] for name in names), per_s=best["leaves_per_s"]))
        rows = compare_with_first(rows)
        if options.has_peers:
            rows.append(_hashlib_row(rows[0], path.read_bytes()[: 32 * (n_leaves // 10)], n_leaves))
    note = f"{n_leaves:,} leaves of 32 bytes, RFC 6962; per_s: leaves. hashlib: a tenth of them, times ten."
    return TrialReport("merkle", "", rows, note)


def time_pool(pool: "DevicePool", path: Path, scheme: str, strategy: str, n: int) -> dict[str, Any]:
    """The figures of the fastest of ``n`` counts on the devices of ``pool``, and the root."""
    best = min(time_roots(pool, path, scheme, strategy, n), key=lambda one: one.wall_s)
    parts = best.done.parts
    return {
        "n_devices": len(pool),
        "total_s": best.wall_s,
        "hash_s": parts.wall_s,
        "leaves_per_s": best.done.size / best.wall_s,
        "ratio_to_bound": parts.ratio_to_bound or 1.0,
        "utilisation_std": utilisation_deviation(list(parts.device_s.values()), parts.wall_s),
        "root": best.done.root,
    }


def compare_roots(specs: Sequence[str], n_leaves: int, scheme: str, strategy: str, n: int) -> list[Row]:
    """For every selection a row for its first device and one for all of it, compared; equal roots, or
    AssertionError.
    """
    with written_leaves(n_leaves) as path:
        rows = compare_selections(
            specs, lambda pool: time_pool(pool, path, scheme, strategy, n), lambda base, row: {
                "speed_up": (faster := speed_up(base["total_s"], row["total_s"])),
                "efficiency": faster / row["n_devices"],
                "amdahl": amdahl(min(1.0, base["hash_s"] / base["total_s"]), row["n_devices"]),
            },
        )  # fmt: skip
    roots = {row.pop("root") for row in rows}
    if len(roots) > 1:
        raise AssertionError(f"devices disagree about the root: {sorted(map(bytes.hex, roots))}")
    return rows


def leaf_blocks(n_leaves: int) -> "Iterator[NDArray[np.uint8]]":
    """Random rows [n, 32] below the order of BN254, so that every scheme takes them."""
    import numpy as np

    rng = np.random.default_rng(0)
    for start in range(0, n_leaves, BLOCK_ROWS):
        rows = rng.integers(0, 256, (min(BLOCK_ROWS, n_leaves - start), 32), dtype=np.uint8)
        rows[:, 31] &= 0x0F
        yield rows


@contextlib.contextmanager
def written_leaves(n_leaves: int, folder: str | None = None) -> Iterator[Path]:
    """A file of the rows of ``leaf_blocks`` that is gone after the block; ``folder``: in which it lies."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for rows in leaf_blocks(n_leaves):
            file.write(rows.data)
        file.flush()
        yield Path(file.name)


def plain_root(content: bytes, leaf: Hash = _rfc6962_leaf, node: Hash = _rfc6962_node) -> bytes:
    """The root of leaves of 32 bytes by hashlib, a call for each hash: what a tree in plain Python costs."""
    level = [leaf(content[k : k + 32]) for k in range(0, len(content), 32)]
    while len(level) > 1:
        odd = level[len(level) // 2 * 2 :]
        level = [node(level[k] + level[k + 1]) for k in range(0, len(level) - 1, 2)] + odd
    return level[0]


def time_roots(pool: "DevicePool", path: Path, scheme: str, strategy: str, n: int) -> list[RootTime]:
    """Count the root ``n`` times, after once that starts the workers and compiles the kernels.

    Raises AssertionError if the root is not always the same.
    """
    from evenload.executor import Executor
    from evenload.merkle import parallel_root

    with Executor(pool) as executor:
        root = parallel_root(path, scheme=scheme, strategy=strategy, executor=executor).root
        times = []
        for _ in range(n):
            workers = {child.pid: child for child in psutil.Process().children(recursive=True)}
            before = {pid: sum(child.cpu_times()[:2]) for pid, child in workers.items()}
            cpu, wall = time.process_time(), time.perf_counter()
            done = parallel_root(path, scheme=scheme, strategy=strategy, executor=executor)
            wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
            spent = tuple(sum(child.cpu_times()[:2]) - before[pid] for pid, child in workers.items())
            times.append(RootTime(wall_s, cpu_s, spent, done))
            if done.root != root:
                raise AssertionError(f"the root changed from {root.hex()} to {done.root.hex()}")
    return times


def _hashlib_row(first: dict[str, Any], leaves: bytes, n_leaves: int) -> dict[str, Any]:
    wall_s = 10 * least_time(lambda: plain_root(leaves), 1).wall_s
    row = dict.fromkeys(first) | {"devices": "hashlib, one core", "n": first["n"]}
    return row | {"work_s": wall_s, "per_s": n_leaves / wall_s}
