import json
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload import events

EXAMPLES = (
    events.RunStarted(0.0, "restore", 1.7e9, 3, {"cpu:0": {"name": "EPYC", "score": 31.5}}, {"seed": 1}),
    events.Planned(0.1, "swap", "it fits", 3.5, 3.0, [["cpu:0", "restore", "work", 0.0, 3.5, 3]]),
    events.StageStarted(0.1, "restore", None),
    events.StageFinished(0.2, "restore", 0.15),
    events.WorkerStarted(0.1, "cpu:0", "w0", 4711, 0.05),
    events.WorkerExited(0.2, "cpu:0", "w0", "signal 9"),
    events.Span("restore", "cpu:0", "w0", 0, 2, 0.1, 0.2, 0.09, "ok", "pull", 0.09, False),
    events.Idle("cpu:0", 0.1, 0.2, "tail guard"),
    events.Moved(0.1, "cpu:0", "cpu:1", 3, 0.5),
    events.Queued(0.1, "score", 7, {"cpu:0": 2}, {"cpu:0": 4}),
    events.ItemFinished(0.2, "score", 0, "a.png", {"score": 0.8, "path": "outputs/a.png"}),
    events.Restored(0.1, "score", 2, 5),
    events.ItemFailed(0.2, "score", 1, "b.png", "ValueError", "no picture", "cpu:0", "Traceback ..."),
    events.DeviceSample(0.1, "cuda:0", 0.5, 1, 2, 60.0, 0),
    events.Note(0.1, "warning", "cuda", "naïve ☃ text\nin two lines"),
    events.Replanned(0.2, "cpu:1 left", 12.5, 9.0, "swap", "saves 3.5 s"),
    events.Batched(0.2, "edit", "cuda:0", 3, 4),
    events.Counted(0.3, {"total": 3, "done": 2, "failed": 1}, {"total": 0}, {"total": 4}),
    events.RunFinished(0.3, "done", {"ratio": 1.04}),
)


def test_there_is_an_example_of_every_event_and_all_are_public():
    assert {type(event) for event in EXAMPLES} == set(events.Event.__args__)
    assert {cls.__name__ for cls in events.Event.__args__} <= set(events.__all__)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_every_event_is_one_line_of_json_and_comes_back(event):
    line = events.encode(event)
    assert "\n" not in line
    assert json.loads(line)["event"] == type(event).__name__
    assert events.decode(line) == event


def test_a_newer_versions_fields_and_events_are_passed_over():
    row = json.loads(events.encode(EXAMPLES[1])) | {"new_field": 1}
    assert events.decode(json.dumps(row)) == EXAMPLES[1]
    assert events.decode('{"event": "FromTheFuture", "t": 1}') is None


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
def test_no_line_breaks_the_reader(line):
    assert events.decode(line) is None or isinstance(events.decode(line), events.Event.__args__)


def test_files_are_read_back_but_for_what_is_damaged(tmp_path):
    path = tmp_path / "events.jsonl"
    with events.EventFile(path) as sink:
        for event in EXAMPLES:
            sink(event)
    whole = path.read_bytes()
    path.write_bytes(b"\xff\xfe not json\n" + whole + b'{"event":"Note","t":1,"lev')
    assert list(events.read_events(path)) == list(EXAMPLES)
    assert list(events.read_events(tmp_path)) == list(EXAMPLES), "a run folder will do"
    with pytest.raises(FileNotFoundError):
        list(events.read_events(tmp_path / "none"))


def test_a_file_is_appended_to_and_flushed_in_time(tmp_path):
    now = [0.0]
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        with events.EventFile(path, flush_s=1.0, clock=lambda: now[0]) as sink:
            before = path.read_text()
            sink(EXAMPLES[0])
            assert path.read_text() == before, "not yet"
            now[0] += 1.0
            sink(EXAMPLES[1])
            assert len(path.read_text().splitlines()) == len(before.splitlines()) + 2
    assert list(events.read_events(path)) == list(EXAMPLES[:2]) * 2


def test_a_log_has_the_runs_clock_and_hands_on_in_order():
    ticks = iter([100.0, 101.5])
    seen, also_seen = [], []
    log = events.EventLog(seen.append, clock=lambda: next(ticks))
    assert log.now() == 1.5
    unsubscribe = log.subscribe(also_seen.append)
    log.emit(EXAMPLES[0])
    unsubscribe()
    unsubscribe()
    log.emit(EXAMPLES[1])
    assert seen == list(EXAMPLES[:2])
    assert also_seen == list(EXAMPLES[:1])


def test_a_sink_that_raises_is_dropped_and_harms_nobody():
    seen = []

    def broken(event):
        raise OSError("disk full")

    log = events.EventLog(broken, seen.append)
    log.emit(EXAMPLES[0])
    log.emit(EXAMPLES[1])
    assert seen == list(EXAMPLES[:2])
    assert [str(error) for error in log.sink_errors] == ["disk full"]


def test_events_may_come_from_any_thread():
    seen = []
    log = events.EventLog(seen.append)
    threads = [threading.Thread(target=lambda: [log.emit(EXAMPLES[0]) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert len(seen) == 800


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        "\ud800",
        10**5000,
        -(10**5000),
        Unspeakable(),
        {(1, 2): 3},
        {"a": {b"x"}},
        LOOP,
        {10**5000: 1},
    ],
    ids=["nan", "surrogate", "long", "longer", "unspeakable", "key", "set", "loop", "long key"],
)
def test_any_value_is_strict_json_in_utf_8(value):
    text = events.json_text({"before": 1, "x": value})
    assert json.loads(text.encode("utf-8"), parse_constant=pytest.fail)["before"] == 1
    event = events.ItemFinished(0.2, "score", 0, "a", {"x": value})
    assert isinstance(events.decode(events.encode(event)), events.ItemFinished)


def test_a_file_says_why_it_stops_early(tmp_path):
    file = events.EventFile(tmp_path / "events.jsonl", flush_s=0.0)
    log = events.EventLog(file)
    log.emit(events.Note(0.0, "info", "t", "\udcff is written"))
    assert file.error is None
    file._file.close()  # as a full disk: nothing can be written any more
    log.emit(events.Note(0.0, "info", "t", "lost"))
    assert isinstance(file.error, ValueError)
    assert log.sink_errors == [file.error]
    assert [event.text for event in events.read_events(tmp_path)] == ["\udcff is written"]


@given(st.data())
def test_a_file_that_was_cut_anywhere_loses_nothing_of_what_follows(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        with events.EventFile(path) as sink:
            list(map(sink, EXAMPLES))
        whole = path.read_bytes()
        n_bytes = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:n_bytes])
        n_left = whole[:n_bytes].count(b"\n") + (whole[n_bytes : n_bytes + 1] == b"\n")
        with events.EventFile(path) as sink:
            list(map(sink, EXAMPLES))
        assert list(events.read_events(path)) == [*EXAMPLES[:n_left], *EXAMPLES]
