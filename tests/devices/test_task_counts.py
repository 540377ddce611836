import threading

import pytest

from evenload.devices.pool import TaskCounter, TaskCounts
from evenload.errors import ConfigError


def test_counts_and_mean():
    ledger = TaskCounter()
    assert ledger.counts("cpu:0") == TaskCounts()
    assert ledger.counts("cpu:0").mean_task_s is None
    ledger.started("cpu:0")
    ledger.started("cpu:0")
    ledger.finished("cpu:0", 0.5)
    assert ledger.counts("cpu:0") == TaskCounts(running=1, done=1, busy_s=0.5)
    ledger.finished("cpu:0", 1.5)
    assert ledger.counts("cpu:0").mean_task_s == 1.0


@pytest.mark.parametrize("busy_s", [-1.0, float("nan")])
def test_what_cannot_have_happened_is_refused(busy_s):
    ledger = TaskCounter()
    with pytest.raises(ConfigError, match="0 were running"):
        ledger.finished("cpu:0", 1.0)
    ledger.started("cpu:0")
    with pytest.raises(ConfigError):
        ledger.finished("cpu:0", busy_s)
    assert ledger.counts("cpu:0").running == 1


def test_threads_do_not_lose_counts():
    ledger = TaskCounter()

    def work():
        for _ in range(500):
            ledger.started("a")
            ledger.finished("a", 1.0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert ledger.counts("a") == TaskCounts(running=0, done=4000, busy_s=4000.0)
