"""Run the benchmarks one after the other: ``python benchmarks/run_all.py [NAME ...]``.

Each runs in a process of its own, prints its table and writes ``benchmarks/results/<name>.json``. One that
fails is named at the end and does not stop the others. All of them take the better part of an hour.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SHARED = {"run_all", "record", "peers", "tasks", "moe_workloads"}


def main(wanted: list[str]) -> int:
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted or known:
        print(f"\n=== {name}", flush=True)
        if subprocess.run(
            [sys.executable, str(FOLDER / f"{name}.py")], cwd=FOLDER.parent, check=False
        ).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
