"""``evenload merkle bench`` (also ``evenload bench merkle``): how hashing a tree scales over devices."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.bench.tables import devices_option, echo_rows
from evenload.cli.options import json_option, scheme_option

if TYPE_CHECKING:
    from evenload.devices import DevicePool

__all__ = ["merkle_bench"]


@click.command("merkle")
@devices_option
@click.option("--leaves", "n_leaves", type=click.IntRange(1024), default=1_000_000, show_default=True)
@scheme_option
@click.option(
    "--strategy", default="measured", show_default=True, help="How blocks are dealt to the devices."
)
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="The best of so many counts."
)
@json_option
def merkle_bench(
    specs: tuple[str, ...], n_leaves: int, scheme: str, strategy: str, runs: int, as_json: bool
) -> int:
    """Time the root of random leaves of 32 bytes, on one device of a selection and on all of it.

    Seconds are wall time, workers warm, the leaves in a file in memory. Speed-up and Amdahl's prediction
    compare with the selection's first device, which has the same threads in both rows. Amdahl takes what
    happens before and after the devices hash as the share that does not get faster.
    """
    from evenload.cli.bench.measure.merkle import time_roots, write_leaves
    from evenload.cli.bench.measure.trial_report import compare_selections

    roots = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leaves"
        write_leaves(path, n_leaves)

        def measure(pool: "DevicePool") -> dict[str, Any]:
            best = min(time_roots(pool, path, scheme, strategy, runs), key=lambda one: one.wall_s)
            roots.add(best.root)
            return {
                "n_devices": len(pool),
                "total_s": best.wall_s,
                "hash_s": best.hash_s,
                "leaves_per_s": best.n_leaves / best.wall_s,
                "ratio_to_bound": best.ratio_to_bound,
                "utilisation_std": best.utilisation_std,
            }

        rows = compare_selections(specs or ("all",), measure, _compare)
    if len(roots) > 1:
        raise AssertionError(f"devices disagree about the root: {sorted(map(bytes.hex, roots))}")
    echo_rows(rows, {"leaves": n_leaves, "scheme": scheme, "strategy": strategy}, as_json)
    return 0


def _compare(base: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """Speed-up, efficiency and Amdahl's prediction against one device."""
    from evenload.balance.metrics import amdahl, speed_up

    n = row["n_devices"]
    faster = speed_up(base["total_s"], row["total_s"])
    share = min(1.0, base["hash_s"] / base["total_s"])
    return {"speed_up": faster, "efficiency": faster / n, "amdahl": amdahl(share, n)}
