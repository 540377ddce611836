"""``Planner.run`` on the CPU: one call counts, routes and maps a batch of ids.

    python benchmarks/moe_planner.py [--calls 4000]

The three shapes and the counters are those of LPLB's introduction, whose expected output is the last column.
Times are CPU time of one thread over batches that the planner has not seen, the median over blocks of 50
calls.
"""

import argparse

import numpy as np
import torch
from record import record

from evenload.cli.bench.measure.timing import median_cpu_s
from evenload.moe.routing.planner import Planner
from evenload.moe.topology import create_redundant_mapping

SHAPES = [(8, 12, 512, 6_400_000), (16, 24, 1024, 8_533_333), (32, 48, 2048, 11_377_777)]
BLOCK = 50


def cpu_us(call, batches):
    """Median over blocks of calls, in microseconds a call."""
    blocks = [(batches[at : at + BLOCK],) for at in range(0, len(batches) - BLOCK + 1, BLOCK)]
    return median_cpu_s(lambda block: [call(batch) for batch in block], 1, blocks)[0] / BLOCK * 1e6


def measure(n_logical, n_physical, n_tokens, expected, n_calls):
    planner = Planner(create_redundant_mapping(n_logical, n_physical), n_physical, n_logical)
    odds = np.random.default_rng(0).dirichlet(np.full(n_logical, 1.0))
    rng = np.random.default_rng(1)
    batches = [torch.from_numpy(rng.choice(n_logical, (n_tokens, 2), p=odds)) for _ in range(n_calls)]
    counter = torch.zeros(n_physical)
    for batch in batches[:20]:
        slots = planner.run(batch)
        loads = torch.bincount(slots.view(-1) * planner.ep_size // n_physical, minlength=planner.ep_size)
        assert torch.equal(planner.phy2log[slots], batch)
        assert int(loads.max()) == planner.certificate().peak
    plain = cpu_us(planner.run, batches)
    counted = cpu_us(lambda batch: planner.run(batch, counter), batches)
    return {
        "experts": n_logical,
        "slots": n_physical,
        "ranks": planner.ep_size,
        "tokens": n_tokens,
        "ids": 2 * n_tokens,
        "us a call": round(plain, 1),
        "us with counter": round(counted, 1),
        "ns an id": round(counted * 1000 / (2 * n_tokens), 2),
        "million tokens/s": round(n_tokens / counted, 1),
        "million ids/s": round(2 * n_tokens / counted, 1),
        "expected, million tokens/s": round(expected / 1e6, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=4000)
    torch.set_num_threads(1)
    given = parser.parse_args()
    record("moe_planner", [measure(*shape, given.calls) for shape in SHAPES])


if __name__ == "__main__":
    main()
