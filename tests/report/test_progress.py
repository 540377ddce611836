"""Progress never breaks a run, never touches stdout, and is quiet when asked."""

import io
import subprocess
import sys
import threading

import pytest

from evenload.errors import UnknownName
from evenload.events import EventLog
from evenload.report import progress as module
from evenload.report.progress import Progress, _Bar, _Lines, _OneLine, make_progress


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


def test_lines_where_there_is_no_terminal(sample_run):
    out = io.StringIO()
    feed(make_progress(stream=out), sample_run(n_items=12))
    assert out.getvalue().splitlines()[-1].startswith("score 12/12")
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


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


def test_a_bar_on_a_terminal(sample_run, on_terminal, capsys):
    out = Terminal()
    feed(make_progress(stream=out), sample_run(n_items=12))
    assert "12/12" in out.getvalue()
    assert "cuda:0" in out.getvalue()
    assert capsys.readouterr().out == ""


def test_no_color_is_honoured(sample_run, on_terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    feed(make_progress(stream=out), sample_run(n_items=6))
    assert "[31m" not in out.getvalue()
    assert "[38;" not in out.getvalue()


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_a_dumb_terminal_gets_no_escapes_by_itself(sample_run, monkeypatch, mode):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    progress = make_progress(mode, out)
    assert isinstance(progress._drawing, _Lines if mode == "auto" else _Bar)
    if mode == "auto":
        feed(progress, sample_run(n_items=6))
        assert "\x1b" not in out.getvalue()


def test_always_draws_a_bar_into_a_file(sample_run):
    out = io.StringIO()
    feed(make_progress("always", out), sample_run(n_items=6))
    assert "6/6" in out.getvalue()


def test_never_is_silent(sample_run):
    out = Terminal()
    feed(make_progress("never", out), sample_run(n_items=6))
    assert out.getvalue() == ""


def test_without_rich_a_single_line(sample_run, on_terminal, monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    out = Terminal()
    progress = make_progress(stream=out)
    assert isinstance(progress._drawing, _OneLine)
    feed(progress, sample_run(n_items=6))
    assert "\rscore 6/6" in out.getvalue()
    assert out.getvalue().endswith("\n")


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_a_closed_pipe_ends_the_drawing_only(sample_run, mode):
    progress = make_progress(mode, Broken())
    feed(progress, sample_run(n_items=6))
    assert isinstance(progress.error, BrokenPipeError)


def test_its_thread_ends_with_it(sample_run):
    before = set(threading.enumerate())
    progress = make_progress(stream=io.StringIO())
    feed(progress, sample_run(n_items=6))
    progress.close()
    assert set(threading.enumerate()) <= before


def test_a_stream_that_is_not_there(monkeypatch, sample_run):
    monkeypatch.setattr(sys, "stderr", None)
    progress = make_progress()
    feed(progress, sample_run(n_items=2))
    progress.close()
    assert progress.error is None


def test_an_unknown_mode_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'auto'"):
        make_progress("atuo")


def test_importing_it_is_light():
    code = "import sys, evenload.report.progress; print({'rich', 'numpy', 'PIL'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=550
    )
    assert found.stdout.strip() == "set()"
