"""Roots of Merkle trees: by worker processes over a file of leaves, and by hashlib in a loop."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from evenload.cli.bench.measure.timing import least_time
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport, compare_with_first, device_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.devices import DevicePool

BLOCK_ROWS = 1 << 18
Hash = Callable[[bytes], bytes]


def _rfc6962_leaf(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\0" + leaf).digest()


def _rfc6962_node(pair: bytes) -> bytes:
    return hashlib.sha256(b"\1" + pair).digest()


@dataclass(frozen=True, slots=True)
class RootTime:
    """Seconds that one count of a root took, workers warm.

    wall_s         in all; ``hash_s``: while devices hash
    parent_cpu_s   CPU of this process
    busiest_cpu_s  CPU of the worker that had most; ``all_cpu_s``: of all workers
    """

    wall_s: float
    hash_s: float
    parent_cpu_s: float
    busiest_cpu_s: float
    all_cpu_s: float
    ratio_to_bound: float
    utilisation_std: float
    n_leaves: int
    root: bytes


def merkle(options: BenchOptions) -> TrialReport:
    """The root of random leaves, on each selection; hashlib in a loop beside it."""
    from evenload.devices import DevicePool

    n_leaves = 1_000_000 if options.is_quick else 2_000_000
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leaves"
        write_leaves(path, n_leaves)
        for spec in options.specs:
            pool = DevicePool.find(spec)
            times = time_roots(pool, path, "rfc6962", "measured", 1 if options.is_quick else 3)
            best = min(times, key=lambda one: one.wall_s)
            wall_s, spread = best.wall_s, best.utilisation_std
            row = device_row(spec, len(pool), wall_s, best.ratio_to_bound, spread, per_s=n_leaves / wall_s)
            rows.append(row)
        rows = compare_with_first(rows)
        if options.has_peers:
            rows.append(_hashlib_row(rows[0], path.read_bytes()[: 32 * (n_leaves // 10)], n_leaves))
    note = f"{n_leaves:,} leaves of 32 bytes, RFC 6962; per_s: leaves. hashlib: a tenth of them, times ten."
    return TrialReport("merkle", "", rows, note)


def leaf_blocks(n_leaves: int) -> "Iterator[NDArray[np.uint8]]":
    """Random rows [n, 32] below the order of BN254, so that every scheme takes them."""
    import numpy as np

    rng = np.random.default_rng(0)
    for start in range(0, n_leaves, BLOCK_ROWS):
        rows = rng.integers(0, 256, (min(BLOCK_ROWS, n_leaves - start), 32), dtype=np.uint8)
        rows[:, 31] &= 0x0F
        yield rows


def write_leaves(path: Path, n_leaves: int) -> None:
    """Write the rows of ``leaf_blocks`` to a file."""
    with path.open("wb") as file:
        for rows in leaf_blocks(n_leaves):
            file.write(rows.data)


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
            spent = [sum(child.cpu_times()[:2]) - before[pid] for pid, child in workers.items()]
            times.append(_root_time(done, wall_s, cpu_s, spent))
    for one in times:
        if one.root != root:
            raise AssertionError(f"the root changed from {root.hex()} to {one.root.hex()}")
    return times


def _root_time(done: Any, wall_s: float, cpu_s: float, spent: list[float]) -> RootTime:
    from evenload.balance.metrics import utilisation_deviation

    return RootTime(
        wall_s,
        done.parts.wall_s,
        cpu_s,
        max(spent, default=0.0),
        sum(spent),
        done.parts.ratio_to_bound or 1.0,
        utilisation_deviation(list(done.parts.device_s.values()), done.parts.wall_s),
        done.size,
        done.root,
    )


def _hashlib_row(first: dict[str, Any], leaves: bytes, n_leaves: int) -> dict[str, Any]:
    wall_s = 10 * least_time(lambda: plain_root(leaves), 1).wall_s
    row = dict.fromkeys(first) | {"devices": "hashlib, one core", "n": first["n"]}
    return row | {"work_s": wall_s, "per_s": n_leaves / wall_s}
