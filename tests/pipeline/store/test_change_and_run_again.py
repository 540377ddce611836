"""A job that is changed and run again in its folder: what is kept is not planned for, or is done anew."""

import json
from pathlib import Path
from typing import Any

from pipeline.written_jobs import write_job

from evenload.pipeline import Pipeline

TIMED = """
import time
class Draw:
    def __init__(self, context, *, by=0): ...
    def __call__(self, inputs, item):
        time.sleep(0.002)
        return {"drawn": item.seed}
class Score:
    def __init__(self, context, *, by=0):
        self.by = by
    def __call__(self, inputs, item):
        time.sleep(0.002)
        return {"score": inputs["drawn"] + self.by}
"""


def test_what_is_kept_costs_nothing_in_the_plan_and_says_how_long_the_rest_takes(tmp_path: Path) -> None:
    stages = "".join(f"  - {{name: {n}, target: 'stages.py:{n.title()}'}}\n" for n in ("draw", "score"))
    job = write_job(tmp_path, TIMED, stages)

    def plan_of(changes: list[str], out: str) -> dict[str, Any]:
        pipeline = Pipeline.from_yaml(job, changes)
        result = pipeline.run(out=tmp_path / out, backend="inline", cache=tmp_path / "cache")
        assert result.n_done == 6
        return json.loads((tmp_path / out / "plan.json").read_text())

    first = plan_of([], "run")
    assert first["makespan_s"] is None, "nobody knows any times yet"
    for out in ("run", "other"):  # the run's own folder; a new one, which has only the cache
        again = plan_of([f"score.by={len(out)}"], out)
        planned = [unit["stage"] for phase in again["phases"] for unit in phase["units"]]
        assert set(planned) == {"score"}
        assert again["makespan_s"] is not None or out == "other"
    done_again = plan_of(["draw.by=1"], "run")
    planned = [unit["stage"] for phase in done_again["phases"] for unit in phase["units"]]
    assert set(planned) == {"draw", "score"}
    assert done_again["makespan_s"] is not None, "its seconds are known from the run before"


def test_a_stage_that_expands_from_now_on_is_done_again(tmp_path: Path) -> None:
    """The oracle is a run of the same job in an empty folder. What was kept is why its list was refused."""
    code = "class Split:\n    def __call__(self, inputs, item): return {'pages': [{'text': item.id}]}\n"
    for more in ("", ", expand: pages"):
        job = write_job(tmp_path, code, f"  - {{name: split, target: 'stages.py:Split'{more}}}\n", 1)
        pipeline = Pipeline.from_yaml(job)
        results = [pipeline.run(out=tmp_path / out, backend="inline") for out in ("run", f"empty{len(more)}")]
        assert [one.status for one in results] == ["done" if more else "failures"] * 2
    rows = [(result.folder / "results.jsonl").read_bytes() for result in results]
    assert rows[0] == rows[1]
