"""Tests the loop through whole maps: one that is paused begins nothing more, and goes on where it was."""

import itertools
import time

import pytest

from evenload.errors import ConfigError
from evenload.events import EventLog, Span
from evenload.executor import Executor


def nap(i):
    time.sleep(0.03)
    return i


def test_nothing_begins_while_it_is_paused(until, come_to_rest):
    spans = []
    log = EventLog(lambda event: isinstance(event, Span) and spans.append(event))
    with Executor("cpu*2", events=log, echo=False) as executor:
        results = executor.map(nap, itertools.count(), policy="pull:1")
        got = [next(results) for _ in range(6)]
        executor.pause()
        executor.pause()
        until(lambda: executor.is_paused, "it is paused")
        n_before = len(spans)
        n_at_rest = come_to_rest(executor, lambda: len(spans))
        assert n_at_rest <= n_before + 2 + 2, "what ran on both, and what was dealt as it was told"
        n_before = len(spans)
        executor.resume()
        while len(spans) < n_before + 5:
            got.append(next(results))
        results.stop()
        assert [*got, *results] == list(range(len(spans)))
    assert not executor.is_paused


def test_a_caller_that_works_itself_cannot_be_paused():
    with Executor("cpu", backend="inline", echo=False) as executor:
        with pytest.raises(ConfigError, match="own thread"):
            executor.pause()
        assert list(executor.map(nap, range(3))) == [0, 1, 2]
