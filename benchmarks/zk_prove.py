"""Whole Groth16 proofs: CPU seconds of evenload, verification included, and of its peers in the same run.

    python benchmarks/zk_prove.py [--large] [--only NAME] [--backend wgsl] [--rapidsnark PATH]
    python benchmarks/zk_prove.py --level all [--only NAME] [--rapidsnark PATH]

Circuits and keys are ours (INSECURE set-up), made on the way into a temporary folder. evenload is measured in
a process of its own: the key's load, the first proof and the better of two after it; one thread, or with
``--backend wgsl`` the threads of the driver. snarkjs (found in ./node_modules) and rapidsnark (a ``prover``
that you have built) are a process per proof, as their users run them; snarkjs is left out of a million
constraints, where it takes minutes, and rapidsnark beside WGSL. CPU seconds are user + system time of the
process. snarkjs must accept our proof, and we accept rapidsnark's, or there is no table.

With ``--level all`` every instruction level of this processor is measured as on processors that have no
better one: ``EVENLOAD_PROCESSOR`` hides the rest from all kernels, not from the peers. Of each level there
is a process that keeps its key and proves when it is told to; in each round every one of them, a whole
``evenload zk prove`` at every level and rapidsnark have one turn, and the least CPU seconds count. snarkjs
has a single turn.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
AT_LEVELS = ("poseidon depth 42", "sha256 1 block", "sha256 9 blocks")
ROUNDS = 2
PROCESSORS = {  # level: (EVENLOAD_PROCESSOR, words)
    "ifma52": ("x86-64-v4+avx512ifma", "AVX-512 IFMA (Ice Lake, Zen 4 and later)"),
    "fma52x8": ("x86-64-v4", "AVX-512 without IFMA (Skylake-X, Cascade Lake)"),
    "fma52x4": ("x86-64-v3", "AVX2 and FMA (Haswell, Zen 1 and later)"),
    "word64": ("x86-64-v3", "any, 64-bit multiplications alone"),
}
TOOL = [sys.executable, "-m", "evenload", "zk"]
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


def must(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def process_seconds(
    folder: Path, *more: str, environment: Mapping[str, str] = os.environ
) -> tuple[float, float]:
    """(CPU, wall) seconds of ``evenload zk prove`` as a process, interpreter and imports included."""
    command = [*TOOL, "prove", f"{folder}/k.zkey", f"{folder}/witness.wtns", *more, "-q", "-o", str(folder)]
    started = time.perf_counter()
    seconds = child_seconds(command, environment)
    assert seconds is not None
    return seconds, time.perf_counter() - started


@contextmanager
def made(kind: str, size: int) -> Iterator[tuple[Path, float, int]]:
    """A folder with circuit, witness and key; CPU seconds of the set-up; the domain."""
    with tempfile.TemporaryDirectory() as name:
        must([*TOOL, "circuit", kind, "--size", str(size), "-o", name])
        seconds = child_seconds([*TOOL, "devsetup", f"{name}/circuit.r1cs", "-o", f"{name}/k.zkey", "-q"])
        assert seconds is not None
        yield Path(name), seconds, json.loads(must([*TOOL, "info", f"{name}/k.zkey", "--json"]))["domain"]


def snarkjs_seconds(cli: str | None, folder: Path) -> float | None:
    """Proves, and checks that snarkjs accepts our proof."""
    if not cli:
        return None
    files = [str(folder / name) for name in ("k.zkey", "witness.wtns", "p.json", "pub.json")]
    seconds = child_seconds(["node", "--max-old-space-size=8192", cli, "groth16", "prove", *files])
    if seconds is None:
        raise SystemExit("snarkjs made no proof")
    must([*TOOL, "prove", files[0], files[1], "-o", str(folder)])
    must([*TOOL, "vkey", files[0], "-o", str(folder / "v.json")])
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
    if child_seconds([*TOOL, "verify", files[0], files[3], files[2]]) is None:
        raise SystemExit("we refuse the proof of rapidsnark")
    return seconds


def beside(peer: str, seconds: float | None, **ours: float | None) -> dict[str, float | None]:
    """A peer's seconds, and over each of ours."""
    return {peer: seconds} | {f"{peer}/{name}": seconds and s and seconds / s for name, s in ours.items()}


def measure(
    kind: str, size: int, backend: str, snarkjs: str | None, rapidsnark: str | None
) -> dict[str, Any]:
    with made(kind, size) as (folder, setup, domain):
        own = [sys.executable, __file__, "--backend", backend, "--one", f"{folder}/k.zkey"]
        ours = json.loads(must([*own, f"{folder}/witness.wtns"]))
        runs = [process_seconds(folder) for _ in range(3 if backend == "cpu" else 0)][1:]
        peers = {
            "snarkjs": snarkjs_seconds(snarkjs, folder),
            "rapidsnark": rapidsnark_seconds(rapidsnark, folder),
        }
    row: dict[str, Any] = {"domain": domain, "set-up": setup, "key load": ours["load"]}
    row |= {"first proof": ours["first"], "proof": ours["best"], "wall": ours["wall"]}
    row["RSS MB"] = ours["rss_mb"]
    if backend == "wgsl":
        row["longest dispatch, ms"] = ours["longest"]
    process, wall = map(min, zip(*runs, strict=True)) if runs else (None, None)
    row |= {"process": process, "process wall": wall} if runs else {}
    begun = {"(load+first)": ours["load"] + ours["first"]}
    for peer, seconds in peers.items():
        row |= beside(peer, seconds, process=process, proof=ours["best"], **begun)
    return {"row": row, "stages": ours["stages"], "adapter": ours["adapter"]}


class Kept:
    """A process that keeps a key at one level; ``turn()`` is the CPU seconds of one proof in it."""

    def __init__(self, level: str, folder: Path):
        command = [sys.executable, __file__, "--kept", level, f"{folder}/k.zkey", f"{folder}/witness.wtns"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=forced(level)
        )

    def turn(self) -> float:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("prove\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def forced(level: str) -> dict[str, str]:
    return {**os.environ, "EVENLOAD_PROCESSOR": PROCESSORS[level][0]}


def prove_when_told(level: str, key: str, witness: str) -> None:
    """What a ``Kept`` process does."""
    from evenload.zk import Prover

    with Prover(key, level=level) as prover:
        prover.prove(witness)  # the first one fills buffers
        for _ in sys.stdin:
            before = time.process_time()
            prover.prove(witness)
            print(time.process_time() - before, flush=True)
        assert not prover.stats.n_redone, "a proof did not verify at once"


def measure_levels(folder: Path, snarkjs: str | None, rapidsnark: str | None) -> Iterator[dict[str, Any]]:
    """A row for each level."""
    from evenload.gpu.llvm.programs import levels_here

    kept = {level: Kept(level, folder) for level in levels_here() if level in PROCESSORS}
    found: dict[str, list[tuple[float, ...]]] = {level: [] for level in kept}
    by_rapidsnark: list[float | None] = []
    for level in kept:  # so that each key is one that was used before
        process_seconds(folder, "--level", level, environment=forced(level))
    for _ in range(ROUNDS):
        for level, one in kept.items():
            whole = process_seconds(folder, "--level", level, environment=forced(level))
            found[level].append((one.turn(), *whole))
        by_rapidsnark.append(rapidsnark_seconds(rapidsnark, folder))
    peers = {"rapidsnark": min(filter(None, by_rapidsnark), default=None)}
    peers["snarkjs"] = snarkjs_seconds(snarkjs, folder)
    for level, one in kept.items():
        one.close()
        proof, process, wall = map(min, zip(*found[level], strict=True))
        row: dict[str, Any] = {"level": level, "processors": PROCESSORS[level][1], "proof": proof}
        row |= {"process": process, "process wall": wall}
        for peer, seconds in peers.items():
            row |= beside(peer, seconds, proof=proof, process=process)
        yield row


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--large", action="store_true", help="a million constraints, too")
    options.add_argument("--snarkjs", default=os.environ.get("EVENLOAD_SNARKJS") or SNARKJS)
    options.add_argument("--rapidsnark", default=os.environ.get("EVENLOAD_RAPIDSNARK"))
    options.add_argument("--backend", default="cpu", choices=("cpu", "wgsl"))
    options.add_argument("--level", choices=("all",), help="every level that this processor can run")
    options.add_argument("--only", help="names that contain this")
    options.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    options.add_argument("--kept", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure_one(*given.one, given.backend)))
        return
    if given.kept:
        prove_when_told(*given.kept)
        return
    snarkjs = str(given.snarkjs) if Path(given.snarkjs).exists() else None
    circuits = ON_WGSL if given.backend == "wgsl" else CIRCUITS | (LARGE if given.large else {})
    circuits = {name: CIRCUITS[name] for name in AT_LEVELS} if given.level else circuits
    rows, facts = [], {"adapter": None, "stages_wall_s": {}}
    for name, (kind, size) in circuits.items():
        if given.only and given.only not in name:
            continue
        if given.level:
            with made(kind, size) as (folder, _, domain):
                found = measure_levels(folder, snarkjs, given.rapidsnark)
                rows += [{"circuit": name, "domain": domain, **row} for row in found]
        else:
            rapidsnark = None if given.backend == "wgsl" else given.rapidsnark
            done = measure(kind, size, given.backend, None if name in LARGE else snarkjs, rapidsnark)
            facts["stages_wall_s"][name], facts["adapter"] = done["stages"], done["adapter"]
            rows.append({"circuit": name, **done["row"]})
        print(rows[-1], file=sys.stderr, flush=True)
    name = "zk_levels" if given.level else "zk_prove" if given.backend == "cpu" else "zk_wgsl"
    name += f"_{given.only.replace(' ', '_')}" if given.only else ""
    unit = "CPU seconds, proof verified"
    if given.level:
        record(name, rows, unit=f"{unit}; the least of all rounds", rounds=ROUNDS)
    else:
        record(name, rows, unit=unit, **facts)


if __name__ == "__main__":
    main()
