"""CPU milliseconds to verify a Groth16 proof: one by one, many at once, and snarkjs beside them.

    python benchmarks/zk_verify.py [--runs 9]

One thread, a key with ten public inputs. All ways take turns in each run, and each figure is the least of
the runs; ``times`` is that of one by one over it. snarkjs verifies as often in one process of Node, without
its start, and only where it is installed (npm ci).
"""

import argparse
import functools
import shutil
import subprocess
import sys
import time
from pathlib import Path

from record import record

from evenload.cli.bench.measure.timing import least_in_turns
from evenload.zk import Prover, read_zkey
from evenload.zk.verifier import Verifier

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests/data/zk/public8"
SIZES = (4, 16, 64, 256)
SNARKJS = """
const snarkjs = require("snarkjs"), fs = require("fs");
const read = (name) => JSON.parse(fs.readFileSync(process.argv[1] + "/" + name));
(async () => {
  const [key, open, proof] = ["vkey.json", "public.json", "proof.json"].map(read);
  const n = 10, ask = () => snarkjs.groth16.verify(key, open, proof);
  for (let k = 0; k < 3; k++) if (!await ask()) throw new Error("not valid");
  const before = process.cpuUsage();
  for (let k = 0; k < n; k++) await ask();
  const spent = process.cpuUsage(before);
  console.log((spent.user + spent.system) / 1000 / n);
  process.exit(0);
})();
"""


def snarkjs_ms() -> float | None:
    if not (shutil.which("node") and (ROOT / "node_modules/snarkjs").exists()):
        return None
    command = ["node", "-e", SNARKJS, str(FOLDER)]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    n_runs = parser.parse_args().runs
    with Prover(FOLDER / "circuit.zkey", threads=1) as prover:
        proved = prover.prove(FOLDER / "witness.wtns")
    statement = [int(value) for value in proved.public], proved.proof
    verifier = Verifier(read_zkey(FOLDER / "circuit.zkey").verification_key)
    if any(verifier.why_not_each([statement] * 8)):
        raise SystemExit("a valid proof was refused")
    ways = {f"{n} at once": functools.partial(verifier.why_not_each, [statement] * n) for n in SIZES}
    ways = {"one by one": lambda: [verifier.why_not(*statement) for _ in range(8)], **ways}
    best = least_in_turns(ways, n_runs, cpu_clock=time.thread_time)
    least = {name: 1e3 * best[name].cpu_s / n for name, n in zip(ways, (8, *SIZES), strict=True)}
    if by_snarkjs := [ms for ms in (snarkjs_ms() for _ in range(n_runs)) if ms]:
        least["snarkjs"] = min(by_snarkjs)
    rows = [
        {"how": name, "cpu_ms": round(value, 3), "times": round(least["one by one"] / value, 2)}
        for name, value in least.items()
    ]
    record("zk_verify", rows, runs=n_runs, public_inputs=len(statement[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
