"""What to do about the largest loss, and what a run takes without it: simulated again with its own times."""

import pytest

from evenload.balance.factors import FACTORS
from evenload.events import Idle, RunFinished, RunStarted, Span, WorkerStarted
from evenload.report.losses.account import Lengths
from evenload.report.losses.remedies import Cause, LostRun, remedies
from evenload.report.losses.replay import ReplaySlot, RunReplay
from evenload.report.tally import summarise

TWO = {"a": {"name": "GPU"}, "b": {"name": "GPU"}}


def span(index, start, stop, device="a", stage="map", **more):
    return Span(stage, device, device, index, 1, start, stop, **more)


def advice(*events, devices=TWO):
    end_s = max(getattr(one, "stop_s", 0.0) for one in events)
    started = RunStarted(0.0, "r", 0.0, None, devices)
    return summarise([started, *events, RunFinished(end_s, "done")]).advice


@pytest.mark.parametrize("facts", [{}, {"stages": ["x", "y"], "policy": "static"}, {"is_training": True}])
@pytest.mark.parametrize("factor", FACTORS)
def test_a_remedy_is_told_only_if_it_saves_enough(factor, facts):
    slots = {"a": ReplaySlot(1.0, {"waiting": 0.1, "overhead": 0.3}), "b": ReplaySlot(1.0, {"repeats": 0.2})}
    replay = RunReplay([[("x", 2.0), ("y", 6.0)]], slots, {"x": {"a": 1.0}, "y": {"a": 1.0, "b": 1.0}})
    for causes in ([], [Cause("loading x", 3.0, ("a",))], [Cause("between chunks", 3.0, ("a",))]):
        loads = {"a": {"x": 0.5, "y": 0.5}} if causes else {}
        found = remedies(LostRun(factor, 10.0, 3.0, causes, replay, loads, "", facts))
        assert len(found) <= 2
        assert all(0 <= one.without_s <= 10.0 - 0.05 * 3.0 for one in found)
        assert all(one.what for one in found)
        if "is_training" in facts:
            assert not any("cost=" in one.what or "policy" in one.what for one in found), (
                "steps are not dealt"
            )


def test_a_start_taken_away_leaves_the_work():
    starts = [WorkerStarted(5.0, name, name, None, 5.0) for name in TWO]
    rows = [span(2 * i + k, 5.0 + i, 6.0 + i, name) for i in range(4) for k, name in enumerate(TWO)]
    found = advice(*starts, *rows)
    assert (found.factor, found.lost_s, found.wall_s) == ("start-up", 5.0, 9.0)
    assert found.without_s == pytest.approx(4.0)
    assert found.text() == (
        "5 s of 9 s went into start-up (processes start, packages are imported, models are loaded): "
        "5 s starting processes on a, b. Without it, this run takes 4 s, simulated with its own times. "
        "To do: keep the workers in one Executor for several maps: from the second map on (4 s); or "
        "import less at the top of the task's module (at best 4 s)."
    )


def test_two_models_on_one_device_are_told_with_what_a_second_device_would_save():
    rows = [Idle("a", 0.0, 4.0, "loads edit"), span(0, 4.0, 8.0, stage="edit")]
    rows += [Idle("a", 8.0, 14.0, "loads score"), span(0, 14.0, 16.0, stage="score")]
    facts = {"stages": ["edit", "score"]}
    started = RunStarted(0.0, "r", 0.0, None, {"a": {"name": "GPU"}}, facts)
    found = summarise([started, *rows, RunFinished(16.0, "done")]).advice
    assert (found.factor, found.lost_s) == ("start-up", 10.0)
    assert [one.cause for one in found.causes] == ["loading score", "loading edit"]
    first, second = found.remedies
    assert first.what == "put the items of several runs into one, which loads once: from then on"
    assert first.without_s == found.without_s == pytest.approx(6.0)
    assert second.what == (
        "have a device for each model that a loads (edit, score): --devices with 1 more like it"
    )
    assert second.without_s == pytest.approx(10.0)  # 4 s and 4 s of edit; score loads meanwhile, then 2 s


def test_a_stage_that_one_device_alone_ran_is_offered_the_other():
    rows = [span(i, float(i), i + 1.0, stage="x") for i in range(8)]
    rows += [span(0, 0.0, 1.0, "b", stage="y")]
    found = advice(*rows, devices={"a": {}, "b": {}})
    assert found.factor == "balance"
    assert found.remedies[0].what == "let x run on b, too"
    assert found.remedies[0].without_s < 6.0


def test_a_run_that_lost_next_to_nothing_gets_no_advice():
    assert advice(span(0, 0.0, 4.0), span(1, 0.0, 4.0, "b")) is None
    assert summarise([]).advice is None


def test_lengths_keep_their_sum_however_few_pieces_are_asked_for():
    lengths = Lengths()
    for i in range(1000):
        lengths.add("ab"[i % 2], 1, 0.1 + (i % 7))
    lengths.add("a", 3, float("inf"))
    speeds = {"a": 2.0, "b": 1.0}
    whole = sum((0.1 + i % 7) * (1 + (i % 2 == 0)) for i in range(1000))
    for most in (10_000, 100, 1):
        pieces = lengths.pieces(most, speeds)
        assert sum(pieces) == pytest.approx(whole)
        assert 10 <= len(pieces) <= (1000 if most > 1000 else most + 20)
    assert sum(lengths.pieces(100, {"b": 1.0})) == pytest.approx(sum(0.1 + i % 7 for i in range(1, 1000, 2)))
