"""The state of the page, from events alone."""

import json
import os
import time

import pytest

from evenload.dashboard.board import Board, Pictures
from evenload.dashboard.feed import Frames
from evenload.events import ItemFinished, Moved, Planned, Queued, RunFinished, RunStarted, Span, StageStarted
from evenload.report.html import view_of
from evenload.report.page.gallery import Gallery


def board_of(events, folder=None):
    board = Board(folder)
    for event in events:
        board.add(event)
    return board


def state(board, age_s=0.0):
    return board.sections(time.time() - age_s, None, [])


def test_a_finished_run_shows_what_its_report_shows(sample_run):
    events = list(sample_run(fails=(3,), moves=2))
    shown, report = state(board_of(events)), view_of(events).to_json()
    assert {**shown["summary"], "failures": shown["failures"], "slowest": shown["slowest"]} == report[
        "summary"
    ]
    assert shown["load"] == report["load"]
    assert shown["moves"][::-1] == report["timeline"]["moves"]
    assert not shown["run"]["is_running"]


def test_a_running_run_says_how_far_it_is():
    board = board_of(
        [
            RunStarted(0.0, "x", time.time(), 10, {"a": {}}, {"stages": ["first", "second"]}),
            StageStarted(0.0, "first", 10),
            *(Span("first", "a", "a", i, 1, float(i), i + 1.0) for i in range(4)),
        ]
    )
    run = state(board)["run"]
    assert (run["stage"], run["stage_done"], run["stage_total"], run["n_stages"]) == ("first", 4, 10, 2)
    assert run["is_running"]
    assert run["eta_s"] == pytest.approx(6.0)


def test_queues_of_all_stages_and_the_plan_are_shown_while_it_runs():
    events = [
        RunStarted(0.0, "x", time.time(), 4, {"a": {}}, {"stages": ["edit", "score"]}),
        Planned(0.0, "swap", "it fits", 8.0, 7.0, [["a", "edit", "work", 0.0, 8.0, 4]]),
        Queued(0.0, "edit", 4, {"a": 1}),
        Queued(1.0, "edit", 1, {"a": 1, "b": 1}),
        Queued(1.0, "score", 2, {"b": 1}),
        Span("edit", "a", "a", 0, 1, 0.0, 2.0),
    ]
    shown = state(board_of(events))
    assert shown["queues"] == {
        "waiting": 3,
        "running": {"a": 1, "b": 2},
        "queued": {},
        "stages": {"edit": {"waiting": 1, "running": 2}, "score": {"waiting": 2, "running": 1}},
    }
    assert (shown["plan"]["planned_s"], shown["plan"]["measured_s"]) == (8.0, 2.0)
    assert state(board_of([*events, RunFinished(9.0, "done")]))["queues"] is None


@pytest.mark.parametrize(
    ("facts", "age_s", "is_running"),
    [
        ({}, 0.0, True),
        ({}, 100.0, True),
        ({}, 1000.0, False),
        ({"pid": os.getpid()}, 1000.0, True),
        ({"pid": 2**22 + 1}, 100.0, False),
        ({"pid": 2**22 + 1}, 1.0, True),
        ({"pid": "nonsense"}, 100.0, False),
        ({"pid": 10**30}, 100.0, False),
    ],
)
def test_a_run_without_an_end_runs_while_somebody_writes(facts, age_s, is_running):
    board = board_of([RunStarted(0.0, "x", time.time(), 2, {}, facts)])
    assert state(board, age_s)["run"]["is_running"] is is_running
    board.add(RunFinished(1.0, "done"))
    assert not state(board)["run"]["is_running"]


def test_newest_moves_are_kept_and_memory_is_bounded():
    board = board_of(Moved(float(i), "a", "b", i) for i in range(1000))
    moves = state(board)["moves"]
    assert [move["n_items"] for move in moves[:3]] == [999, 998, 997]
    assert len(moves) == 60


def test_a_stretch_of_the_timeline_is_drawn_larger_than_the_whole(sample_run):
    events = list(sample_run(n_items=7000, stages={"a": 0.01}, samples=False, gap_s=1e-4))
    board = board_of(events)
    whole = board.timeline(None, None, 1000)
    assert sum(len(row["start"]) for row in whole["rows"]) <= 6_000
    begin_s, end_s = whole["end_s"] / 2, whole["end_s"] / 2 + 1.0
    part = board.timeline(begin_s, end_s, 2000)
    assert part["end_s"] == whole["end_s"]
    good = [one for one in events if isinstance(one, Span) and one.status == "ok"]
    for row in part["rows"]:
        own = [one for one in good if one.device == row["device"]]
        n_exact = sum(one.stop_s >= begin_s and one.start_s <= end_s for one in own)
        assert sum(row["n_items"]) == pytest.approx(n_exact, abs=1)
        assert len(row["start"]) < 2000


def test_numbers_of_items_become_curves():
    rounds = [
        ItemFinished(float(i), "round", i, f"round {i}", {"loss": 1 / (i + 1), "n": i}) for i in range(9)
    ]
    measures = state(board_of(rounds))["measures"]
    assert measures["round"]["series"]["loss"][:2] == [1.0, 0.5]
    assert measures["round"]["width"] == 1


def test_frames_hold_only_what_changed():
    frames = Frames()
    assert frames.since(0) == (0, None)
    frames.put({"a": 1, "b": {"x": "</script>"}})
    version = frames.version
    frames.put({"a": 1})
    assert frames.version == version
    frames.put({"a": 2, "b": {"x": "</script>"}})
    version, text = frames.since(1)
    assert json.loads(text) == {"a": 2}
    assert json.loads(frames.since(0)[1]) == {"a": 2, "b": {"x": "</script>"}}
    assert frames.since(version) == (version, None)


def test_a_picture_that_is_shown_no_more_is_there_for_a_while(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="needs evenload[jobs]")
    monkeypatch.setattr("evenload.dashboard.board.MOST_GONE", 2)
    pictures, gallery = Pictures(tmp_path), Gallery(max_items=1)
    sources = []
    for index in range(5):
        image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / f"{index}.png")
        outputs = {"made": f"{index}.png", "score": -float(index)}
        gallery.add(ItemFinished(0.0, "s", index, f"item {index}", outputs))
        (shown,) = pictures.section(gallery)["items"]
        sources.append(int(shown["pictures"][0]["src"].rpartition("/")[2]))
    assert sources == [1, 2, 3, 4, 5]
    assert [pictures.get(number) is not None for number in sources] == [False, False, True, True, True]
