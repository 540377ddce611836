"""Proofs at every instruction level that this processor can run, beside rapidsnark and snarkjs, in turns.

    python benchmarks/zk_prove.py --level all [--rapidsnark PATH]

A level is measured as on processors that have no better one: ``EVENLOAD_PROCESSOR`` hides the rest of this
processor from all kernels, not from the peers. Of each level there is a process that keeps its key and proves
when it is told to; in each round every one of them, a whole ``evenload zk prove`` at every level and
rapidsnark have one turn, and the least CPU seconds of all rounds count. snarkjs has a single turn.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CIRCUITS = {
    "poseidon depth 42": ("poseidon", 42),
    "sha256 1 block": ("sha256", 55),
    "sha256 9 blocks": ("sha256", 540),
}
ROUNDS = 2
PROCESSORS = {  # level: (EVENLOAD_PROCESSOR, words)
    "ifma52": ("x86-64-v4+avx512ifma", "AVX-512 IFMA (Ice Lake, Zen 4 and later)"),
    "fma52x8": ("x86-64-v4", "AVX-512 without IFMA (Skylake-X, Cascade Lake)"),
    "fma52x4": ("x86-64-v3", "AVX2 and FMA (Haswell, Zen 1 and later)"),
    "word64": ("x86-64-v3", "any, 64-bit multiplications alone"),
}


class Kept:
    """A process that keeps a key at one level; ``turn()`` is the CPU seconds of one proof in it."""

    def __init__(self, level: str, key: Path, witness: Path):
        command = [sys.executable, __file__, level, str(key), str(witness)]
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


def prove_when_told(level: str, key: Path, witness: Path) -> None:
    """What a ``Kept`` process does."""
    from evenload.zk import Prover

    with Prover(key, level=level) as prover:
        prover.prove(witness)  # the first one fills buffers
        for _ in sys.stdin:
            before = time.process_time()
            prover.prove(witness)
            print(time.process_time() - before, flush=True)
        assert not prover.stats.n_redone, "a proof did not verify at once"


def measure(
    folder: Path,
    child_seconds: Callable[..., float | None],
    rapidsnark: Callable[[Path], float | None],
    snarkjs: Callable[[Path], float | None],
) -> list[dict[str, Any]]:
    """A row for each level. ``child_seconds(command, environment)`` runs a command, the peers a proof."""
    from evenload.gpu.llvm.programs import levels_here

    key, witness = folder / "k.zkey", folder / "witness.wtns"
    levels = [level for level in levels_here() if level in PROCESSORS]
    tool = [sys.executable, "-m", "evenload", "zk", "prove"]
    commands = {
        level: [*tool, str(key), str(witness), "--level", level, "-q", "-o", str(folder)] for level in levels
    }
    kept = {level: Kept(level, key, witness) for level in levels}
    found: dict[str, list[float]] = {}

    def turn(name: str, seconds: float | None) -> None:
        if seconds is not None:
            found.setdefault(name, []).append(seconds)

    for level in levels:  # so that each key is one that was used before
        child_seconds(commands[level], forced(level))
    for _ in range(ROUNDS):
        for level in levels:
            turn(f"{level} proof", kept[level].turn())
            started = time.perf_counter()
            turn(f"{level} process", child_seconds(commands[level], forced(level)))
            turn(f"{level} process wall", time.perf_counter() - started)
        turn("rapidsnark", rapidsnark(folder))
    turn("snarkjs", snarkjs(folder))
    for one in kept.values():
        one.close()
    least = {name: min(values) for name, values in found.items()}
    return [row_of(level, least) for level in levels]


def row_of(level: str, least: dict[str, float]) -> dict[str, Any]:
    """``least``: CPU seconds by what was measured."""
    row: dict[str, Any] = {"level": level, "processors": PROCESSORS[level][1]}
    row |= {name: least[f"{level} {name}"] for name in ("proof", "process", "process wall")}
    for peer in ("rapidsnark", "snarkjs"):
        seconds = row[peer] = least.get(peer)
        for ours in ("proof", "process"):
            row[f"{peer}/{ours}"] = seconds and seconds / row[ours]
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("level", choices=PROCESSORS)
    parser.add_argument("key", type=Path)
    parser.add_argument("witness", type=Path)
    prove_when_told(**vars(parser.parse_args()))
