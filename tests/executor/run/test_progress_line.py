"""The line that says how far a map is. The oracle is a terminal: a return goes back to the line's start."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenload
from evenload.executor.run import progress_line as module
from evenload.executor.run.progress_line import ProgressLine, progress_line


def seen(text: str) -> str:
    """What stands on a line of a terminal after ``text``: a return goes back, letters take others' places."""
    shown: list[str] = []
    at = 0
    for letter in text:
        if letter == "\r":
            at = 0
            continue
        shown[at : at + 1] = letter
        at += 1
    return "".join(shown).rstrip()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 10**6)), max_size=20),
    st.none() | st.integers(1, 10**6),
)
def test_the_last_told_is_seen_whole_and_nothing_stays(steps, total):
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine(stream, clock)
    for seconds, n_done in steps:
        clock.now += seconds
        before = stream.getvalue()
        line.show(n_done, total)
        if clock.now < 1.0:
            assert stream.getvalue() == ""
        elif stream.getvalue() != before:
            told = f"{n_done} done, " if total is None else f"{n_done} of {total} done, "
            assert seen(stream.getvalue()).startswith(told)
            assert "\n" not in stream.getvalue()
    line.close()
    assert seen(stream.getvalue()) == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("asked", "variable", "stream", "is_shown"),
    [
        (None, None, Terminal, True), (None, None, io.StringIO, False), (None, "0", Terminal, False),
        (None, "1", io.StringIO, True), (False, "1", Terminal, False), (True, "0", io.StringIO, True),
    ],
)  # fmt: skip
def test_it_is_shown_where_it_is_seen_or_asked_for(monkeypatch, asked, variable, stream, is_shown):
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.delenv("EVENLOAD_PROGRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("EVENLOAD_PROGRESS", variable)
    assert (progress_line(asked) is not None) == is_shown


def test_a_map_writes_it_beside_its_results_and_takes_it_away(monkeypatch, capsys):
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    assert list(evenload.map(abs, range(5), devices="cpu*1", backend="inline", progress=True)) == list(
        range(5)
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert "5 of 5 done" in err
    assert seen(err) == ""
