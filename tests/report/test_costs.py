"""What runs cost. The oracle is the arithmetic of somebody who was told the prices."""

import json

import pytest

from evenload.errors import SpecError
from evenload.events import ItemFailed, ItemFinished, RunFinished, RunStarted
from evenload.pipeline import Pipeline
from evenload.report.costs import cost_of, cost_text
from evenload.report.tally import summarise


def test_an_hour_of_two_devices_and_their_answers():
    told = {"currency": "EUR", "hour": 5.0, "watts": 1000.0, "kwh": 0.3, "outputs": {"ask": "paid"}}
    events = [
        RunStarted(0.0, "r", 0.0, 2, {}, {"costs": told}),
        *(ItemFinished(9.0, "ask", n, f"i{n}", {"paid": 0.25}) for n in range(2)),
        ItemFinished(9.0, "ask", 2, "i2", {"paid": float("nan")}),
        ItemFinished(9.0, "other", 0, "i0", {"paid": 7.0}),
        RunFinished(7200.0, "done"),
    ]
    summary = summarise(events)
    assert summary.cost == {
        "currency": "EUR", "total": pytest.approx(11.1), "devices": 10.0, "energy": pytest.approx(0.6),
        "answers": 0.5, "kwh": 2.0,
    }  # fmt: skip
    assert "11.1 EUR (devices 10, energy 0.6, answers 0.5), 2 kWh" in summary.headline()


def test_answers_that_are_in_no_sum_are_told():
    """The oracle is the count of answers that somebody made up: one in the sum, three not."""
    events = [
        RunStarted(0.0, "r", 0.0, 2, {}, {"costs": {"currency": "EUR", "outputs": {"ask": "cost"}}}),
        ItemFinished(1.0, "ask", 0, "i0", {"cost": 0.25}),
        ItemFinished(1.0, "ask", 1, "i1", {"cost": None}),
        ItemFailed(1.0, "ask", 2, "i2", "AnswerCut", "cut", "cpu:0"),
        ItemFailed(1.0, "ask", 3, "i3", "FormatError", "no text", "cpu:0"),
        ItemFailed(1.0, "ask", 4, "i4", "Stopped", "never asked", ""),
        ItemFailed(1.0, "other", 0, "i0", "ValueError", "asks nobody", "cpu:0"),
        RunFinished(2.0, "done"),
    ]
    summary = summarise(events)
    left_out = "2 answers of failed items and 1 answer without usage not in it"
    assert summary.cost["left_out"] == left_out
    assert f"at least 0.25 EUR ({left_out})" in summary.headline()
    nothing = summarise([events[0], *events[3:]])
    assert "at least 0 EUR (2 answers of failed items not in it)" in nothing.headline()


@pytest.mark.parametrize("told", [None, [], {}, {"hour": "x", "watts": -1, "kwh": True, "outputs": [1]}])
def test_what_nobody_told_costs_nothing(told):
    facts = {} if told is None else {"costs": told}
    run = [RunStarted(0.0, "r", 0.0, 1, {}, facts), ItemFinished(1.0, "a", 0, "i", {"cost": 1})]
    assert cost_text(summarise(run).cost) == ""
    assert cost_text(cost_of(told, 1e9)) == ""


JOB = """\
version: 1
job: {name: c, inputs: {jsonl: rows.jsonl}, out: run}
devices: cpu*2
stages: [{name: step, target: 'step.py:Step', estimate: {item_s: 3600}}]
costs: {hour: {all: 9, cpu: 2, "cpu:1": 3}, watts: 500, kwh: 0.5}
"""


def test_a_job_tells_its_plan_and_its_run_what_they_cost(tmp_path):
    (tmp_path / "step.py").write_text("class Step:\n    def __call__(self, inputs, item): return {'n': 1}\n")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": "{n}"}}\n' for n in range(2)))
    (tmp_path / "job.yaml").write_text(JOB)
    result = Pipeline.from_yaml(tmp_path / "job.yaml").run(backend="inline")
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    assert plan["makespan_s"] == pytest.approx(3600)
    assert plan["facts"]["cost"]["total"] == pytest.approx(5 + 0.5)
    hours = result.summary.wall_s / 3600
    assert result.summary.cost["total"] == pytest.approx(5.5 * hours)
    assert json.loads((tmp_path / "run/summary.json").read_text())["cost"]["currency"] == "USD"
    assert " USD (devices " in (tmp_path / "run/report.html").read_text()
    with pytest.raises(SpecError, match=r"costs.hour.cpu"):
        Pipeline.from_yaml(tmp_path / "job.yaml", ["costs.hour.cpu=-1"])
