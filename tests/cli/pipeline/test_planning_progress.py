"""The search for a plan tells how far it is after two seconds, and ends when its time is over."""

import io
from pathlib import Path

import pytest
from click.testing import CliRunner

from evenload.cli import cli
from evenload.cli.pipeline.plan import PlanningProgress
from evenload.pipeline.planning.planner import SearchState, make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem

REAL = Path(__file__).parents[3] / "examples/edit-and-score/real.yaml"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(stream: io.StringIO, times: list[float], limit_s: float | None = None) -> PlanningProgress:
    return PlanningProgress(limit_s, stream=stream, clock=iter([0.0, *times]).__next__)


def test_a_line_after_two_seconds_that_goes_when_the_search_is_over():
    stream = Terminal()
    watch = progress(stream, [1.9, 2.5, 3.0])
    assert not watch(SearchState(10.0, 8.0, 1))
    assert stream.getvalue() == ""
    assert not watch(SearchState(10.0, 8.0, 2))
    assert "2 ways tried, the best takes 10 s, 1.250x the least possible" in stream.getvalue()
    watch(SearchState(10.0, 8.0, 2, is_over=True))
    assert stream.getvalue().endswith(" \r")
    quiet = io.StringIO()
    progress(quiet, [5.0])(SearchState(10.0, 8.0, 1))
    assert quiet.getvalue() == ""


def test_the_end_of_its_time_gives_the_best_so_far_with_its_gap():
    stages = (PlanStage("a", 2.0, 3.0), PlanStage("b", 1.0, 3.0))
    problem = Problem(stages, (PlanDevice("x"), PlanDevice("y", 0.5)), 30)
    told: list[SearchState] = []

    def second(state: SearchState) -> bool:
        told.append(state)
        return state.n_tried >= 2

    plan = make_plan(problem, watch=second)
    assert [(one.n_tried, one.is_over) for one in told] == [(1, False), (2, False), (2, True)]
    assert plan.makespan_s == told[-1].best_s
    assert plan.ratio is not None
    assert plan.ratio >= 1
    assert any("ended before its time" in note for note in plan.notes)
    whole = make_plan(problem)
    assert whole.makespan_s is not None
    assert whole.makespan_s <= plan.makespan_s
    assert not any("ended before" in note for note in whole.notes)


@pytest.mark.parametrize("given", ["0", "-1", "soon"])
def test_a_time_that_is_none_is_refused(given):
    result = CliRunner().invoke(cli, ["plan", str(REAL), "--time-limit", given])
    assert result.exit_code == 2
    assert "--time-limit" in result.output


def test_interrupted_it_gives_nothing_half(monkeypatch):
    def interrupt(self: PlanningProgress, state: SearchState) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(PlanningProgress, "__call__", interrupt)
    words = ["plan", str(REAL), "--items", "9", "--devices", "6x24GB:h100", "--json"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code != 0
    assert "{" not in result.stdout
