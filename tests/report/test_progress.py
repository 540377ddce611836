"""Progress never breaks a run, never touches stdout, and is quiet when asked."""

import io
import sys
import threading

import pytest

from evenload.errors import UnknownName
from evenload.events import EventLog
from evenload.report import progress as module
from evenload.report.progress import Progress, _Lines, make_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def feed(progress, events):
    log = EventLog(progress)
    for event in events:
        log.emit(event)
    progress.close()
    assert log.sink_errors == []


@pytest.fixture
def on_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def drawn(progress, stream, events):
    feed(progress, events)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("mode", "stream", "term", "shown", "escapes"),
    [
        ("auto", io.StringIO, "xterm", "score 6/6", False),  # lines where there is no terminal
        ("auto", Terminal, "xterm", "6/6", True),
        ("auto", Terminal, "dumb", "score 6/6", False),
        ("always", Terminal, "dumb", "▮", None),
        ("always", io.StringIO, "xterm", "6/6", None),
        ("never", Terminal, "xterm", "", False),
    ],
)
def test_a_bar_is_drawn_where_it_can_be_and_lines_elsewhere(
    sample_run, monkeypatch, capsys, mode, stream, term, shown, escapes
):
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = stream()
    text = drawn(make_progress(mode, out), out, sample_run(n_items=6))
    assert shown in text
    assert bool(text) == (mode != "never")
    assert escapes is None or ("\x1b" in text) == escapes
    assert capsys.readouterr().out == ""


def test_a_line_every_ten_seconds_and_none_twice(sample_run):
    out = io.StringIO()
    lines = _Lines(out)
    assert lines.every_s == 10.0
    progress = Progress(None)
    for event in sample_run(n_items=12):
        progress.pace(event)
    lines.draw(progress.pace)
    lines.draw(progress.pace)
    assert len(out.getvalue().splitlines()) == 1


def test_no_color_is_honoured(sample_run, on_terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    text = drawn(make_progress(stream=out), out, sample_run(n_items=6))
    assert "[31m" not in text
    assert "[38;" not in text


def test_without_rich_a_single_line(sample_run, on_terminal, monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    out = Terminal()
    text = drawn(make_progress(stream=out), out, sample_run(n_items=6))
    assert "\rscore 6/6" in text
    assert text.endswith("\n")


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_a_closed_pipe_ends_the_drawing_only(sample_run, mode):
    progress = make_progress(mode, Broken())
    feed(progress, sample_run(n_items=6))
    assert isinstance(progress.error, BrokenPipeError)


def test_its_thread_ends_with_it_and_a_stream_may_be_missing(sample_run, monkeypatch):
    before = set(threading.enumerate())
    feed(make_progress(stream=io.StringIO()), sample_run(n_items=6))
    assert set(threading.enumerate()) <= before
    monkeypatch.setattr(sys, "stderr", None)
    progress = make_progress()
    feed(progress, sample_run(n_items=2))
    assert progress.error is None


def test_an_unknown_mode_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'auto'"):
        make_progress("atuo")
