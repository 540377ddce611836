"""``evenload bench prove`` and ``merkle`` (also ``evenload merkle bench``): how they scale over devices."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._plain_text import number_text
from evenload.cli.options import PATH, json_option, page_json, scheme_option
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.devices import DevicePool


devices_option = click.option(
    "--devices",
    "specs",
    multiple=True,
    help="Devices to measure, one of them alone and all together; repeat it. Default: all.",
)


def echo_rows(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], as_json: bool) -> None:
    """Print rows of equal keys as a table, or with ``facts`` as one JSON object."""
    if as_json:
        click.echo(page_json({"schema": 1, **facts, "rows": rows}, indent=2))
        return
    head = list(rows[0])
    cells = [
        [value if isinstance(value, str) else number_text(value) for value in row.values()] for row in rows
    ]
    for line in format_table(head, cells, right=head[1:]):
        click.echo(line)


@click.command("merkle")
@devices_option
@click.option(
    "--leaves", "n_leaves", type=click.IntRange(1024, 1 << 28), default=1_000_000, show_default=True
)
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


@click.command("prove")
@devices_option
@click.option("--proofs", "n_proofs", type=click.IntRange(1), default=16, show_default=True)
@click.option("--constraints", type=click.IntRange(1, 1 << 28), default=20_000, show_default=True)
@click.option("--policy", default="measured", show_default=True, help="How witnesses are dealt.")
@click.option("--zkey", type=PATH, help="Prove with this key instead of one made here ...")
@click.option("--witness", type=PATH, help="... and this witness, again and again.")
@json_option
def prove_bench(
    specs: tuple[str, ...],
    n_proofs: int,
    constraints: int,
    policy: str,
    zkey: Path | None,
    as_json: bool,
    witness: Path | None,
) -> int:
    """Time a batch of Groth16 proofs on one device of a selection and on all of it; every proof is verified.

    Seconds are wall time. The start is that of the workers, the load of the key and the first proof; the work
    is the batch. Speed-up and Amdahl's prediction compare with the selection's first device, which has the
    same threads in both rows; Amdahl takes the start as the share that does not get faster.

    \b
    evenload bench prove --devices cpu*2
    evenload bench prove --devices wgpu:0,cpu --zkey circuit.zkey --witness w.wtns
    """
    from evenload.cli.bench.measure.prove import compare_batches, make_circuit

    if (zkey is None) != (witness is None):
        raise ConfigError("--zkey and --witness belong together", hint="give both, or neither")
    with tempfile.TemporaryDirectory() as folder:
        if zkey is None or witness is None:
            zkey, witness = make_circuit(Path(folder), constraints)
        rows = compare_batches(specs or ("all",), zkey, [str(witness)] * n_proofs, policy)
    echo_rows(rows, {"proofs": n_proofs, "constraints": constraints, "policy": policy}, as_json)
    return 0


@click.command()
@click.option("--experts", type=click.IntRange(1), default=256, show_default=True, help="Logical experts.")
@click.option("--slots", type=click.IntRange(1), default=288, show_default=True, help="Physical slots.")
@click.option("--gpus", type=click.IntRange(1), default=32, show_default=True, help="GPUs.")
@click.option("--layers", type=click.IntRange(1), default=58, show_default=True, help="MoE layers.")
@click.option(
    "--repeat", type=click.IntRange(1), default=20, show_default=True, help="Measurements; the median counts."
)
@json_option
def moe_bench(experts: int, slots: int, gpus: int, layers: int, repeat: int, as_json: bool) -> int:
    """Measure placing and routing on this machine: made-up log-normal loads, one thread."""
    from evenload.cli.bench.measure.experts import made_up_batches, time_decisions

    batches = made_up_batches(8, layers, experts, gpus)
    spent = time_decisions(batches, slots, gpus, repeat, n_searches=3)
    cpu_s = {
        "rebalance_experts, all layers": spent.eplb_s,
        "exact routing, all layers": spent.route_s,
        "place, one layer": spent.search_s / layers,
    }
    if as_json:
        sizes = {"layers": layers, "experts": experts, "slots": slots, "gpus": gpus}
        click.echo(page_json({"schema": 1, "cpu_s": cpu_s, **sizes}))
        return 0
    rows = [[name, f"{1e3 * seconds:.3f}"] for name, seconds in cpu_s.items()]
    click.echo("\n".join(format_table(["CPU time of", "ms"], rows, right=["ms"])))
    return 0
