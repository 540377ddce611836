"""``evenload merkle bench`` (also ``evenload bench merkle``): how hashing a tree scales over devices."""

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.terminal.table import format_table

if TYPE_CHECKING:
    from evenload.devices import DevicePool

__all__ = ["merkle_bench"]


@click.command("merkle")
@click.option(
    "--devices",
    "specs",
    multiple=True,
    help="Devices to measure, one of them alone and all together; repeat it. Default: all.",
)
@click.option("--leaves", "n_leaves", type=click.IntRange(1024), default=1_000_000, show_default=True)
@click.option("--scheme", default="rfc6962", show_default=True, help="Which kind of tree.")
@click.option(
    "--strategy", default="measured", show_default=True, help="How blocks are dealt to the devices."
)
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="The best of so many counts."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def merkle_bench(
    specs: tuple[str, ...], n_leaves: int, scheme: str, strategy: str, runs: int, as_json: bool
) -> int:
    """Time the root of random leaves of 32 bytes, on one device of a selection and on all of it.

    Seconds are wall time, workers warm, the leaves in a file in memory. Speed-up and Amdahl's prediction
    compare with the selection's first device, which has the same threads in both rows. Amdahl takes what
    happens before and after the devices hash as the share that does not get faster.
    """
    from evenload.devices import DevicePool

    rows, roots = [], set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leaves"
        _write_leaves(path, n_leaves)
        for spec in specs or ("all",):
            pool = DevicePool.discover().select(spec)
            base: dict[str, Any] = {}
            for n_devices in sorted({1, len(pool)}):
                devices = tuple(pool)[:n_devices]
                label = spec if n_devices == len(pool) else f"{devices[0].id} of {spec}"
                row, root = _measure(pool.select(devices), path, scheme, strategy, runs)
                base = base or row
                rows.append({"devices": label, **row, **_compared(base, row)})
                roots.add(root)
    if len(roots) > 1:
        raise AssertionError(f"devices disagree about the root: {sorted(map(bytes.hex, roots))}")
    if as_json:
        page = {"schema": 1, "leaves": n_leaves, "scheme": scheme, "strategy": strategy, "rows": rows}
        click.echo(json.dumps(page, indent=2))
        return 0
    head = list(rows[0])
    cells = [[value if isinstance(value, str) else f"{value:.3g}" for value in row.values()] for row in rows]
    for line in format_table(head, cells, right=" ".join(head[1:])):
        click.echo(line)
    return 0


def _write_leaves(path: Path, n_leaves: int) -> None:
    """Random rows below the order of BN254, so that every scheme takes them."""
    import numpy as np

    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, n_leaves, 1 << 18):
            rows = rng.integers(0, 256, (min(1 << 18, n_leaves - start), 32), dtype=np.uint8)
            rows[:, 31] &= 0x0F
            file.write(rows.data)


def _measure(
    pool: "DevicePool", path: Path, scheme: str, strategy: str, runs: int
) -> tuple[dict[str, Any], bytes]:
    """The best of ``runs``, after one that starts the workers and compiles the kernels."""
    from evenload.balance.metrics import utilisation_deviation
    from evenload.executor import Executor
    from evenload.merkle import parallel_root

    with Executor(pool) as executor:
        root = parallel_root(path, scheme=scheme, strategy=strategy, executor=executor).root
        rows = []
        for _ in range(runs):
            began_s = time.perf_counter()
            done = parallel_root(path, scheme=scheme, strategy=strategy, executor=executor)
            total_s = time.perf_counter() - began_s
            if done.root != root:
                raise AssertionError(f"the root changed from {root.hex()} to {done.root.hex()}")
            row = {
                "n_devices": len(pool),
                "total_s": total_s,
                "hash_s": done.parts.wall_s,
                "leaves_per_s": done.size / total_s,
                "ratio_to_bound": done.parts.ratio_to_bound or 1.0,
                "utilisation_std": utilisation_deviation(
                    list(done.parts.device_s.values()), done.parts.wall_s
                ),
            }
            rows.append(row)
    return min(rows, key=lambda row: row["total_s"]), root


def _compared(base: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """Speed-up, efficiency and Amdahl's prediction against one device."""
    from evenload.balance.metrics import amdahl, speed_up

    n = row["n_devices"]
    faster = speed_up(base["total_s"], row["total_s"])
    share = min(1.0, base["hash_s"] / base["total_s"])
    return {"speed_up": faster, "efficiency": faster / n, "amdahl": amdahl(share, n)}
