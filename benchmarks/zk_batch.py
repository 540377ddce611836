"""A batch of 16 proofs over one worker process and over two, as ``evenload bench prove`` measures it.

    python benchmarks/zk_batch.py [--constraints 60000] [--devices cpu*2 ...]

Each worker loads the key once. Seconds are wall time: run it when the machine has nothing else to do.
"""

import argparse
import tempfile
from pathlib import Path

from record import record

from evenload.cli.bench.measure.prove import compare_batches, make_circuit


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--constraints", type=int, default=60_000)
    options.add_argument("--proofs", type=int, default=16)
    options.add_argument("--policy", default="measured")
    options.add_argument("--devices", action="append", help="default: cpu*2")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key, witness = make_circuit(Path(folder), given.constraints)
        witnesses = [str(witness)] * given.proofs
        rows = compare_batches(given.devices or ["cpu*2"], key, witnesses, given.policy)
    record("zk_batch", rows, constraints=given.constraints, proofs=given.proofs, unit="seconds, wall")


if __name__ == "__main__":
    main()
