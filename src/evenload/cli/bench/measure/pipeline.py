"""A pipeline of two stages over every selection of devices, from job file to report."""

import tempfile
import time
from pathlib import Path

from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport, compare_with_first, device_row

STAGES = """
import hashlib
import numpy as np

def _work(n):
    block = bytes(1 << 16)
    for _ in range(n):
        hashlib.sha256(block).digest()

class Edit:
    def __call__(self, inputs, item):
        _work({n_edit})
        return {{"size": len(item.id)}}

class Score:
    def __call__(self, inputs, item):
        _work({n_score})
        return {{"score": 1.0}}
"""
JOB = """
version: 1
job: {name: bench, inputs: {jsonl: items.jsonl}}
stages:
  - {name: edit, target: "stages.py:Edit", outputs: {size: number}}
  - {name: score, target: "stages.py:Score", outputs: {score: number}}
report: {html: false, trace: false}
"""


def pipeline(options: BenchOptions) -> TrialReport:
    """Wall time of the whole, the work's time, and the bound, for each selection."""
    from evenload.pipeline import Pipeline

    n_items, n_work = (40, 150) if options.is_quick else (200, 600)
    rows = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "stages.py").write_text(STAGES.format(n_edit=n_work, n_score=n_work // 3))
        (folder / "items.jsonl").write_text(
            "".join(f'{{"id": "item{i}", "path": "{i}"}}\n' for i in range(n_items))
        )
        (folder / "job.yaml").write_text(JOB)
        for number, spec in enumerate(options.specs):
            began = time.perf_counter()
            result = Pipeline.from_yaml(folder / "job.yaml").run(devices=spec, out=folder / f"run{number}")
            wall_s, summary = time.perf_counter() - began, result.summary
            if result.exit_code:
                raise AssertionError(f"the pipeline ended as {result.status}")
            n, spread = max(1, len(summary.devices)), summary.utilisation_std
            rows.append(device_row(spec, n, summary.work_s, summary.ratio, spread, in_all_s=wall_s))
    note = f"{n_items} items through two stages; in all: with starting workers, plan, journal and results."
    return TrialReport("pipeline", "", compare_with_first(rows), note)
