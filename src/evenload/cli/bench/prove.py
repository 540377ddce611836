"""``evenload bench prove``: how proving scales over devices."""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.devices import DevicePool

__all__ = ["make_circuit", "measure_all", "prove_bench"]


@click.command("prove")
@click.option(
    "--devices",
    "specs",
    multiple=True,
    help="Devices to measure, one of them alone and all together; repeat it. Default: all.",
)
@click.option("--proofs", "n_proofs", type=click.IntRange(1), default=16, show_default=True)
@click.option("--constraints", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--policy", default="measured", show_default=True, help="How witnesses are dealt.")
@click.option(
    "--zkey", type=click.Path(path_type=Path), help="Prove with this key instead of one made here ..."
)
@click.option("--witness", type=click.Path(path_type=Path), help="... and this witness, again and again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prove_bench(
    specs: tuple[str, ...],
    n_proofs: int,
    constraints: int,
    policy: str,
    zkey: Path | None,
    witness: Path | None,
    as_json: bool,
) -> int:
    """Time a batch of Groth16 proofs on one device of a selection and on all of it; every proof is verified.

    Seconds are wall time. The start is that of the workers, the load of the key and the first proof; the work
    is the batch. Speed-up and Amdahl's prediction compare with the selection's first device, which has the
    same threads in both rows; Amdahl takes the start as the share that does not get faster.

    \b
    evenload bench prove --devices cpu*2
    evenload bench prove --devices wgpu:0,cpu --zkey circuit.zkey --witness w.wtns
    """
    if (zkey is None) != (witness is None):
        raise ConfigError("--zkey and --witness belong together", hint="give both, or neither")
    with tempfile.TemporaryDirectory() as folder:
        if zkey is None or witness is None:
            zkey, witness = make_circuit(Path(folder), constraints)
        rows = measure_all(specs or ("all",), zkey, [str(witness)] * n_proofs, policy)
    if as_json:
        page = {"schema": 1, "proofs": n_proofs, "constraints": constraints, "policy": policy, "rows": rows}
        click.echo(json.dumps(page, indent=2))
        return 0
    head = list(rows[0])
    cells = [[value if isinstance(value, str) else f"{value:.3g}" for value in row.values()] for row in rows]
    for line in format_table(head, cells, right=" ".join(head[1:])):
        click.echo(line)
    return 0


def make_circuit(folder: Path, constraints: int) -> tuple[Path, Path]:
    """An INSECURE key for a chain of squarings, and its witness."""
    from evenload.zk.circuits import squaring_chain
    from evenload.zk.devsetup import dev_setup
    from evenload.zk.formats.witness import witness_from_integers, write_witness
    from evenload.zk.formats.zkey import write_zkey

    circuit, witness = squaring_chain(constraints)
    write_zkey(folder / "circuit.zkey", dev_setup(circuit))
    write_witness(folder / "witness.wtns", witness_from_integers(witness))
    return folder / "circuit.zkey", folder / "witness.wtns"


def measure_all(specs: Sequence[str], zkey: Path, witnesses: list[str], policy: str) -> list[dict[str, Any]]:
    """For every selection a row for its first device and one for all of it, compared."""
    from evenload.devices import DevicePool

    rows = []
    for spec in specs:
        pool, base = DevicePool.find(spec), None
        for n_devices in sorted({1, len(pool)}):
            devices = tuple(pool)[:n_devices]
            label = spec if n_devices == len(pool) else f"{devices[0].id} of {spec}"
            row = measure(pool.select(devices), zkey, witnesses, policy)
            base = base or row
            rows.append({"devices": label, **row, **_compared(base, row)})
    return rows


def measure(pool: "DevicePool", zkey: Path, witnesses: list[str], policy: str) -> dict[str, Any]:
    """Start the workers, load the key and compile the kernels (one proof each), then time the batch."""
    from evenload.balance.metrics import utilisation_deviation
    from evenload.executor import Executor
    from evenload.zk.batch import prover_task
    from evenload.zk.proving_devices import proving_devices

    started = time.perf_counter()
    task, n_devices = prover_task(zkey, devices=proving_devices(pool)), len(pool)
    with Executor(pool, policy=policy) as executor:
        list(executor.map(task, witnesses[:1] * n_devices, repeatable=False, policy="static"))
        ready = time.perf_counter()
        results = executor.map(task, witnesses, repeatable=False)
        latencies = [sum(done.stages.values()) for done in results]
        done = time.perf_counter()
    summary = results.summary
    if summary is None:
        raise AssertionError("a finished run has a summary")
    return {
        "n_devices": n_devices,
        "start_s": ready - started,
        "work_s": done - ready,
        "latency_s": sum(latencies) / len(latencies),
        "proofs_per_s": len(witnesses) / (done - ready),
        "ratio_to_bound": summary.ratio_to_bound or 1.0,
        "utilisation_std": utilisation_deviation([d.busy_s for d in summary.devices.values()], done - ready),
    }


def _compared(base: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """Speed-up, efficiency and Amdahl's prediction against one device."""
    from evenload.balance.metrics import amdahl, speed_up

    n, whole = row["n_devices"], base["start_s"] + base["work_s"]
    faster = speed_up(base["work_s"], row["work_s"])
    return {
        "speed_up": faster,
        "efficiency": faster / n,
        "speed_up_with_start": speed_up(whole, row["start_s"] + row["work_s"]),
        "amdahl_with_start": amdahl(base["work_s"] / whole, n),
    }
