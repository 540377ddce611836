"""Whatever happens to workers, every run comes to its end with one fate for each item: the real engine on
workers and a clock that are not.

The scheduler alone can be right and the run still wait for ever: if no device asks it.
"""

import contextlib
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual_workers import Clock, VirtualBackend

from evenload.balance.policy import policy_from_name
from evenload.devices import Device, DevicePool
from evenload.errors import NoUsableDevice, TaskError, WorkerLost
from evenload.events import EventLog, RunFinished, RunStarted, Span, StageFinished
from evenload.executor.decide import record as record_module
from evenload.executor.decide.delivery import Delivery
from evenload.executor.decide.record import Record
from evenload.executor.loop import chunk_sender, engine, membership
from evenload.executor.loop.cost_history import CostHistory
from evenload.executor.loop.engine import RunEngine
from evenload.executor.loop.run_factory import RunFactory
from evenload.executor.run import run as run_module
from evenload.executor.run.map_options import MapOptions
from evenload.executor.run.run import Run
from evenload.executor.supervisor import supervisor
from evenload.report.item_life import broken_steps, life_of
from evenload.report.tally import Tally

WITH_CLOCKS = (chunk_sender, engine, membership, record_module, run_module, supervisor)
DEVICES = [Device(f"cpu:{n}", "cpu", "cpu", "a CPU") for n in range(3)]
POLICIES = ("measured", "pull", "pull:3", "static", "guided", "factoring")


def double(item: Any) -> Any:
    return [2 * one for one in item] if isinstance(item, list) else 2 * item


@contextlib.contextmanager
def time_of(clock: Clock) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in WITH_CLOCKS:
            stack.enter_context(mock.patch.object(module, "time", clock))
        yield


def options_of(repeatable: bool, retries: int, **more: Any) -> MapOptions:
    return MapOptions(repeatable=repeatable, retries=retries if repeatable else 0, **more)


OPTIONS = st.builds(
    options_of,
    ordered=st.booleans(),
    batch=st.sampled_from((None, None, 1, 2, 8)),
    repeatable=st.sampled_from((True, True, False)),
    retries=st.integers(0, 2),
    timeout_s=st.sampled_from((None, 3.0)),
    look_ahead=st.sampled_from((None, 3)),
    fresh=st.sampled_from((False, False, True, 4)),
)
RUNS = st.lists(st.tuples(st.integers(0, 24), st.sampled_from(POLICIES), OPTIONS), min_size=1, max_size=2)


@given(
    runs=RUNS,
    n_devices=st.integers(1, 3),
    bad=st.frozensets(st.integers(0, 23), max_size=2),
    n_faults=st.integers(0, 30),
    seed=st.integers(0, 2**16),
)
@example([(1, "pull", MapOptions(retries=1, fresh=True))], 1, frozenset({0}), 0, 0)
@settings(max_examples=examples(80), deadline=None)
def test_every_run_comes_to_its_end(
    runs: list[tuple[int, str, MapOptions]], n_devices: int, bad: frozenset[int], n_faults: int, seed: int
) -> None:
    pool = DevicePool(DEVICES[:n_devices])
    backend = VirtualBackend(pool, Clock(), seed, n_faults, bad)
    begun = run_all(backend, pool, runs)
    for one in begun:
        assert len(dict(one.fates)) == len(one.fates), "an item has two fates"
        assert one.has_no_device or len(one.fates) == len(one.items), "items are lost"
        assert all(isinstance(value, TaskError) or value == 2 * one.items[at] for at, value in one.fates)
        check_factors(one)
        check_promises(one, backend, bad if n_faults == 0 else frozenset(one.items))


def check_promises(one: "Begun", backend: VirtualBackend, suspects: frozenset[int]) -> None:
    """What the options of the run promise; only ``suspects`` may fail."""
    options, numbers = one.run.options, [at for at, _ in one.fates]
    if options.ordered:
        assert numbers == list(range(len(numbers))), "results are not in order"
    if not options.repeatable:
        assert all(backend.begun[item] <= 1 for item in one.items), "it began twice"
    if options.fresh is not False:
        most = backend.most_run[one.items.start // 100]
        assert most < options.fresh + (options.batch or 1), "it was not renewed"
    for at, value in one.fates:
        item = one.items[at]
        if type(value) is WorkerLost:
            is_unknown = not options.repeatable and backend.begun[item] > 0  # it ran, its result was lost
            assert is_unknown or item in backend.struck, f"{value} blamed for a worker that never had it"
        if type(value) is TaskError and "bad luck" in str(value):
            assert backend.failed[item] > options.retries, "it had fewer tries than it was promised"
        assert not isinstance(value, TaskError) or item in suspects, "it fails and did nothing"


def check_factors(one: "Begun") -> None:
    """Every second of a run is useful, or lost to one cause, whatever happened."""
    summary = one.run.summary
    assert summary is not None
    found = summary.factors
    if found is not None:
        lost_s = math.fsum(part.lost_s for part in found.parts)
        assert found.useful_s + lost_s == pytest.approx(summary.wall_s)
        assert math.prod(part.value or 1.0 for part in found.parts) == pytest.approx(found.share)
        assert all(part.lost_s >= 0 for part in found.parts)


@given(
    n_items=st.integers(1, 40),
    policy=st.sampled_from(POLICIES),
    look_ahead=st.sampled_from((None, 3)),
    n_devices=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(30), deadline=None)
def test_a_run_without_events_tells_the_same_as_its_events(
    n_items: int, policy: str, look_ahead: int | None, n_devices: int, seed: int
) -> None:
    pool = DevicePool(DEVICES[:n_devices])
    events: list[Any] = []
    backend = VirtualBackend(pool, Clock(), seed)
    runs = [(n_items, policy, MapOptions(look_ahead=look_ahead))]
    (one,) = run_all(backend, pool, runs, EventLog(events.append, clock=backend.clock.monotonic))
    own = one.run.summary.factors
    tally = Tally()
    tally.add(RunStarted(0.0, "r", 0.0, n_items, pool.facts()))
    end_s = next(event.t for event in events if isinstance(event, StageFinished))
    for event in events:
        if getattr(event, "t", 0.0) <= end_s:  # workers may start, and end, after it
            tally.add(event)
    tally.add(RunFinished(end_s, "done"))
    told = tally.summary().factors
    done = {device.device: device.n_items for device in tally.summary().devices}
    assert sum(done.values()) == n_items, "an item that was copied is one item"
    assert {name: share.items for name, share in one.run.summary.devices.items() if share.items} == {
        name: n_done for name, n_done in done.items() if n_done
    }
    assert own is not None
    assert told is not None
    for mine, theirs in zip(own.parts, told.parts, strict=True):
        assert mine.lost_s == pytest.approx(theirs.lost_s, abs=0.02 * own.wall_s), (mine.name, own, told)


@given(
    runs=st.lists(
        st.tuples(
            st.integers(1, 24),
            st.sampled_from(POLICIES),
            st.builds(MapOptions, batch=st.sampled_from((None, 1, 2, 8)), fresh=st.sampled_from((False, 4))),
        ),
        min_size=1,
        max_size=2,
    ),
    unlucky=st.integers(0, 23),
    n_losses=st.sampled_from((1, 2, 3, 4, 10**6)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(40), deadline=None)
def test_a_lost_machine_is_nobodys_fault_unless_one_item_loses_many(
    runs: list[tuple[int, str, MapOptions]], unlucky: int, n_losses: int, seed: int
) -> None:
    pool = DevicePool(DEVICES)
    backend = VirtualBackend(pool, Clock(), seed, n_losses={unlucky: n_losses})
    for one in run_all(backend, pool, runs):
        assert len(one.fates) == len(one.items)
        for at, value in one.fates:
            is_deadly = one.items[at] == unlucky and n_losses > 4
            assert isinstance(value, WorkerLost) if is_deadly else value == 2 * one.items[at]


class OneDies(VirtualBackend):
    """Devices whose items take a second each; of cpu:1 each worker ends with its item, from ``dies_s`` on."""

    def __init__(self, pool: DevicePool, dies_s: float, lives_again_s: float = math.inf):
        super().__init__(pool, Clock(), 0)
        self._dead = (self.clock.now + dies_s, self.clock.now + lives_again_s)
        self._device: dict[int, str] = {}
        self.n_in_vain, self.n_done = 0, Counter[str]()

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Any) -> None:
        self._device[worker] = device.id
        super().start(worker, device, pool, environment)

    def _some_s(self) -> float:
        return 0.1

    def _run(self, one: Any, order: Any, items: tuple[Any, ...]) -> Iterator[float | None]:
        device = self._device[one.number]
        if device == "cpu:1" and self._dead[0] <= self.clock.now < self._dead[1]:
            one.chunk, one.held, one.position = order.chunk, items[:1], 0
            self.n_in_vain += 1
            yield from self._die_here(one)
        yield float(len(items))
        self.n_done[device] += len(items)
        yield from super()._run(one, order, items)


@pytest.mark.parametrize("policy", ["measured", "pull", "pull:3"])  # others' chunks are as long as the world
def test_a_device_whose_workers_end_where_others_work_rests_longer_and_longer(policy: str) -> None:
    """Oracle: a world in which it is known which device is dead, and that it takes nothing else along."""
    pool = DevicePool(DEVICES)
    backend = OneDies(pool, dies_s=10.0)
    (one,) = run_all(backend, pool, [(200, policy, MapOptions())], changes=False)
    assert one.fates == [(at, 2 * at) for at in range(200)]
    assert backend.n_in_vain <= 9


class ItemsKill(OneDies):
    """Items take a second each; those in ``deadly`` end each worker that begins them.

    idle_s  seconds in which no worker did anything, and the engine waited for a time to come
    """

    def __init__(self, pool: DevicePool, deadly: frozenset[int]):
        super().__init__(pool, dies_s=math.inf)
        self._deadly, self.idle_s = deadly, 0.0

    def poll(self, timeout_s: float | None) -> list[Any]:
        is_idle, before_s = not any(one.waits_for for one in self._workers.values()), self.clock.now
        news = super().poll(timeout_s)
        if is_idle and timeout_s is not None:
            self.idle_s += self.clock.now - before_s
        return news

    def _run(self, one: Any, order: Any, items: tuple[Any, ...]) -> Iterator[float | None]:
        before = next((at for at, item in enumerate(items) if item in self._deadly), None)
        if before is not None:
            yield float(before)
            one.chunk, one.held, one.position = order.chunk, items[before : before + 1], before
            self.n_in_vain += 1
            yield from self._die_here(one)
        yield from super()._run(one, order, items)


@given(
    share=st.sampled_from((0.1, 0.3, 0.6)),
    seed=st.integers(0, 2**16),
    n_devices=st.integers(1, 3),
    n_runs=st.integers(1, 3),
    policy=st.sampled_from(("measured", "pull", "pull:3", "static")),
)
@settings(max_examples=examples(40), deadline=None)
def test_devices_do_not_all_rest_while_items_wait(
    share: float, seed: int, n_devices: int, n_runs: int, policy: str
) -> None:
    """Oracle: a world in which items are to blame and no device is, so that a pause of all helps nobody."""
    pool, rng = DevicePool(DEVICES[:n_devices]), random.Random(seed)
    deadly = frozenset(100 * run + at for run in range(n_runs) for at in range(40) if rng.random() < share)
    backend, runs = ItemsKill(pool, deadly), [(40, policy, MapOptions())] * n_runs
    for one in run_all(backend, pool, runs, changes=False, in_turn=True):
        lost = {one.items[at] for at, value in one.fates if isinstance(value, WorkerLost)}
        assert lost == deadly & {*one.items}
    assert backend.idle_s < 0.3 * (n_runs + backend.n_in_vain)


def run_all(
    backend: VirtualBackend,
    pool: DevicePool,
    runs: list[tuple[int, str, MapOptions]],
    log: EventLog | None = None,
    *,
    changes: bool = True,
    in_turn: bool = False,
) -> "list[Begun]":
    """Run all to their ends, side by side or in turn; items of each are 100 above those of the one before."""
    begun: list[Begun] = []
    with time_of(backend.clock):
        record = Record(log, echo=False)
        own = RunEngine(pool, backend, record)
        factory = RunFactory(own, record, CostHistory(own.ceilings, record, is_kept=False), 2)
        for number, (n, policy, options) in enumerate(runs):
            items = range(100 * number, 100 * number + n)
            made = factory.make_map(double, items, options, policy_from_name(policy), pool, drop)
            begun.append(Begun(items, *made))
            own.begin(made[0])
            while not all(one.delivery.is_over for one in begun) and (in_turn or number == len(runs) - 1):
                if changes:
                    change(own, backend, pool)
                own.step()
                for one in begun:
                    one.receive()
        own.close(0.0)
    return begun


@dataclass
class Begun:
    """A run, and what has come of it."""

    items: range
    run: Run
    delivery: Delivery
    fates: list[tuple[int, Any]] = field(default_factory=list)
    has_no_device: bool = False

    def receive(self) -> None:
        try:
            for block in self.delivery.blocks_there():
                self.fates += zip(block.items, block.values, strict=True)
        except NoUsableDevice:
            self.has_no_device = True


@given(
    n_items=st.integers(1, 24),
    policy=st.sampled_from(POLICIES),
    options=OPTIONS,
    n_devices=st.integers(1, 3),
    bad=st.frozensets(st.integers(0, 23), max_size=2),
    n_faults=st.integers(0, 30),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(100), deadline=None)
def test_the_events_tell_the_life_of_each_item_and_how_it_ended(
    n_items: int,
    policy: str,
    options: MapOptions,
    n_devices: int,
    bad: frozenset[int],
    n_faults: int,
    seed: int,
) -> None:
    """The oracle: what the receiver was given, and the workers' own counts of what they began and failed.

    Without the event that brought the result, the life is known to be broken.
    """
    pool, clock = DevicePool(DEVICES[:n_devices]), Clock()
    backend = VirtualBackend(pool, clock, seed, n_faults, bad)
    events: list[Any] = [RunStarted(0.0, "r", 0.0, n_items, pool.facts())]
    log = EventLog(events.append, clock=clock.monotonic)
    (one,) = run_all(backend, pool, [(n_items, policy, options)], log)
    if one.has_no_device:
        return
    events.append(RunFinished(log.now(), "done"))
    for at, value in one.fates:
        life = life_of(events, str(at))
        assert not broken_steps(life), life
        assert life[-1].state == ("failed" if isinstance(value, TaskError) else "done"), life
        assert sum(step.text.startswith(("given to", "a copy")) for step in life) >= backend.begun[at]
        if backend.begun[at] > 1 and not isinstance(value, TaskError):
            cut = [event for event in events if not (isinstance(event, Span) and event.status != "lost")]
            assert broken_steps(life_of(cut, str(at))) or not life_of(cut, str(at))


def drop(run: Run) -> None:
    """Nobody wants to know that it is over."""


def change(own: RunEngine, backend: VirtualBackend, pool: DevicePool) -> None:
    """Now and then, devices leave and come back, or the policy is another."""
    rng = backend.rng
    if len(pool) > 1 and backend.n_faults and rng.random() < 0.02:
        device = rng.choice(list(pool)[1:])
        own.call(partial(own.drain, [device.id], rng.random() < 0.5))
    if rng.random() < 0.02:
        own.call(partial(own.add, list(pool)[1:]))
    if backend.n_faults and rng.random() < 0.01:
        own.call(partial(own.set_policy, None, policy_from_name(rng.choice(POLICIES))))
