"""Devices that come and go in other threads while runs are made, begun and fetched: by chance, from seeds."""

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import evenload
from evenload.errors import ConfigError
from evenload.executor import Executor
from evenload.executor.partitioned import STRATEGIES

SLOTS = ("cpu:0", "cpu:1", "cpu:2")
POLICIES = ("measured", "pull", "static", "static:proportional", "factoring", "guided")


def double(x: int) -> int:
    return 2 * x


def one_run(executor: Executor, chance: random.Random) -> None:
    n = chance.randrange(1, 40)
    if chance.random() < 0.4:
        done = evenload.run_partitioned(list, list(range(n)), chance.choice(STRATEGIES), executor=executor)
        assert done.joined() == list(range(n))
        assert done.summary.failed == 0
        return
    items = range(n) if chance.random() < 0.5 else iter(range(n))
    policy = chance.choice(POLICIES)
    got = list(executor.map(double, items, policy=policy, ordered=chance.random() < 0.5))
    assert sorted(got) == [2 * x for x in range(n)]


def change(executor: Executor, chance: random.Random) -> None:
    """Drain or add a slot. That it is refused now and then is right: the other thread was faster."""
    slot = chance.choice(SLOTS)
    refusals = f"unknown device '{slot}'|{slot} takes part already|nobody would work without {slot}"
    try:
        if chance.random() < 0.5:
            executor.drain(slot, at_once=chance.random() < 0.3)
        else:
            executor.add(slot)
    except ConfigError as error:
        if not re.match(refusals, error.message):
            raise


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize(
    ("backend", "n_runs", "seed"),
    [
        ("inline", 40, 1),
        ("inline", 40, 2),
        ("process", 3, 1),
        pytest.param("process", 150, 2, marks=pytest.mark.slow),
    ],
)
def test_every_run_is_whole_whatever_comes_and_goes(backend: str, n_runs: int, seed: int) -> None:
    is_over = threading.Event()
    with (
        Executor("cpu*3", backend=backend, echo=False) as executor,
        ThreadPoolExecutor(4) as threads,
    ):
        n_changes = threading.Semaphore(4)  # so that workers have time to come up at all

        def keep_changing(number: int) -> None:
            chance = random.Random(f"{seed} {number}")
            while not is_over.is_set():
                if n_changes.acquire(timeout=0.05):
                    change(executor, chance)

        def keep_running(number: int) -> None:
            chance = random.Random(f"{seed} runs {number}")
            for _ in range(n_runs):
                one_run(executor, chance)
                n_changes.release(4)

        changing = [threads.submit(keep_changing, number) for number in range(2)]
        try:
            # Inline, the runs of several threads would step one engine at the same time.
            running = [
                threads.submit(keep_running, number) for number in range(2 if backend != "inline" else 1)
            ]
            for one in running:
                one.result(timeout=500)
        finally:
            is_over.set()
        for one in changing:
            one.result(timeout=500)
        assert set(executor.devices.ids) <= set(SLOTS)
        assert executor.submit(double, 4).result(100) == 8


@pytest.mark.parametrize("seed", range(30))
def test_counts_of_a_static_partition_stay_with_their_devices(seed: int) -> None:
    """Runs that are made, begun and fetched at random points between changes, all in one thread."""
    chance = random.Random(seed)
    with Executor("cpu*3", backend="inline") as executor:
        runs = []
        for _ in range(30):
            if chance.random() < 0.4:
                change(executor, chance)
            elif chance.random() < 0.5:
                counts = tuple(chance.randrange(0, 5) for _ in executor.devices)
                items = range(sum(counts)) if chance.random() < 0.7 else iter(range(sum(counts)))
                policy = evenload.balance.policy.Static(counts)
                runs.append((sum(counts), executor.map(double, items, policy=policy), []))
            elif runs:
                n, results, got = chance.choice(runs)
                if len(got) < n:
                    got.append(next(results))
        for n, results, got in runs:
            assert got + list(results) == [2 * x for x in range(n)]


def test_a_snapshot_stays_as_it_is() -> None:
    with Executor("cpu*3", backend="inline") as executor:
        before = executor.devices
        executor.drain("cpu:1")
        assert (before.ids, executor.devices.ids) == (SLOTS, ("cpu:0", "cpu:2"))


def test_slices_are_cut_for_the_devices_that_they_are_dealt_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device leaves between the cutting and the run."""
    from evenload.executor import partitioned

    with Executor("cpu*3", backend="inline") as executor:
        usual = partitioned._split

        def and_one_leaves(*arguments):
            cut = usual(*arguments)
            executor.drain("cpu:2")
            return cut

        monkeypatch.setattr(partitioned, "_split", and_one_leaves)
        done = evenload.run_partitioned(list, list(range(9)), "equal", executor=executor)
        assert done.joined() == list(range(9))
        assert {piece.device for piece in done.slices} == {"cpu:0", "cpu:1"}
