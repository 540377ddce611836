"""Part ``wgsl``: trees, sums, transforms and whole proofs through Vulkan, beside the CPU's kernels.

Both sides run in this process on the same input and must give the same bytes; wall seconds, the least of
several rounds in which they take turns. The CPU has all its threads, and one.
"""

import functools
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from part import NotHere, Part, main

LEAVES = ((100_000, 1_000_000), (10_000_000,))  # first, and if there is time
LOG_POINTS = ((16, 18, 20), (22,))
LOG_VALUES = ((16, 18, 20), (22,))
CHAIN = ((16_000, 65_000), (250_000,))
TINY = {"leaves": ((1_000,), ()), "points": ((8,), ()), "values": ((6,), ()), "chain": ((20,), ())}
REAL = {"leaves": LEAVES, "points": LOG_POINTS, "values": LOG_VALUES, "chain": CHAIN}
ROUNDS = 3
SCHEMES = ("rfc6962", "poseidon")
MOST_POSEIDON = 1_000_000  # leaves: the CPU needs half a minute for ten times as many
TOP = 0x30644E72E131A028  # scalars whose highest 64 bits are at most this are below r


def open_device(part: Part) -> Any:
    """The GPU through Vulkan. Raises NotHere without wgpu, without a loader, or where only software draws."""
    from evenload.errors import MissingExtra, NoUsableDevice
    from evenload.zk.wgsl_device import WgslDevice

    try:
        device = WgslDevice()
    except (MissingExtra, NoUsableDevice) as error:
        raise NotHere(str(error)) from error
    if device.context.is_software and not part.pretend:
        name = device.context.name
        device.close()
        raise NotHere(f"Vulkan has {name} alone, which is no GPU")
    part.note(f"Vulkan: {device.context.name}, arithmetic {device.variant}")
    return device


def compared(part: Part, what: str, works: dict[str, Callable[[], Any]], **facts: Any) -> None:
    """Time the contestants in turns, check that all give what "wgsl" gives, and add the row."""
    from evenload.cli.bench.measure.timing import least_in_turns

    best = least_in_turns(works, 1 if part.pretend else ROUNDS)
    found = {name: np.asarray(one.result).tobytes() for name, one in best.items()}
    figures = {f"{name}_s": one.wall_s for name, one in best.items()}
    part.row(
        what, **facts, **figures, x_cpu=best["cpu"].wall_s / best["wgsl"].wall_s,
        is_equal=len(set(found.values())) == 1,
    )  # fmt: skip
    if len(set(found.values())) > 1:
        raise RuntimeError(f"{what}: WGSL and the CPU differ")


def threads() -> int:
    return os.cpu_count() or 1


def tree(part: Part, device: Any, scheme: str, n: int) -> None:
    """The root of ``n`` leaves of 32 bytes, upload and download of all nodes included."""
    from evenload.merkle import MerkleTree, Scheme
    from evenload.merkle.cpu_engine import CpuEngine
    from evenload.merkle.wgsl_engine import WgslEngine

    leaves = np.random.default_rng(n).integers(0, 256, (n, 32), np.uint8)
    leaves[:, [0, 31]] &= 0x1F  # below Poseidon's modulus, whichever end is the highest
    engines = {
        "wgsl": WgslEngine(Scheme(scheme), context=device.context),
        "cpu": CpuEngine(Scheme(scheme), threads()),
        "cpu_one": CpuEngine(Scheme(scheme), 1),
    }

    def root(engine: Any) -> np.ndarray:
        return np.frombuffer(MerkleTree(leaves, scheme=scheme, engine=engine).root, np.uint8)

    works = {name: functools.partial(root, engine) for name, engine in engines.items()}
    compared(part, f"tree {scheme}", works, leaves=n)


def scalars(n: int) -> np.ndarray:
    """[n, 4] uint64 rows of random numbers below r."""
    from evenload.gpu.llvm import rows

    found = rows.empty(n, 32)
    dice = np.random.default_rng(n)
    found[:] = dice.integers(0, 1 << 64, (n, 4), np.uint64)
    found[:, 3] = dice.integers(0, TOP, n, np.uint64)
    return found


def distinct_points(n: int) -> np.ndarray:
    """[n, 8] rows of points of G1, none twice but by chance: each a sum of one of few and one of others."""
    from evenload.gpu.llvm import programs
    from evenload.zk.cpu import msm
    from evenload.zk.devsetup import _Multiples

    side = 1 << (n.bit_length() // 2)
    few = msm.Bases.load(_Multiples(1).of(scalars(2 * side)), 1, programs.best_level())
    at = np.arange(n, dtype=np.int32)
    index = np.stack([at % side, side + at // side], axis=1).reshape(-1)
    return msm.sum_groups(few, index, np.arange(0, 2 * n + 1, 2))


def multiplication(part: Part, device: Any, log_size: int) -> None:
    """The sum of 2^log_size multiples of points of G1 that lie on their device."""
    from evenload.gpu.llvm import programs
    from evenload.zk.cpu import msm
    from evenload.zk.wgsl.sums import WgslBases

    points, factors = distinct_points(1 << log_size), scalars(1 << log_size)
    on_gpu = WgslBases(device, msm.Bases.load(points.copy(), 1, "word64"))
    on_cpu = msm.Bases.load(points, 1, programs.best_level())
    with ThreadPoolExecutor(threads()) as pool:
        works = {
            "wgsl": lambda: on_gpu.multiply(factors),
            "cpu": lambda: msm.multiply(on_cpu, factors, pool.map),
            "cpu_one": lambda: msm.multiply(on_cpu, factors),
        }
        compared(part, "MSM G1", works, size=1 << log_size)


def transform(part: Part, device: Any, log_size: int) -> None:
    """Six transforms and three products: from values on a key's domain to the quotient on its odd coset."""
    from evenload.gpu.llvm import programs, rows
    from evenload.zk.cpu.ntt import Domain
    from evenload.zk.wgsl.key import WgslDomain

    size = 1 << log_size
    a, b = scalars(size), scalars(size)[::-1].copy()
    on_gpu, on_cpu = WgslDomain(device, size), Domain(size, programs.best_level())

    def by_cpu(run: Any) -> np.ndarray:
        c = rows.empty(size, 32)
        programs.scalar().multiply_rows(*map(rows.address, (a, b, c)), size)
        return on_cpu.quotient(a, b, c, run)

    with ThreadPoolExecutor(threads()) as pool:
        works = {
            "wgsl": lambda: on_gpu.quotient(a, b),
            "cpu": lambda: by_cpu(pool.map),
            "cpu_one": lambda: by_cpu(map),
        }
        compared(part, "quotient", works, size=size)


def proof(part: Part, device: Any, n: int) -> None:
    """Whole proofs of a chain of ``n`` squarings, verified; the key is loaded."""
    from evenload.cli.bench.measure.timing import least_in_turns
    from evenload.zk import Prover
    from evenload.zk.circuits import squaring_chain
    from evenload.zk.devsetup import dev_setup
    from evenload.zk.formats.zkey import write_zkey

    circuit, witness = squaring_chain(n)
    key = io.BytesIO()
    write_zkey(key, dev_setup(circuit))
    made: dict[str, Any] = {"wgsl": {"devices": device}, "cpu": {"threads": threads()}, "cpu_one": {}}
    provers = {name: Prover(key.getvalue(), **how) for name, how in made.items()}
    works = {name: functools.partial(prover.prove, witness) for name, prover in provers.items()}
    best = least_in_turns(works, 1 if part.pretend else ROUNDS)
    verifier = provers["cpu"].key.verifier
    is_valid = not any(verifier.why_not(one.result.public, one.result.proof) for one in best.values())
    part.row(
        "proof", size=provers["cpu"].key.domain.size,
        **{f"{name}_s": one.wall_s for name, one in best.items()},
        x_cpu=best["cpu"].wall_s / best["wgsl"].wall_s, is_equal=is_valid,
        key_load_s=provers["wgsl"].key.seconds, redone=sum(one.stats.n_redone for one in provers.values()),
    )  # fmt: skip
    for prover in provers.values():
        prover.close()


def pieces(pretend: bool) -> Iterator[tuple[str, Callable[[Part, Any], None]]]:
    """What is measured, by name: one of each kind first, what takes long last."""
    sizes = TINY if pretend else REAL
    for turn in range(2):
        for n in sizes["leaves"][turn]:
            for scheme in SCHEMES:
                if scheme != "poseidon" or n <= MOST_POSEIDON:
                    yield f"tree {scheme}, {n:,} leaves", functools.partial(tree, scheme=scheme, n=n)
        for log_size in sizes["points"][turn]:
            yield f"MSM 2^{log_size}", functools.partial(multiplication, log_size=log_size)
        for n in sizes["chain"][turn]:
            yield f"proof of {n:,} squarings", functools.partial(proof, n=n)
        for log_size in sizes["values"][turn]:
            yield f"quotient 2^{log_size}", functools.partial(transform, log_size=log_size)


def measure(part: Part) -> None:
    device = open_device(part)
    for what, piece in pieces(part.pretend):
        part.tried(what, lambda piece=piece: piece(part, device))
    device.close()


if __name__ == "__main__":
    main(measure)
