"""Damaged and strange run folders: what can be read is read, the rest is counted and named."""

import json
import tempfile
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import pytest
from examples_count import examples
from hypothesis import given, settings

from evenload.errors import ConfigError
from evenload.events import ItemFinished, Note, RunFinished, RunStarted, Span, decode, encode
from evenload.report.source import Follower, RunClock, is_sane, open_run, read_config
from evenload.report.tally import summarise

GOOD = [RunStarted(0.0, "r", 0.0, 1), Span("s", "a", "a", 0, 1, 0.0, 1.0), RunFinished(1.0, "done")]


def write(folder, *lines):
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    return folder


def test_a_whole_folder(tmp_path):
    reading = open_run(write(tmp_path, *map(encode, GOOD)))
    assert (list(reading), reading.faults()) == (GOOD, [])
    assert list(open_run(tmp_path / "events.jsonl")) == GOOD


def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path):
    lines = [
        encode(GOOD[0]),
        '{"event":"Span","stage":"s","device":"a","worker":"a","index":0,"n_items":1,"start_s":"soon","stop_s":1}',
        '{"event":"Span","stage":"s","device":"a","worker":"a","index":0,"n_items":1,"start_s":NaN,"stop_s":1}',
        '{"event":"Span","stage":["s"],"device":"a","worker":"a","index":0,"n_items":1,"start_s":0,"stop_s":1}',
        '{"event":"RunStarted","t":0,"name":"r","unix_s":0,"devices":["cuda:0"]}',
        '{"event":"RunStarted","t":0,"name":"r","unix_s":0,"devices":{"cuda:0":7}}',
        '{"event":"ItemFinished","t":1,"stage":"s","index":0,"item":"i","outputs":[1]}',
        "[1, 2]",
        "\x00\x00\x00",
        encode(GOOD[1])[:40],
    ]
    reading = open_run(write(tmp_path, *lines))
    assert list(reading) == GOOD[:1]
    assert reading.n_damaged == 9
    assert "9 lines were damaged" in reading.faults()[0]


def test_events_and_fields_of_a_newer_version_are_named_and_let_be(tmp_path):
    newer = json.dumps({"event": "Teleported", "t": 1.0})
    span = json.dumps(json.loads(encode(GOOD[1])) | {"colour": "blue"})
    reading = open_run(write(tmp_path, encode(GOOD[0]), newer, newer, span))
    assert list(reading) == GOOD[:2]
    assert any("Teleported" in fault and "2" in fault for fault in reading.faults())
    list(reading)
    assert reading.unknown["Teleported"] == 2  # a second reading does not count twice


def test_a_run_without_events_says_so(tmp_path):
    assert read_config(None) == ""
    (tmp_path / "config.yaml").write_text("name: x\n")
    reading = open_run(tmp_path)
    assert (list(reading), "missing" in reading.faults()[0]) == ([], True)
    assert read_config(tmp_path) == "name: x\n"
    (tmp_path / "events.jsonl").touch()
    reading = open_run(tmp_path)
    assert (list(reading), "no event" in reading.faults()[0]) == ([], True)


@pytest.mark.parametrize("make", ["nothing", "empty folder"])
def test_no_run_is_an_error_that_says_what_to_do(tmp_path, make):
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", encode(GOOD[0]))
    target = tmp_path / "run"
    if make == "empty folder":
        target.mkdir()
    with pytest.raises(ConfigError) as caught:
        open_run(target)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_the_parent_of_runs_proposes_one(tmp_path):
    (tmp_path / "run-1").mkdir()
    write(tmp_path / "run-1", encode(GOOD[0]))
    with pytest.raises(ConfigError, match="run-1"):
        open_run(tmp_path)
    long = tmp_path / ("a folder of a long name" * 2)
    long.mkdir()
    (tmp_path / "run-1").rename(long / "run-2")
    with pytest.raises(ConfigError, match="run-2"):
        open_run(long)


def test_sessions_of_a_resumed_run_follow_one_another():
    first = [RunStarted(0.0, "r", 0.0, 2), Span("s", "a", "a", 0, 1, 1.0, 3.0, dealt_s=0.5)]
    second = [RunStarted(0.0, "r", 900.0, 2), Span("s", "a", "a", 1, 1, 1.0, 2.0, dealt_s=0.5)]
    joined = list(map(RunClock().place, [*first, *second, RunFinished(2.5, "done")]))
    assert (joined[3].start_s, joined[3].stop_s, joined[3].dealt_s) == (4.0, 5.0, 3.5)
    assert joined[4].t == 5.5
    summary = summarise(joined)
    assert (summary.n_done, summary.wall_s, summary.status) == (2, 5.5, "done")


NAMES = ["event", "t", "stage", "device", "index", "n_items", "start_s", "stop_s", "worker", "name"]
values = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.sampled_from(["Span", "Note"])
)
lines = st.text(max_size=60) | st.dictionaries(st.sampled_from(NAMES), values).map(json.dumps)


@settings(max_examples=examples(50))
@given(lines)
def test_no_line_breaks_the_numbers(line):
    event = decode(line)
    if event is not None and is_sane(event):
        summary = summarise([event])
        assert json.loads(json.dumps(summary.to_json(), allow_nan=False))["schema"] == 1
        assert summary.wall_s >= 0


def test_outputs_may_be_any_mapping():
    assert is_sane(ItemFinished(0.0, "s", 0, "i", {"a": 1}))
    assert not is_sane(ItemFinished(float("inf"), "s", 0, "i"))


@pytest.mark.parametrize(
    "content", [b"", b"job:\n  name: x\n", b"print(1)\n", bytes(range(256)) * 16, b'{"id": 1}\n']
)
def test_a_file_without_events_is_no_run(tmp_path, content):
    """Oracle: files that people have, none of which a run wrote."""
    path = tmp_path / "some.file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no run: it holds no event"):
        open_run(path)
    path.write_bytes(content + b"\n" + encode(GOOD[0]).encode() + b"\n")
    assert list(open_run(path)) == GOOD[:1]


def span(i, t=1.0):
    return Span("map", "a", "w", i, 1, t * i, t * (i + 1))


def all_of(follower):
    events = []
    while True:
        got = follower.read()
        events += got or []
        if not follower.is_behind:
            return events


def test_a_replaced_or_cut_file_begins_anew(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(encode(span(i)) + "\n" for i in range(3)))
    follower = Follower(path)
    assert len(all_of(follower)) == 3
    path.write_text(encode(span(7)) + "\n")
    assert follower.read() is None
    assert all_of(follower) == [span(7)]
    (tmp_path / "new").write_text("".join(encode(span(i)) + "\n" for i in range(9)))
    (tmp_path / "new").rename(path)
    assert follower.read() is None
    assert len(all_of(follower)) == 9
    with path.open("a") as file:
        file.write(encode(span(9))[:40])
    assert (all_of(follower), follower.faults(True)) == ([], ["The last line is half-written, and left out."])


def test_a_line_without_an_end_takes_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("evenload.report.source.MOST_LINE", 2 << 20)
    with (tmp_path / "events.jsonl").open("w") as file:
        for _ in range(40):
            file.write("x" * (1 << 20))
        file.write("\n" + encode(Note(1.0, "info", "a", "b")) + "\n")
    follower = Follower(tmp_path / "events.jsonl")
    tracemalloc.start()
    try:
        assert all_of(follower) == [Note(1.0, "info", "a", "b")]
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
    assert follower.sieve.n_damaged == 1


JUNK = ["{half", "", "[1]", '{"event":"Hologram","t":1}', "\x00\ufffd", '{"event":"Note","t":"soon"}']


@given(
    st.lists(st.integers(0, 9) | st.sampled_from(JUNK), max_size=12),
    st.lists(st.integers(1, 300), max_size=12),
    st.booleans(),
)
def test_however_it_grows_the_same_events_are_read(rows, cuts, has_end):
    """Oracle: the events that were written, among junk: each comes once and in order, whole and in pieces."""
    lines = [encode(span(one)) if isinstance(one, int) else one for one in rows]
    written = ("\n".join(lines) + "\n" * has_end).encode("utf-8", "surrogateescape")
    wanted = [span(one) for one in rows if isinstance(one, int)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        follower, found = Follower(path), []
        for cut in [*cuts, len(written)]:
            with path.open("ab") as file:
                file.write(written[:cut])
            written = written[cut:]
            found += all_of(follower)
        assert list(Follower(path).whole()) == wanted
    is_last_open = bool(rows) and isinstance(rows[-1], int) and not has_end
    assert found == wanted[: len(wanted) - is_last_open]
