"""Whole Groth16 proofs: CPU seconds of evenload, verification included, and of its peers in the same run.

    python benchmarks/zk_prove.py [--large] [--only NAME] [--backend wgsl] [--rapidsnark PATH]
    python benchmarks/zk_prove.py --level all [--only NAME] [--rapidsnark PATH]      see zk_levels.py

Circuits and keys are ours (INSECURE set-up), made on the way into a temporary folder. evenload is measured in
a process of its own: the key's load, the first proof and the better of two after it; one thread, or with
``--backend wgsl`` the threads of the driver. snarkjs (found in ./node_modules) and rapidsnark (a ``prover``
that you have built) are a process per proof, as their users run them; snarkjs is left out of a million
constraints, where it takes minutes, and rapidsnark beside WGSL. CPU seconds are user + system time of the
process. snarkjs must accept our proof, and we accept rapidsnark's, or there is no table.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zk_levels
from cpu_clock import ended_children_cpu_s
from record import record

CIRCUITS = {
    "poseidon depth 42": ("poseidon", 42),
    "sha256 1 block": ("sha256", 55),
    "sha256 2 blocks": ("sha256", 100),
    "chain 129k": ("chain", 129_250),
    "sha256 9 blocks": ("sha256", 540),
}
LARGE = {"chain 1M": ("chain", 1_000_000)}
ON_WGSL = {
    "chain 16k": ("chain", 16_000),
    "poseidon depth 42": ("poseidon", 42),
    "sha256 1 block": ("sha256", 55),
    "chain 65k": ("chain", 65_000),
}
SNARKJS = Path(__file__).parent.parent / "node_modules" / "snarkjs" / "build" / "cli.cjs"


def measure_one(key: Path, witness: Path, backend: str) -> dict[str, Any]:
    """In this process: CPU seconds of load and proofs, least wall seconds, peak resident memory."""
    from evenload.gpu.llvm import programs
    from evenload.zk import Prover

    programs.scalar(), programs.bulk()  # compiled and cached beforehand
    started = time.process_time()
    prover = Prover(key, backend=backend)
    loaded = time.process_time()
    proofs, walls, done = [], [], None
    for _ in range(3):
        before, began = time.process_time(), time.perf_counter()
        done = prover.prove(witness)
        proofs.append(time.process_time() - before)
        walls.append(time.perf_counter() - began)
    assert done is not None
    assert not prover.stats.n_redone, "a proof did not verify at once"
    gpu = prover.key.bases["A"].device if backend == "wgsl" else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stages = {name: round(seconds, 4) for name, seconds in done.stages.items()}
    return {
        "load": loaded - started,
        "first": proofs[0],
        "best": min(proofs[1:]),
        "wall": min(walls[1:]),
        "rss_mb": peak,
        "longest": gpu and gpu.pace.longest_s * 1e3,
        "adapter": gpu and gpu.context.name,
        "stages": stages,
    }


def child_seconds(command: list[str], environment: Mapping[str, str] = os.environ) -> float | None:
    before = ended_children_cpu_s()
    # rapidsnark's threads would wait for each other at full speed, which is no work of theirs.
    environment = {**environment, "OMP_WAIT_POLICY": "passive"}
    if subprocess.run(command, capture_output=True, env=environment).returncode:
        return None
    return ended_children_cpu_s() - before


def process_seconds(folder: Path) -> tuple[float, float]:
    """(CPU, wall) seconds of ``evenload zk prove`` with a key that was used before: a process of its own,
    interpreter and imports included; the least of two."""
    key, witness = folder / "k.zkey", folder / "witness.wtns"
    command = [
        sys.executable,
        "-m",
        "evenload",
        "zk",
        "prove",
        str(key),
        str(witness),
        "-q",
        "-o",
        str(folder),
    ]
    found = []
    for _ in range(3):
        started = time.perf_counter()
        seconds = child_seconds(command)
        assert seconds is not None
        found.append((seconds, time.perf_counter() - started))
    return min(cpu for cpu, _ in found[1:]), min(wall for _, wall in found[1:])


def make(folder: Path, kind: str, size: int) -> float:
    """Circuit, witness and key; CPU seconds of the set-up."""
    tool = [sys.executable, "-m", "evenload", "zk"]
    subprocess.run(
        [*tool, "circuit", kind, "--size", str(size), "-o", str(folder)], check=True, capture_output=True
    )
    seconds = child_seconds(
        [*tool, "devsetup", str(folder / "circuit.r1cs"), "-o", str(folder / "k.zkey"), "-q"]
    )
    assert seconds is not None
    return seconds


def snarkjs_seconds(cli: str | None, folder: Path) -> float | None:
    """Proves, and checks that snarkjs accepts our proof."""
    if not cli:
        return None
    files = [str(folder / name) for name in ("k.zkey", "witness.wtns", "p.json", "pub.json")]
    seconds = child_seconds(["node", "--max-old-space-size=8192", cli, "groth16", "prove", *files])
    if seconds is None:
        raise SystemExit("snarkjs made no proof")
    tool = [sys.executable, "-m", "evenload"]
    subprocess.run(
        [*tool, "zk", "prove", files[0], files[1], "-o", str(folder)], check=True, capture_output=True
    )
    subprocess.run(
        [*tool, "zk", "vkey", files[0], "-o", str(folder / "v.json")], check=True, capture_output=True
    )
    ours = [str(folder / name) for name in ("v.json", "witness.public.json", "witness.proof.json")]
    if child_seconds(["node", cli, "groth16", "verify", *ours]) is None:
        raise SystemExit("snarkjs refuses our proof")
    return seconds


def rapidsnark_seconds(prover: str | None, folder: Path) -> float | None:
    """Proves, and checks that we accept its proof."""
    if not prover:
        return None
    files = [str(folder / name) for name in ("k.zkey", "witness.wtns", "p.json", "pub.json")]
    seconds = child_seconds([prover, *files])
    ours = [sys.executable, "-m", "evenload", "zk", "verify", files[0], files[3], files[2]]
    if child_seconds(ours) is None:
        raise SystemExit("we refuse the proof of rapidsnark")
    return seconds


def measure(
    kind: str, size: int, backend: str, snarkjs: str | None, rapidsnark: str | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        key, witness = folder / "k.zkey", folder / "witness.wtns"
        setup = make(folder, kind, size)
        command = [sys.executable, __file__, "--backend", backend, "--one", str(key), str(witness)]
        ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        process = process_seconds(folder) if backend == "cpu" else None
        peers = {
            "snarkjs": snarkjs_seconds(snarkjs, folder),
            "rapidsnark": rapidsnark_seconds(rapidsnark, folder),
        }
        facts = facts_of(key)
    row: dict[str, Any] = {"domain": facts["domain"], "set-up": setup, "key load": ours["load"]}
    row |= {
        "first proof": ours["first"],
        "proof": ours["best"],
        "wall": ours["wall"],
        "RSS MB": ours["rss_mb"],
    }
    if backend == "wgsl":
        row["longest dispatch, ms"] = ours["longest"]
    if process:
        row["process"], row["process wall"] = process
    for name, seconds in peers.items():
        row[name] = seconds
        row[f"{name}/process"] = seconds and process and seconds / process[0]
        row[f"{name}/proof"] = seconds and seconds / ours["best"]
        row[f"{name}/(load+first)"] = seconds and seconds / (ours["load"] + ours["first"])
    return {"row": row, "stages": ours["stages"], "adapter": ours["adapter"]}


def measure_levels(only: str | None, snarkjs: str | None, rapidsnark: str | None) -> None:
    """Write a row for each circuit and level."""
    rows = []
    for name, (kind, size) in zk_levels.CIRCUITS.items():
        if only and only not in name:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            make(folder, kind, size)
            domain = facts_of(folder / "k.zkey")["domain"]
            found = zk_levels.measure(
                folder,
                child_seconds,
                lambda folder: rapidsnark_seconds(rapidsnark, folder),
                lambda folder: snarkjs_seconds(snarkjs, folder),
            )
        rows += [{"circuit": name, "domain": domain, **row} for row in found]
        print(*rows[-len(found) :], sep="\n", file=sys.stderr, flush=True)
    name = "zk_levels" + (f"_{only.replace(' ', '_')}" if only else "")
    record(name, rows, unit="CPU seconds, proof verified; the least of all rounds", rounds=zk_levels.ROUNDS)


def facts_of(key: Path) -> dict[str, Any]:
    tool = [sys.executable, "-m", "evenload", "zk", "info", str(key), "--json"]
    return json.loads(subprocess.run(tool, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--large", action="store_true", help="a million constraints, too")
    options.add_argument("--snarkjs", default=os.environ.get("EVENLOAD_SNARKJS") or SNARKJS)
    options.add_argument("--rapidsnark", default=os.environ.get("EVENLOAD_RAPIDSNARK"))
    options.add_argument("--backend", default="cpu", choices=("cpu", "wgsl"))
    options.add_argument("--level", choices=("all",), help="every level that this processor can run")
    options.add_argument("--only", help="names that contain this")
    options.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure_one(*given.one, given.backend)))
        return
    snarkjs = str(given.snarkjs) if Path(given.snarkjs).exists() else None
    if given.level:
        measure_levels(given.only, snarkjs, given.rapidsnark)
        return
    circuits = ON_WGSL if given.backend == "wgsl" else CIRCUITS | (LARGE if given.large else {})
    rows, stages, adapter = [], {}, None
    for name, (kind, size) in circuits.items():
        if given.only and given.only not in name:
            continue
        rapidsnark = None if given.backend == "wgsl" else given.rapidsnark
        done = measure(kind, size, given.backend, None if name in LARGE else snarkjs, rapidsnark)
        stages[name], adapter = done["stages"], done["adapter"]
        rows.append({"circuit": name, **done["row"]})
        print(rows[-1], file=sys.stderr, flush=True)
    name = "zk_prove" if given.backend == "cpu" else "zk_wgsl"
    name += f"_{given.only.replace(' ', '_')}" if given.only else ""
    record(name, rows, unit="CPU seconds, proof verified", adapter=adapter, stages_wall_s=stages)


if __name__ == "__main__":
    main()
