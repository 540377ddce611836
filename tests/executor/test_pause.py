"""A run that is paused begins nothing more, ends what runs, and goes on where it was."""

import time

import pytest

from evenload.errors import ConfigError
from evenload.events import EventLog, Span
from evenload.executor import Executor


def nap(i):
    time.sleep(0.03)
    return i


def test_nothing_begins_while_it_is_paused():
    spans = []
    log = EventLog(lambda event: isinstance(event, Span) and spans.append(event))
    with Executor("cpu*2", events=log, echo=False) as executor:
        results = executor.map(nap, range(60), policy="pull:1")
        got = [next(results) for _ in range(6)]
        executor.pause()
        executor.pause()
        time.sleep(0.5)  # what ran is over
        n_before = len(spans)
        time.sleep(0.5)
        assert len(spans) == n_before < 60
        assert executor.is_paused
        executor.resume()
        assert got + list(results) == list(range(60))
    assert not executor.is_paused


def test_a_caller_that_works_itself_cannot_be_paused():
    with Executor("cpu", backend="inline", echo=False) as executor:
        with pytest.raises(ConfigError, match="own thread"):
            executor.pause()
        assert list(executor.map(nap, range(3))) == [0, 1, 2]
