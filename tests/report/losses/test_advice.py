"""What to do about the largest loss, and what a run takes without it: simulated again with its own times."""

import pytest

from evenload.balance.factors import FACTORS
from evenload.events import Idle, RunFinished, RunStarted, Span, StageFinished, StageStarted, WorkerStarted
from evenload.report.losses.advice import REMEDIES
from evenload.report.losses.lengths import Lengths
from evenload.report.losses.replay import Replay, ReplaySlot
from evenload.report.tally import summarise

TWO = {"a": {"name": "GPU"}, "b": {"name": "GPU"}}


def span(index, start, stop, device="a", stage="map", **more):
    return Span(stage, device, device, index, 1, start, stop, **more)


def advice(*events, devices=TWO):
    end_s = max(getattr(one, "stop_s", 0.0) for one in events)
    started = RunStarted(0.0, "r", 0.0, None, devices)
    return summarise([started, *events, RunFinished(end_s, "done")]).advice


def test_every_factor_has_a_remedy():
    assert set(REMEDIES) == set(FACTORS)


def test_a_start_taken_away_leaves_the_work():
    starts = [WorkerStarted(5.0, name, name, None, 5.0) for name in TWO]
    rows = [span(2 * i + k, 5.0 + i, 6.0 + i, name) for i in range(4) for k, name in enumerate(TWO)]
    found = advice(*starts, *rows)
    assert (found.factor, found.lost_s, found.wall_s) == ("start-up", 5.0, 9.0)
    assert found.without_s == pytest.approx(4.0)
    assert found.text().startswith("5 s of 9 s went into start-up: processes start, packages are imported")


def test_the_model_whose_load_took_longest_is_named():
    rows = [Idle("a", 0.0, 2.0, "loads edit"), Idle("b", 0.0, 6.0, "loads score")]
    found = advice(*rows, span(0, 2.0, 8.0, cost=3), span(1, 6.0, 8.0, "b", cost=1))
    assert found.where == "b, which loads score (6 s)"


def test_items_dealt_badly_are_dealt_again():
    rows = [span(i, float(i), i + 1.0) for i in range(8)]
    found = advice(*rows)
    assert (found.factor, found.without_s) == ("balance", pytest.approx(4.0))
    assert found.where == "b (8 s)"


def test_an_item_that_is_too_long_is_cut():
    small = [span(1 + i, 0.25 * i, 0.25 * i + 0.25, "b", cost=1) for i in range(4)]
    found = advice(span(0, 0.0, 8.0, cost=32), *small)
    assert found.factor == "longest item"
    assert found.without_s == pytest.approx(4.5)  # each has two parts of 2 s and two quarters


def test_waiting_taken_away():
    rows = [StageStarted(0.0, "map", 4)]
    for i in range(4):
        rows += [span(i, 3.0 * i, 3.0 * i + 1)]
        rows += [Idle("a", 3.0 * i + 1, 3.0 * i + 3, "no item is ready")] if i < 3 else []
    found = advice(*rows, StageFinished(10.0, "map"), devices={"a": {}})
    assert (found.factor, found.without_s) == ("waiting", pytest.approx(4.0))


def test_a_run_that_lost_next_to_nothing_gets_no_advice():
    assert advice(span(0, 0.0, 4.0), span(1, 0.0, 4.0, "b")) is None
    assert summarise([]).advice is None


def test_a_replay_deals_the_longest_to_who_ends_it_first():
    slots = {"a": ReplaySlot(1.0, {}), "b": ReplaySlot(0.0, {"overhead": 0.5})}
    speeds = {"x": {"a": 2.0, "b": 1.0}, "y": {"b": 1.0}}
    replay = Replay([[("x", 2.0), ("x", 6.0)], [("y", 1.0)]], slots, speeds)
    assert replay.makespan_s() == pytest.approx(4.0 + 1.5)  # b does the small item meanwhile
    assert replay.makespan_s("start-up") == pytest.approx(3.0 + 1.5)
    assert replay.makespan_s("overhead") == pytest.approx(4.0 + 1.0)


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
