"""Merkle trees: vector kernels, WGSL and hashlib in one run, and a large tree over worker processes.

    python benchmarks/merkle.py [trees|devices] [--leaves N]

trees    100,000 leaves, and 131,072 with WGSL; writes results/merkle.json. CPU milliseconds of the thread, or
         of the process where a driver has threads; the least of several rounds in which all take turns.
devices  10 million leaves over one and over two workers; writes results/merkle_devices.json. Beside wall time
         stands what the workers' CPU time allows: on a busy machine, wall time says little about us.
"""

import argparse
import ctypes
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import record

from evenload.balance.metrics import amdahl
from evenload.cli.bench.measure.merkle import leaf_blocks, plain_root, time_roots, written_leaves
from evenload.cli.bench.measure.timing import least_in_turns
from evenload.devices import DevicePool
from evenload.errors import MissingExtra, NoUsableDevice
from evenload.gpu.llvm import program
from evenload.gpu.llvm.hash import hash_kernels
from evenload.merkle import MerkleTree, Scheme, StandardTree, make_engine
from evenload.merkle.cpu_engine import CpuEngine
from evenload.merkle.scheme import written_name
from evenload.native import machine

# scheme -> (hash of a leaf, hash of a pair), if not those of RFC 6962. hashlib has SHA3-256 and not
# Keccak-256, which differs in one byte of padding.
HASHLIB = {
    "rfc6962": (),
    "bitcoin": (bytes, lambda pair: hashlib.sha256(hashlib.sha256(pair).digest()).digest()),
    "blake2s": (lambda leaf: hashlib.blake2s(leaf).digest(), lambda pair: hashlib.blake2s(pair).digest()),
    "openzeppelin": (
        lambda leaf: hashlib.sha3_256(hashlib.sha3_256(leaf).digest()).digest(),
        lambda pair: hashlib.sha3_256(pair).digest(),
    ),
}
Times = dict[str, tuple[float, float]]
LEVELS: dict[str, int | str] = {"AVX-512": 512, "SHA-NI": "sha", "AVX2": 256, "SSE": 128}


def engine_for(scheme: str, level: int | str) -> CpuEngine:
    """One thread, with the kernels that a processor of this level gets: shipped, but for SSE's."""
    engine = CpuEngine(Scheme(written_name(scheme)), threads=1)
    rule = engine.scheme.rule
    engine._kernels = compiled_for_sse(rule) if level == 128 else hash_kernels.hash_program(rule, level)
    return engine


def compiled_for_sse(rule: str) -> program.Program:
    """For a processor without AVX, so that nothing newer is used than that has."""
    target = machine.binding().Target.from_default_triple()
    old = target.create_target_machine(cpu="x86-64-v2", opt=2, codemodel="jitdefault", jit=True)
    jit = machine.loaded(machine.compile_ir(hash_kernels.hash_ir(rule, 128), old))
    kernels = {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)(jit.get_function_address(name))
        for name, n in hash_kernels.kernels_of(rule).items()
    }
    return program.Program(rule, kernels, False, jit)


def is_possible(scheme: str, level: int | str) -> bool:
    if isinstance(level, int):
        return level <= hash_kernels.vector_bits()
    return scheme in hash_kernels.SHA_RULES and "sha" in machine.host_features()


def rows_of(n: int) -> np.ndarray:
    return np.concatenate(list(leaf_blocks(n)))


def tree_root(scheme: str, rows: np.ndarray, engine: Any) -> bytes:
    return (StandardTree if scheme == "openzeppelin" else MerkleTree)(rows, engine=engine).root


def measure(contestants: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> Times:
    """Least (CPU, wall) milliseconds of each; they take turns, after one round that nobody counts."""
    best = least_in_turns(contestants, rounds, cpu_clock=clock)
    return {name: (one.cpu_s * 1e3, one.wall_s * 1e3) for name, one in best.items()}


def trees(n: int) -> None:
    rows, table = rows_of(n), []
    content = rows.tobytes()
    for scheme in ("rfc6962", "bitcoin", "blake2s", "openzeppelin"):
        contestants: dict[str, Callable[[], object]] = {}
        for name, level in LEVELS.items():
            if is_possible(scheme, level):
                engine = engine_for(scheme, level)
                contestants[name] = lambda e=engine, s=scheme: tree_root(s, rows, e)
        contestants["hashlib"] = lambda s=scheme: plain_root(content, *HASHLIB[s])
        if scheme == "rfc6962":
            assert len({work() for work in contestants.values()}) == 1
        table += table_rows(scheme, n, measure(contestants, 8, time.thread_time), "hashlib")
    table += poseidon(1 << 14)
    table += wgsl(1 << 17)
    record("merkle", table)


def poseidon(n: int) -> list[dict[str, Any]]:
    """Vector kernel beside plain Python, which gets fewer leaves and is scaled up."""
    rows, engine = rows_of(n), make_engine(Scheme("poseidon"), threads=1)
    best = measure({"vector": lambda: tree_root("poseidon", rows, engine)}, 3, time.thread_time)
    pair, few = Scheme("poseidon").hash_pair, 64
    plain = measure({"plain": lambda: [pair(bytes(32), bytes(32)) for _ in range(few)]}, 3, time.thread_time)
    cpu_ms, wall_ms = plain["plain"]
    best["Python integers"] = cpu_ms * (n - 1) / few, wall_ms * (n - 1) / few
    return table_rows("poseidon", n, best, "Python integers")


def wgsl(n: int) -> list[dict[str, Any]]:
    """The root of ``n`` leaves by WGSL, upload included, beside hashlib."""
    try:
        from evenload.gpu.wgsl.context import Context

        context = Context()
    except (MissingExtra, NoUsableDevice) as error:
        print(f"no WGSL: {error}")
        return []
    from evenload.merkle.wgsl_engine import WgslEngine

    rows, table = rows_of(n), []
    content, height = rows.tobytes(), n.bit_length() - 1
    for scheme in ("rfc6962", "bitcoin", "blake2s"):
        kind = Scheme(written_name(scheme))
        engine = WgslEngine(kind, context=context)
        assert engine.subtree_roots(rows, height)[0].tobytes() == MerkleTree(rows, scheme=kind).root
        name = f"WGSL, {context.name}"
        contestants = {
            name: lambda e=engine: e.subtree_roots(rows, height),
            "hashlib": lambda s=scheme: plain_root(content, *HASHLIB[s]),
        }
        table += table_rows(scheme, n, measure(contestants, 5, time.process_time), "hashlib")
    return table


def table_rows(scheme: str, n: int, best: Times, peer: str) -> list[dict[str, Any]]:
    return [
        {
            "scheme": scheme,
            "by": name,
            "leaves": n,
            "cpu_ms": round(cpu_ms, 2),
            "wall_ms": round(wall_ms, 2),
            "ns_per_leaf": round(cpu_ms * 1e6 / n, 1),
            "times_faster": round(best[peer][0] / cpu_ms, 1),
        }
        for name, (cpu_ms, wall_ms) in best.items()
    ]


def devices(n: int) -> None:
    """One slot of a split processor, then both: the same threads per worker."""
    table = []
    with written_leaves(n, "/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        pool = DevicePool.discover().select(f"cpu*{max(2, min(os.cpu_count() or 1, 8))}")
        for scheme in ("rfc6962", "blake2s"):
            for strategy in ("measured", "proportional"):
                pair = [run_on(pool, k, path, scheme, strategy) for k in sorted({1, 2, len(pool)})]
                table += [compared(pair[0], row) for row in pair]
    record("merkle_devices", table)


def run_on(pool: DevicePool, k: int, path: Path, scheme: str, strategy: str) -> dict[str, Any]:
    """The best of three runs, workers warm."""
    times = time_roots(pool.select(tuple(pool)[:k]), path, written_name(scheme), strategy, 3)
    best = min(times, key=lambda one: one.wall_s)
    return {
        "scheme": scheme,
        "strategy": strategy,
        "leaves": best.done.size,
        "workers": k,
        "wall_s": round(best.wall_s, 3),
        "parent_cpu_s": round(min(one.parent_cpu_s for one in times), 3),
        "busiest_cpu_s": round(min(max(one.worker_cpu_s, default=0.0) for one in times), 3),
        "all_cpu_s": round(min(sum(one.worker_cpu_s) for one in times), 3),
        "ratio_to_bound": round(best.done.parts.ratio_to_bound or 1.0, 3),
    }


def compared(base: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """``by_cpu``: the speed-up that idle cores would give, the parent's share counted as serial."""
    serial = base["parent_cpu_s"] + base["busiest_cpu_s"]
    share = base["busiest_cpu_s"] / serial
    return row | {
        "by_wall": round(base["wall_s"] / row["wall_s"], 2),
        "by_cpu": round(serial / (row["parent_cpu_s"] + row["busiest_cpu_s"]), 2),
        "amdahl": round(amdahl(share, row["workers"]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=["trees", "devices"])
    parser.add_argument("--leaves", type=int)
    given = parser.parse_args()
    if given.part in (None, "trees"):
        trees(given.leaves or 100_000)
    if given.part in (None, "devices"):
        devices(given.leaves or 10_000_000)


if __name__ == "__main__":
    main()
