"""Batches of Groth16 proofs on devices, each proof verified."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload.cli.bench.measure.trial_report import (
    BenchOptions,
    Row,
    TrialReport,
    compare_selections,
    compare_with_first,
    device_row,
)

if TYPE_CHECKING:
    from evenload.devices import DevicePool


def prove(options: BenchOptions) -> TrialReport:
    """A batch of proofs on each selection; each is verified."""
    from evenload.devices import DevicePool

    constraints, n_proofs = (2_000, 4) if options.is_quick else (20_000, 16)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        key, witness = make_circuit(Path(folder), constraints)
        for spec in options.specs:
            row = time_proofs(DevicePool.find(spec), key, [str(witness)] * n_proofs, "measured")
            names = ("n_devices", "work_s", "ratio_to_bound", "utilisation_std")
            rows.append(device_row(spec, *(row[name] for name in names), per_s=row["proofs_per_s"]))
    note = f"{n_proofs} proofs of {constraints:,} constraints, workers warm; per_s: proofs, each verified."
    return TrialReport("prove", "", compare_with_first(rows), note)


def make_circuit(folder: Path, constraints: int) -> tuple[Path, Path]:
    """Write an INSECURE key for a chain of squarings, and its witness; return both paths."""
    from evenload.zk.circuits import squaring_chain
    from evenload.zk.devsetup import dev_setup
    from evenload.zk.formats.witness import witness_from_integers, write_witness
    from evenload.zk.formats.zkey import write_zkey

    circuit, witness = squaring_chain(constraints)
    write_zkey(folder / "circuit.zkey", dev_setup(circuit))
    write_witness(folder / "witness.wtns", witness_from_integers(witness))
    return folder / "circuit.zkey", folder / "witness.wtns"


def time_proofs(pool: "DevicePool", zkey: Path, witnesses: list[str], policy: str) -> dict[str, Any]:
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


def compare_batches(specs: Sequence[str], zkey: Path, witnesses: list[str], policy: str) -> list[Row]:
    """For every selection a row for its first device and one for all of it, compared."""
    return compare_selections(specs, lambda pool: time_proofs(pool, zkey, witnesses, policy), _compare)


def _compare(base: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """Speed-up, efficiency and Amdahl's prediction against one device; the start does not get faster."""
    from evenload.balance.metrics import amdahl, speed_up

    n, whole = row["n_devices"], base["start_s"] + base["work_s"]
    faster = speed_up(base["work_s"], row["work_s"])
    return {
        "speed_up": faster,
        "efficiency": faster / n,
        "speed_up_with_start": speed_up(whole, row["start_s"] + row["work_s"]),
        "amdahl_with_start": amdahl(base["work_s"] / whole, n),
    }
