"""Two workers that run one task: the first result counts, whatever the other one writes, and when it dies."""

import os
from pathlib import Path

import pytest
from pipeline.written_jobs import write_job

from evenload.events import Span, read_events
from evenload.pipeline import Pipeline
from evenload.report.html import view_of

STAGES = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent

def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.01)

class Draw:
    def __call__(self, inputs, item):
        try:
            os.close(os.open(HERE / f"begun-{item.id}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return {"drawn": "by the copy"}
        if item.id == "hangs":
            wait_for("released")
            (HERE / "late").write_text("")
            if (HERE / "dies").exists():
                os.kill(os.getpid(), 9)
            return {"drawn": "too late"}
        time.sleep(0.02)
        return {"drawn": item.id}

class Weigh:
    def __call__(self, inputs, item):
        if item.id == "hangs":
            (HERE / "released").write_text("")
            wait_for("late")
        return {"weight": len(Path(inputs["drawn"]).read_text())}
"""
JOB = """\
  - {name: draw, target: 'stages.py:Draw', outputs: {drawn: txt}, estimate: {item_s: 0.02, load_s: 0.0}}
  - {name: weigh, target: 'stages.py:Weigh', estimate: {item_s: 0.02, load_s: 0.0}}
schedule: {copies: true}
"""


@pytest.mark.parametrize("dies", [False, True])
def test_the_first_result_counts_and_the_late_one_changes_no_byte(tmp_path: Path, dies: bool) -> None:
    """The oracle is what the copy returns: the first attempt ends when the next stage has that."""
    names = ["hangs", *(f"item{at}" for at in range(8))]
    job = write_job(tmp_path, STAGES, JOB, [{"id": name} for name in names], job="out: run", devices="cpu*2")
    if dies:
        (tmp_path / "dies").write_text("")
    result = Pipeline.from_yaml(job).run()
    assert [row.status for row in result] == ["done"] * 9
    drawn = {row.id: (tmp_path / "run" / row.outputs["drawn"]).read_text() for row in result}
    assert drawn == {name: name for name in names} | {"hangs": "by the copy"}
    assert result[0].outputs["weight"] == len("by the copy")
    files = [name for _, _, names in os.walk(tmp_path / "run") for name in names]
    assert not [name for name in files if name.endswith(".tmp")]
    events = list(read_events(tmp_path / "run"))
    spans = [one for one in events if isinstance(one, Span) and one.stage == "draw"]
    assert sum(one.duplicate for one in spans) == 1
    firsts = {one.status for one in spans if one.index == 0 and not one.duplicate}  # or the run was over
    assert firsts <= ({"superseded", "lost"} if dies else {"superseded"})
    shown = view_of(events).plan.to_json()
    assert shown is not None
    assert [one["n_measured"] for one in shown["by_stage"]] == [9, 9]
    again = Pipeline.from_yaml(job).run()
    assert again.n_restored == 18
