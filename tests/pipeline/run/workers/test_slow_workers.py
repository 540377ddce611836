"""How long an item over its time limit goes on, by a clock that the test moves."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.hang_watch import HangWatch
from evenload.pipeline.dispatch.item_flow import StageTask, TimeLimit
from evenload.pipeline.run.workers.slow_workers import SlowWorkers

TASK = StageTask(0, 0)
STACK = ["Thread 0x1 (most recent call first):", '  File "own.py", line 4 in __call__']


def looks(limit_s: float, says_where: bool) -> Iterator[tuple[float, Any]]:
    """Yield the seconds that an item of one worker has run at each look, and the verdicts."""
    worker = SimpleNamespace(number=1, stack=None)
    group = DeviceGroup("cpu:0", ("cpu:0",))
    group.running[TASK] = 0.0
    supervisor: Any = SimpleNamespace(
        workers={"cpu:0": worker},
        ask_stack=lambda one: setattr(one, "stack", STACK if says_where else []),
    )
    dispatcher: Any = SimpleNamespace(groups={"cpu:0": group}, n_ready=lambda now: 0)
    record: Any = SimpleNamespace(note=lambda *_: None)
    watch = HangWatch(lambda task: TimeLimit(limit_s, f"{limit_s:g} s"))
    slow = SlowWorkers(watch, supervisor, dispatcher, record, str, limit_s)
    now = 0.0
    while True:
        yield now, list(slow.look(now))
        now += slow.poll_s


@pytest.mark.parametrize("says_where", [True, False])
@pytest.mark.parametrize("limit_s", [0.05, 0.5, 2.0, 60.0])
def test_an_item_over_its_limit_is_ended_before_it_has_run_for_three_times_as_long(
    limit_s: float, says_where: bool
) -> None:
    ended_s, verdicts = next((now, found) for now, found in looks(limit_s, says_where) if found)
    ((_, order, stack),) = verdicts
    assert order.failed == (TASK,)
    assert limit_s < ended_s < 3 * limit_s
    assert ("own.py" in stack) is says_where
