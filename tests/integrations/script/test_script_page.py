"""What a pool tells its page adds up to what its calls were, however they came."""

import itertools
import os
import tempfile
import time
from pathlib import Path

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.events import ItemFailed, RunFinished, RunStarted, Span, read_events
from evenload.integrations.script.measured_work import Done
from evenload.integrations.script.script_page import ScriptPage
from evenload.report.tally import summarise

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["edit", "score"]),
        st.sampled_from(["cpu:0", "cpu:1"]),
        st.integers(1, 5),
        st.sampled_from([0.0, 0.001, 0.04, 0.3]),  # since the worker's last call
        st.sampled_from([0.001, 0.09, 0.2]),
        st.booleans(),
    ),
    max_size=60,
)


@given(CALLS)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_told_adds_up(calls):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.touch()
        alive = os.pipe()
        page = ScriptPage("own.py", str(path), alive[1])
        pool = page.join(["cpu:0", "cpu:1"])
        now, began_s = dict.fromkeys(("cpu:0", "cpu:1"), 0.0), time.monotonic()
        n_done, n_failed, busy_s = 0, 0, 0.0
        for name, slot, n_items, pause_s, seconds, is_bad in calls:
            start_s = now[slot] + pause_s
            now[slot] = start_s + seconds
            done = Done(name, slot, n_items, 0, began_s + start_s, began_s + start_s, began_s + now[slot])
            pool.done(done, slot, b"ValueError\0Traceback\nValueError: no: good" if is_bad else b"")
            n_done, n_failed = n_done + (0 if is_bad else n_items), n_failed + is_bad
            busy_s += seconds
        page.close()
        os.close(alive[0])
        events = list(read_events(path))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    summary = summarise(events)
    assert (summary.n_done, summary.n_failed) == (n_done, n_failed)
    assert sum(one.n_done for one in summary.stages) == n_done
    assert abs(sum(one.busy_s for one in summary.devices) - busy_s) < 1e-6
    assert summary.status == ("failures" if n_failed else "done")
    failures = [one for one in events if isinstance(one, ItemFailed)]
    assert all((one.error, one.message) == ("ValueError", "no: good") for one in failures)
    for slot in now:
        spans = [one for one in events if isinstance(one, Span) and one.device == slot]
        assert all(a.stop_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(spans))
