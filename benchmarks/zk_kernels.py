"""The kernels under a proof: multi-scalar multiplication, transform, verification, field products. CPU time.

python benchmarks/zk_kernels.py [--level word64]
"""

import argparse
import secrets
import time
from collections.abc import Callable

import numpy as np
from record import record

from evenload.gpu.field import FR
from evenload.gpu.llvm import programs, rows
from evenload.zk.circuits import squaring_chain
from evenload.zk.cpu import msm
from evenload.zk.cpu.ntt import Domain
from evenload.zk.devsetup import _Multiples, dev_setup
from evenload.zk.prover import Prover


def best(work: Callable[[], object], times: int = 5) -> float:
    """Least CPU seconds of this thread."""
    found = []
    for _ in range(times):
        started = time.thread_time()
        work()
        found.append(time.thread_time() - started)
    return min(found)


def scalars(n: int) -> np.ndarray:
    return rows.from_integers([secrets.randbelow(FR.modulus) for _ in range(n)])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--level", default=programs.best_level())
    options.add_argument("--widths", action="store_true", help="every window width, to choose from")
    given = options.parse_args()
    measured = []
    for degree, sizes in ((1, (14, 16, 18, 20)), (2, (14, 16))):
        made = _Multiples(degree).of(scalars(1 << sizes[-1]))
        for log_size in sizes:
            n = 1 << log_size
            bases, factors = msm.Bases.load(made[:n].copy(), degree, given.level), scalars(n)
            for width in range(9, 17) if given.widths else [None]:
                seconds = best(lambda w=width, b=bases, f=factors: msm.multiply(b, f, width=w), 3)
                measured.append({"kernel": f"MSM G{degree}", "size": n, "width": width, "ms": seconds * 1e3})
    for log_size in () if given.widths else (14, 16, 18, 20):
        domain, values = Domain(1 << log_size, given.level), scalars(1 << log_size)
        blocks, n = domain.to_odd_coset(values), domain.n_blocks
        kernel = programs.bulk(domain.level).scatter
        at = [rows.address(t) for t in (domain._groups, domain._tiles)]
        seconds = best(lambda b=blocks, k=kernel, n=n, a=at: k(rows.address(b), n, *a))
        measured.append({"kernel": "transform", "size": 1 << log_size, "width": None, "ms": seconds * 1e3})
        seconds = best(lambda d=domain, v=values: d.to_odd_coset(v))
        measured.append({"kernel": "to odd coset", "size": 1 << log_size, "width": None, "ms": seconds * 1e3})
    circuit, witness = squaring_chain(50)
    prover = Prover(dev_setup(circuit))
    done = prover.prove(witness)
    seconds = best(lambda: prover.key.verifier.why_not(done.public, done.proof))
    measured.append({"kernel": "verification", "size": 1, "width": None, "ms": seconds * 1e3})
    record(f"zk_kernels_{given.level}", measured, level=given.level, unit="CPU ms, one thread")


if __name__ == "__main__":
    main()
