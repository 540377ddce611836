"""Delays planted into real ranks: does an audit name rank and place, and how near does it come to the size?

    python benchmarks/audit_delays.py [--delays 1000] [--ranks 2]

The ranks run under torch's profiler, over gloo. The oracle is their own clock: who came last to each
collective, and how long the others stood in it. One run beside it has no delays.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from record import record

from evenload.audit.traces import audit_traces

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import delayed_ranks  # noqa: E402

STEPS = 50  # of one run
LEAST_MS, MOST_MS = 5, 40


def run(folder: Path, world: int, n_steps: int, seed: int, *, is_even: bool) -> dict[str, Any]:
    """Run the ranks once, audit their traces, and compare both with what the ranks measured."""
    most = (0, 0) if is_even else (LEAST_MS, MOST_MS)
    program = [sys.executable, delayed_ranks.PROGRAM, folder]
    words = [[str(one) for one in (*program, rank, world, n_steps, seed, *most)] for rank in range(world)]
    ranks = [subprocess.Popen(one, stderr=subprocess.DEVNULL) for one in words]
    if any(rank.wait() for rank in ranks):
        raise SystemExit("a rank failed")
    found = audit_traces([folder / f"rank{rank}.json.gz" for rank in range(world)])
    true = delayed_ranks.measured(folder, world)
    said: Counter[int] = Counter()
    for one in found.culprits:
        said[int(one.device.split()[1])] += one.cost_ns
    places = Counter({(int(one.device.split()[1]), one.reason): one.n_late for one in found.culprits})
    return {"true": true, "said": said, "places": places, "waited_ns": found.lost_ns["late ranks"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delays", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    rows = []
    n_named = n_delays = 0
    true_ns, said_ns, errors = 0, 0, []
    for seed in range(-(-options.delays // STEPS)):
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder), options.ranks, STEPS, seed, is_even=False)
        planned = Counter((rank, place) for rank, place, _ in found["true"].planned)
        n_delays += planned.total()
        n_named += sum((planned & found["places"]).values())
        for rank in range(options.ranks):
            true, said = found["true"].cost_ns[rank], found["said"][rank]
            errors.append(abs(said - true) / true)
            true_ns, said_ns = true_ns + true, said_ns + said
    with tempfile.TemporaryDirectory() as folder:
        even = run(Path(folder), options.ranks, STEPS, 0, is_even=True)
    rows.append(
        {
            "ranks": options.ranks,
            "delays": n_delays,
            "named": n_named,
            "named_share": n_named / n_delays,
            "waited_s": true_ns / 1e9,
            "said_s": said_ns / 1e9,
            "mean_error": sum(errors) / len(errors),
            "worst_error": max(errors),
            "even_waited_s": sum(even["true"].cost_ns.values()) / 1e9,
            "even_said_s": even["waited_ns"] / 1e9,
        }
    )
    record("audit_delays", rows, is_of_speed=False)


if __name__ == "__main__":
    main()
