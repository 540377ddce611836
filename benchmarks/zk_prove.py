"""Whole Groth16 proofs: CPU seconds of evenload, self-verification included, and of snarkjs in the same run.

    python benchmarks/zk_prove.py [--large] [--snarkjs node_modules/snarkjs/build/cli.cjs]

Circuits and keys are ours (INSECURE set-up), made on the way into a temporary folder. evenload is measured in
a process of its own, one thread: the key's load, the first proof and the best of three after it. snarkjs is a
process per proof, as its users run it. CPU seconds are user + system time of the process.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import record

CIRCUITS = {
    "poseidon depth 42": ("poseidon", 42),
    "sha256 1 block": ("sha256", 55),
    "sha256 2 blocks": ("sha256", 100),
    "chain 129k": ("chain", 129_250),
    "sha256 9 blocks": ("sha256", 540),
}
LARGE = {"chain 1M": ("chain", 1_000_000)}


def measure_one(key: Path, witness: Path) -> dict[str, float]:
    """In this process: CPU seconds of load and proofs, peak resident memory."""
    from evenload.gpu.llvm import programs
    from evenload.zk import Prover

    programs.scalar(), programs.bulk()  # compiled and cached beforehand
    started = time.process_time()
    prover = Prover(key)
    loaded = time.process_time()
    proofs, done = [], None
    for _ in range(4):
        before = time.process_time()
        done = prover.prove(witness)
        proofs.append(time.process_time() - before)
    assert done is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stages = {name: round(seconds, 4) for name, seconds in done.stages.items()}
    return {
        "load": loaded - started,
        "first": proofs[0],
        "best": min(proofs[1:]),
        "rss_mb": peak,
        "stages": stages,
    }


def child_seconds(command: list[str]) -> float | None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if subprocess.run(command, capture_output=True).returncode:
        return None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    tool = [sys.executable, "-m", "evenload"]
    subprocess.run([*tool, "prove", files[0], files[1], "-o", str(folder)], check=True, capture_output=True)
    subprocess.run(
        [*tool, "zk", "vkey", files[0], "-o", str(folder / "v.json")], check=True, capture_output=True
    )
    ours = [str(folder / name) for name in ("v.json", "witness.public.json", "witness.proof.json")]
    if child_seconds(["node", cli, "groth16", "verify", *ours]) is None:
        raise SystemExit("snarkjs refuses our proof")
    return seconds


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--large", action="store_true", help="a million constraints, too")
    options.add_argument("--snarkjs", default=os.environ.get("EVENLOAD_SNARKJS"))
    options.add_argument("--only", help="names that contain this")
    options.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure_one(*given.one)))
        return
    rows, stages = [], {}
    for name, (kind, size) in (CIRCUITS | (LARGE if given.large else {})).items():
        if given.only and given.only not in name:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            setup = make(folder, kind, size)
            command = [
                sys.executable,
                __file__,
                "--one",
                str(folder / "k.zkey"),
                str(folder / "witness.wtns"),
            ]
            ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            theirs = snarkjs_seconds(given.snarkjs, folder)
            facts = subprocess.run(
                [sys.executable, "-m", "evenload", "zk", "info", str(folder / "k.zkey"), "--json"],
                check=True,
                capture_output=True,
                text=True,
            )
            domain = json.loads(facts.stdout)["domain"]
        stages[name] = ours["stages"]
        rows.append(
            {
                "circuit": name,
                "domain": domain,
                "set-up": setup,
                "key load": ours["load"],
                "first proof": ours["first"],
                "proof": ours["best"],
                "RSS MB": ours["rss_mb"],
                "snarkjs": theirs,
                "snarkjs/proof": theirs and theirs / ours["best"],
                "snarkjs/(load+proof)": theirs and theirs / (ours["load"] + ours["first"]),
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    name = "zk_prove" + (f"_{given.only.replace(' ', '_')}" if given.only else "")
    record(name, rows, unit="CPU seconds, one thread, proof verified", stages_wall_s=stages)


if __name__ == "__main__":
    main()
