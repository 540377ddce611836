"""Reading a file that grows, is cut, replaced, damaged, or not there yet."""

import json
import tempfile
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from evenload.events import EventFile, Note, RunStarted, Span, encode
from evenload.report.source import Follower


def span(i, t=1.0):
    return Span("map", "a", "w", i, 1, t * i, t * (i + 1))


def all_of(follower):
    events = []
    while True:
        got = follower.read()
        events += got or []
        if not follower.is_behind:
            return events


def test_events_come_once_as_the_file_grows(tmp_path):
    follower = Follower(tmp_path / "events.jsonl")
    assert follower.read() == []
    with (tmp_path / "events.jsonl").open("w") as file:
        text = encode(span(0)) + "\n" + encode(span(1)) + "\n"
        for at in range(0, len(text), 7):
            file.write(text[at : at + 7])
            file.flush()
            if at == 70:
                half = follower.read()
                assert half == []
    assert follower.read() == [span(0), span(1)]
    assert follower.read() == []


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


def test_sessions_of_a_resumed_run_follow_one_another(tmp_path):
    with EventFile(tmp_path / "events.jsonl") as sink:
        for _ in range(2):
            sink(RunStarted(0.0, "x", 0.0))
            sink(span(1))
    events = all_of(Follower(tmp_path / "events.jsonl"))
    assert [event.stop_s for event in events if isinstance(event, Span)] == [2.0, 4.0]


def test_what_cannot_be_read_is_counted_and_named(tmp_path):
    good = encode(span(0))
    lines = [good, "{half", json.dumps({"event": "Hologram", "t": 1}), "[" * 100_000, "\x00\xff", good[:40]]
    (tmp_path / "events.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    follower = Follower(tmp_path / "events.jsonl")
    assert all_of(follower) == [span(0)]
    assert follower.faults(False) == [
        "3 lines were damaged or half-written, and left out.",
        "1 × 'Hologram': an event that this version does not know; a newer one may.",
    ]
    assert follower.faults(True)[-1] == "The last line is half-written, and left out."


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
