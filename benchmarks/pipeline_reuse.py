"""Seconds of ``evenload run`` for an item whose results are all there: from its own folder, and from a cache.

    python benchmarks/pipeline_reuse.py [--items 10000] [--stages 1,2] [--repeat 3]

Each job is run once in a folder with a cache, then again: in the same folder (``run folder``), and in a new
one that takes all from the cache (``cache``). One kind of stage gives a small text, the other a file of
100 bytes. ``cpu_ms`` and ``wall_ms`` are of the whole command, start and report included, divided by items
(and for ``a result`` by items times stages); the least of the repetitions. ``first_ms`` is the first run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cpu_clock import ended_children_cpu_s
from record import record

STAGES = """
class Text:
    def __init__(self, context, *, to):
        self.to = to
    def __call__(self, inputs, item):
        return {self.to: f"{item.id} {item.seed % 1000}"}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--stages", default="1,2")
    parser.add_argument("--kinds", default="values,files")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for kind in args.kinds.split(","):
        for n_stages in map(int, args.stages.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                rows += measure(Path(folder), kind, args.items, n_stages, args.repeat)
    record("pipeline_reuse", rows)


def measure(folder: Path, kind: str, n_items: int, n_stages: int, n_repeat: int) -> list[dict]:
    """One row for each place that results come from."""
    (folder / "stages.py").write_text(STAGES)
    (folder / "rows.jsonl").write_text("".join(f'{{"id": "r{at:06}"}}\n' for at in range(n_items)))
    stages = [
        {
            "name": f"s{at}",
            "target": "stages.py:Text",
            "params": {"to": f"text{at}"},
            "outputs": {f"text{at}": "txt" if kind == "files" else "text"},
        }
        for at in range(n_stages)
    ]
    job = {
        "version": 1,
        "job": {"name": "bench", "inputs": {"jsonl": "rows.jsonl"}},
        "devices": "cpu*2",
        "stages": stages,
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    first = evenload_run(folder, "own")
    rows = []
    for source in ("run folder", "cache"):
        best = None
        for _ in range(n_repeat):
            out = "own" if source == "run folder" else "other"
            shutil.rmtree(folder / "other", ignore_errors=True)
            seen = evenload_run(folder, out)
            best = min(best, seen) if best else seen
            found = [json.loads(line) for line in (folder / out / "results.jsonl").open()]
            assert len(found) == n_items
            assert json.loads((folder / out / "summary.json").read_text())["n_restored"] == n_items * n_stages
        assert best is not None
        cpu_s, wall_s = best
        rows.append(
            {"results": kind, "items": n_items, "stages": n_stages, "from": source,
             "cpu_ms": 1e3 * cpu_s / n_items, "wall_ms": 1e3 * wall_s / n_items,
             "cpu_ms_a_result": 1e3 * cpu_s / n_items / n_stages, "first_ms": 1e3 * first[1] / n_items}
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def evenload_run(folder: Path, out: str) -> tuple[float, float]:
    """Seconds of all processors, and of the wall, of one command."""
    command = [sys.executable, "-m", "evenload", "run", "job.yaml", "-o", out, "--cache", "cache"]
    before, began = ended_children_cpu_s(), time.monotonic()
    subprocess.run([*command, "--no-progress", "-q"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.monotonic() - began
    return ended_children_cpu_s() - before, wall_s


if __name__ == "__main__":
    main()
