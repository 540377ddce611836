"""The kernels under a proof: multi-scalar multiplication, transform, verification, field products. CPU time.

python benchmarks/zk_kernels.py [--level word64]
"""

import argparse
import functools
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from record import record

from evenload.cli.bench.measure.timing import least_time
from evenload.gpu.field import FR
from evenload.gpu.llvm import programs, rows
from evenload.zk.circuits import squaring_chain
from evenload.zk.cpu import msm
from evenload.zk.cpu.ntt import Domain
from evenload.zk.devsetup import _Multiples, dev_setup
from evenload.zk.prover import Prover


def scalars(n: int) -> np.ndarray:
    return rows.from_integers([secrets.randbelow(FR.modulus) for _ in range(n)])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--level", default=programs.best_level())
    options.add_argument("--widths", action="store_true", help="every window width, to choose from")
    given = options.parse_args()
    measured: list[dict] = []

    def add(kernel: str, size: int, call: Callable[..., object], *given: Any, times: int = 5, **more: Any):
        """Keep the least CPU milliseconds of this thread."""
        work = functools.partial(call, *given, **more)
        least = least_time(work, times, cpu_clock=time.thread_time, warms_up=False)
        measured.append({"kernel": kernel, "size": size, "width": more.get("width"), "ms": least.cpu_s * 1e3})

    for degree, sizes in ((1, (14, 16, 18, 20)), (2, (14, 16))):
        made = _Multiples(degree).of(scalars(1 << sizes[-1]))
        for log_size in sizes:
            n = 1 << log_size
            bases, factors = msm.Bases.load(made[:n].copy(), degree, given.level), scalars(n)
            for width in range(9, 17) if given.widths else [None]:
                add(f"MSM G{degree}", n, msm.multiply, bases, factors, times=3, width=width)
    for log_size in () if given.widths else (14, 16, 18, 20):
        domain, values = Domain(1 << log_size, given.level), scalars(1 << log_size)
        blocks, n = domain.to_odd_coset(values), domain.n_blocks
        kernel = programs.bulk(domain.level).scatter
        at = [rows.address(t) for t in (domain._groups, domain._tiles)]
        add("transform", 1 << log_size, kernel, rows.address(blocks), n, *at)
        add("to odd coset", 1 << log_size, domain.to_odd_coset, values)
    circuit, witness = squaring_chain(50)
    prover = Prover(dev_setup(circuit))
    done = prover.prove(witness)
    add("verification", 1, prover.key.verifier.why_not, done.public, done.proof)
    record(f"zk_kernels_{given.level}", measured, level=given.level, unit="CPU ms, one thread")


if __name__ == "__main__":
    main()
