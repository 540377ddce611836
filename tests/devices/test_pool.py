import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenload.devices import Device, DevicePool, ProbeReport, Reading, ScoreWeights
from evenload.devices import pool as pool_module
from evenload.devices.probe import PROBES
from evenload.errors import ConfigError, NoUsableDevice, UnknownName

GIB = 2**30
SLOW = Device("cuda:0", "discrete", "cuda", "GTX 1060", 6 * GIB, 10)
FAST = Device("cuda:1", "discrete", "cuda", "H200", 141 * GIB, 132)
ALSO_FAST = Device("cuda:2", "discrete", "cuda", "H200", 141 * GIB, 132)
CPU = Device("cpu:0", "cpu", "cpu", "AMD EPYC", 32 * GIB, 16, threads=16)


def test_the_real_machine_always_has_its_cpu(no_cache):
    with DevicePool.discover() as pool:
        assert "cpu:0" in pool
        assert {report.name for report in pool.reports} == set(PROBES)
        assert len(pool.select("all")) >= 1
        load = pool.load("cpu:0")
        assert load.reading.memory_total_bytes == pool.device("cpu:0").memory_bytes


def test_discovery_links_what_is_seen_twice():
    twin = Device("wgpu:0", "discrete", "vulkan", "H200")
    probes = {
        "cuda": lambda: ProbeReport("cuda", (FAST,)),
        "wgpu": lambda: ProbeReport("wgpu", (twin,)),
        "cpu": lambda: ProbeReport("cpu", (CPU,)),
    }
    pool = DevicePool.discover(probes=probes)
    assert pool.device("wgpu:0").same_as == "cuda:1"
    assert pool.select("all").ids == ("cuda:1",)


def test_work_on_the_cpu_does_not_wait_for_the_drivers_of_others(monkeypatch):
    asked = []

    def probe(name, *devices):
        return lambda: asked.append(name) or ProbeReport(name, devices)

    table = {
        "cuda": probe("cuda", FAST),
        "mps": probe("mps"),
        "wgpu": probe("wgpu"),
        "cpu": probe("cpu", CPU),
    }
    monkeypatch.setattr(pool_module, "PROBES", table)
    assert DevicePool.find("cpu*2").ids == ("cpu:0", "cpu:1")
    assert asked == ["cpu"]
    assert DevicePool.find().ids == ("cuda:1",)
    assert asked == ["cpu", "cuda", "mps", "cpu"]
    with pytest.raises(NoUsableDevice):
        DevicePool.find("wgpu:0")
    assert asked[4:] == ["cuda", "mps", "wgpu", "cpu"]
    with pytest.raises(ConfigError):
        DevicePool.find("")
    with pytest.raises(ConfigError):
        DevicePool.find(None)


def test_it_is_an_ordered_set_of_devices():
    pool = DevicePool([SLOW, FAST, CPU])
    assert list(pool) == [SLOW, FAST, CPU]
    assert (len(pool), "cuda:1" in pool, "cuda:9" in pool) == (3, True, False)
    assert repr(pool) == "DevicePool(cuda:0, cuda:1, cpu:0)"
    assert pool.device("cuda:1") is FAST
    with pytest.raises(UnknownName, match="cuda:9"):
        pool.device("cuda:9")
    with pytest.raises(ConfigError, match="same id"):
        DevicePool([SLOW, SLOW])


@pytest.fixture
def busy(monkeypatch):
    """What the drivers say of each device's utilisation; nothing unless a test says so."""
    shares: dict[str, float | None] = {}

    class Drivers:
        def read(self, device):
            return Reading(utilization=shares.get(device.id))

        def close(self):
            pass

    monkeypatch.setattr(pool_module, "Readings", Drivers)
    return shares


def test_best_is_the_highest_score_times_what_is_free(busy):
    pool = DevicePool([CPU, SLOW, FAST])
    busy.update({"cuda:0": 1.0, "cuda:1": 1.0, "cpu:0": 1.0})
    assert pool.best() is FAST, "all are full"
    busy.clear()
    for _ in range(9):
        pool.task_started(pool.best().id)
    running = {device: pool.load(device).running for device in pool.ids}
    assert sum(running.values()) == 9
    assert running["cuda:1"] > running["cuda:0"] > 0, "many calls are shared out by score"


@given(
    shares=st.lists(st.none() | st.floats(-0.5, 1.5), min_size=3, max_size=3),
    running=st.lists(st.integers(0, 5), min_size=3, max_size=3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_best_has_the_most_to_give(busy, shares, running):
    busy.update(zip(("cuda:0", "cuda:1", "cpu:0"), shares, strict=True))
    pool = DevicePool([SLOW, FAST, CPU])
    for device, n in zip(pool.ids, running, strict=True):
        for _ in range(n):
            pool.task_started(device)
    gives = {}
    for device, share, n in zip(pool, shares, running, strict=True):
        by_driver = 1 - sorted((0.0, share or 0.0, 1.0))[1]
        gives[device.id] = pool.score(device.id) * (by_driver if by_driver < 1 / (n + 1) else 1 / (n + 1))
    assert gives[pool.best().id] == max(gives.values())


def test_among_equals_the_first_that_runs_least_is_best():
    pool = DevicePool([SLOW, FAST, ALSO_FAST])
    assert pool.best() is FAST
    pool.task_started("cuda:1")
    assert pool.best() is ALSO_FAST
    pool.task_finished("cuda:1", 0.1)
    assert pool.best() is FAST
    with pytest.raises(NoUsableDevice):
        DevicePool([]).best()


def test_scores_follow_the_pools_weights():
    by_memory = DevicePool([SLOW, CPU], weights=ScoreWeights(0, 0, 1, 0))
    assert by_memory.score("cpu:0") > by_memory.score("cuda:0")
    assert by_memory.select("cpu").weights is by_memory.weights
    facts = by_memory.facts()["cuda:0"]
    assert (facts["id"], facts["memory_bytes"]) == ("cuda:0", 6 * GIB)
    assert facts["score"] == by_memory.score("cuda:0")


class Driver:
    """Stands at the readings' boundary: answers, and says whether it was closed."""

    def __init__(self):
        self.is_closed = False

    def read(self, device):
        return Reading(utilization=0.25)

    def close(self):
        self.is_closed = True


def test_load_joins_the_drivers_view_and_ours(monkeypatch):
    drivers = []
    monkeypatch.setattr(pool_module, "Readings", lambda: drivers.append(Driver()) or drivers[-1])
    ticks = iter([10.0, 12.5, 20.0, 20.5])
    pool = DevicePool([SLOW], clock=lambda: next(ticks))
    with pool.task("cuda:0") as device:
        assert device is SLOW
        assert pool.load("cuda:0").running == 1
    with pytest.raises(KeyError), pool.task("cuda:0"):
        raise KeyError("a task that fails is over too")
    load = pool.load("cuda:0")
    assert (load.running, load.tasks_done, load.busy_s, load.mean_task_s) == (0, 2, 3.0, 1.5)
    assert load.reading.utilization == 0.25
    pool.close()
    assert [driver.is_closed for driver in drivers] == [True]
    pool.close()
    assert pool.load("cuda:0").reading.utilization == 0.25, "opened again"


def test_accounts_are_the_selections_own_and_check_their_devices():
    pool = DevicePool([SLOW, FAST])
    selected = pool.select("cuda:0")
    selected.task_started("cuda:0")
    assert pool.load("cuda:0").running == 0
    with pytest.raises(UnknownName):
        selected.task_started("cuda:1")
    with pytest.raises(ConfigError, match="0 were running"):
        pool.task_finished("cuda:0", 1.0)
    pool.task_started("cuda:0")
    for busy_s in (-1.0, float("nan")):
        with pytest.raises(ConfigError):
            pool.task_finished("cuda:0", busy_s)
    assert (pool.load("cuda:0").running, pool.load("cuda:0").mean_task_s) == (1, None)


def test_many_threads_may_use_it():
    pool = DevicePool([SLOW, FAST])
    errors = []

    def work(device_id):
        try:
            for _ in range(200):
                with pool.task(device_id):
                    pool.best()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(d,)) for d in ("cuda:0", "cuda:1") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert not errors
    assert [pool.load(d).tasks_done for d in pool.ids] == [600, 600]
    assert [pool.load(d).running for d in pool.ids] == [0, 0]
