"""One item's life. The oracle is what the tasks themselves wrote down, each time that one of them began."""

import json
import os
import random
import signal
from dataclasses import replace

import pytest

from evenload.cli import main
from evenload.errors import TaskError
from evenload.events import (
    Event,
    EventLog,
    ItemFailed,
    Queued,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
)
from evenload.executor import Executor
from evenload.report.item_life import broken_steps, life_of
from evenload.report.source import open_run

STAGES = """
import os, pathlib

class Try:
    def __call__(self, inputs, item):
        begun = pathlib.Path(inputs["begun"], item.id)
        with begun.open("a") as file:
            file.write("x")
        left = inputs["plan"][begun.stat().st_size - 1 :]
        if left and left[0] == "d":
            os._exit(3)
        if left and left[0] == "e":
            raise ValueError("not this time")
        return {"n": len(inputs["plan"])}
"""
JOB = """\
version: 1
job: {name: tries, inputs: {jsonl: rows.jsonl}, out: run}
devices: {use: cpu*2}
stages:
  - {name: try, target: 'stages.py:Try'}
errors: {on_error: record, retries: 1}
"""


def status(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["status", *map(str, arguments)])
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


def test_every_attempt_of_every_item_is_told_and_how_it_ended(tmp_path, capsys):
    """A plan says what an item does in each attempt: d ends its worker, e raises."""
    rng, begun = random.Random(7), tmp_path / "begun"
    begun.mkdir()
    plans = ["", "d", "e", *(rng.choice(["", "e", "ee", "d"]) for _ in range(5))]
    rows = [{"id": f"i{at}", "plan": plan, "begun": str(begun)} for at, plan in enumerate(plans)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "job.yaml").write_text(JOB)
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "job.yaml"), "--no-progress", "-q"])
    capsys.readouterr()
    events = list(open_run(tmp_path / "run"))
    results = [json.loads(line) for line in (tmp_path / "run/results.jsonl").read_text().splitlines()]
    for row, result in zip(rows, results, strict=True):
        life = life_of(events, row["id"])
        n_deaths, n_errors = row["plan"].count("d"), row["plan"].count("e")
        n_begun = len((begun / row["id"]).read_text())
        tries = [step for step in life if step.text == "given to a worker"]
        # a stage calls an item again by itself after an error, within one attempt on its worker
        assert n_begun == len(tries) + (n_errors > 0), (row, life)
        assert sum("ended with exit code 3" in step.text for step in life) == n_deaths
        assert life[-1].state == result["status"] == ("failed" if n_errors > 1 else "done")
        assert not broken_steps(life)
    code, out, _ = status(capsys, tmp_path / "run", "--item", "i1")
    assert code == 0
    assert "its worker ended with exit code 3" in out
    code, out, _ = status(capsys, tmp_path / "run", "--item", "i1", "--json")
    assert [step["state"] for step in json.loads(out)["steps"]][:3] == ["running", "waiting", "running"]
    code, _, err = status(capsys, tmp_path / "run", "--item", "i99")
    assert code == 2
    assert "nothing is known of an item 'i99'" in err


def test_an_item_of_a_map_is_told_by_its_number():
    events = [
        Span("map", "cpu:0", "cpu:0/1", 0, 4, 0.0, 1.0, status="ok"),
        Span("map", "cpu:1", "cpu:1/1", 4, 2, 0.0, 3.0, status="superseded"),
        Span("map", "cpu:0", "cpu:0/1", 0, 2, 1.0, 2.0, duplicate=True, items=(3, 5)),
        ItemFailed(2.0, "map", 3, "3", "ValueError", "no"),
    ]
    assert [(step.state, step.device) for step in life_of(events, "5")] == [
        ("running", "cpu:1"), ("running", "cpu:0"), ("done", "cpu:0"), ("done", "cpu:1"),
    ]  # fmt: skip
    assert life_of(events, "3")[-1].text == "given up: ValueError: no"
    assert life_of(events, "6") == life_of(events, "x") == []


def test_a_log_that_lacks_events_is_told():
    """What was done at second 1 cannot be dealt at second 5, unless it went out as a copy before."""
    done = Span("map", "cpu:0", "cpu:0/1", 1, 1, 0.0, 1.0, dealt_s=0.0)
    known = Queued(1.1, "map")
    copy = Span("map", "cpu:1", "cpu:1/1", 1, 1, 1.2, 5.5, "superseded", dealt_s=0.5)
    again = replace(copy, start_s=5.0, dealt_s=5.0)
    assert not broken_steps(life_of([done, known, copy], "1"))
    (broken,) = broken_steps(life_of([done, known, again], "1"))
    assert broken.missing == (
        "events missing between second 1.000 and 5.000: it was done, and 'dealt' cannot follow"
    )
    ended = [RunStarted(0.0, "map", 0.0), replace(copy, status="lost"), RunFinished(9.0, "done")]
    (broken,) = broken_steps(life_of(ended, "1"))
    assert broken.missing == "events missing after second 5.500: the run ended, and it was waiting"


def test_maps_one_after_another_in_one_log_are_told_apart():
    one = [StageStarted(0.0, "map"), Span("map", "a", "a/1", 0, 3, 0.0, 1.0), StageFinished(1.5, "map")]
    later = [StageStarted(2.0, "map"), Span("map", "b", "b/1", 0, 3, 2.0, 3.0), StageFinished(3.5, "map")]
    life = life_of([*one, *later], "2")
    assert [step.state for step in life] == ["running", "done"] * 2
    assert not broken_steps(life)


def test_real_maps_with_kills_walk_through_the_table(tmp_path):
    """The oracle: a line that the task writes as it begins, and what the caller gets. k: it is killed."""

    def work(item: tuple[int, str]) -> int:
        number, plan = item
        begun = tmp_path / str(number)
        with begun.open("a") as file:
            file.write("x")
        left = plan[begun.stat().st_size - 1 :]
        if left[:1] == "k":
            os.kill(os.getpid(), signal.SIGKILL)
        if left[:1] == "e":
            raise ValueError("not this time")
        return number

    rng = random.Random(3)
    plans = ["kk", "ee", "k", *(rng.choice(("", "", "", "e", "k", "ek", "ke")) for _ in range(9))]
    events: list[Event] = []
    with Executor("cpu*2", events=EventLog(events.append)) as executor:
        results = executor.map(work, enumerate(plans), policy="pull:3", retries=1, on_error="return")
        values = list(results)
    for number, (plan, value) in enumerate(zip(plans, values, strict=True)):
        life = life_of(events, str(number))
        assert not broken_steps(life), (plan, life)
        assert life[-1].state == ("failed" if isinstance(value, TaskError) else "done"), (plan, life)
        assert isinstance(value, TaskError) or value == number
        n_begun = len((tmp_path / str(number)).read_text())
        assert sum(step.text.startswith(("given to", "a copy")) for step in life) >= n_begun
        assert any(step.state in ("suspect", "on trial") for step in life) or plan[:1] != "k"
    assert isinstance(values[0], TaskError)
