"""Random jobs with random hangs, by a virtual clock: whatever hangs, all else ends, and is run once."""

import random
from dataclasses import dataclass

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.pipeline.dispatch.device_group import DeviceGroup, LoadStage, RunTasks, StartWorker, StopWorker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker, HangWatch, SlowWork
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.dispatch.waiting import BatchRule
from evenload.pipeline.plan import Fit, Phase, Unit
from evenload.pipeline.stage import Item

STAGES = ("edit", "score")
FOREVER = float("inf")


@dataclass
class Running:
    """A task in a worker: ``left_s`` of its own work, and whether it holds up all others there."""

    left_s: float
    freezes: bool


class Workers:
    """Plays workers of which some hang: ``hangs`` maps a task to "alone" or "all", a worker's other lanes."""

    def __init__(self, dispatcher: GroupScheduler, flow: ItemFlow, watch: HangWatch, hangs, hung_loads=()):
        self.dispatcher, self.flow, self.watch = dispatcher, flow, watch
        self.hangs, self.hung_loads = hangs, set(hung_loads)
        self.now = 0.0
        self.held: dict[str, dict[StageTask, Running]] = {}
        self.loads: dict[str, tuple[float, LoadStage]] = {}
        self.done: list[StageTask] = []
        self.saved: dict[str, list[StageTask]] = {}  # a worker tells of them when it answers
        self.killed: list[EndWorker] = []
        self.named: set[tuple[str, StageTask | None]] = set()

    def go(self, most_s: float) -> bool:
        """Until nothing is open, or for ``most_s`` seconds. Returns whether nothing is open."""
        self.dispatcher.add(self.flow.begin())
        while self.flow.n_open and self.now < most_s:
            for action in self.dispatcher.decide(self.now):
                self._do(action)
            groups = tuple(self.dispatcher.groups.values())
            for verdict in self.watch.look(self.now, groups, len(self.dispatcher.waiting)):
                if isinstance(verdict, EndWorker):
                    self._end(verdict)
                else:
                    self.named.add((verdict.group, verdict.task))
            self._pass(1.0)
        return not self.flow.n_open

    def _do(self, action) -> None:
        if isinstance(action, StartWorker):
            self.dispatcher.up(action.group)
        elif isinstance(action, StopWorker):
            assert not self.held.get(action.group)
            self.watch.forget(action.group)
        elif isinstance(action, LoadStage):
            seconds = FOREVER if (action.group, action.stage) in self.hung_loads else 1.0
            self.loads[action.group] = (seconds, action)
        else:
            assert isinstance(action, RunTasks)
            has_lanes = self._has_lanes(action.group, action.tasks[0])
            is_hung = any(task in self.hangs for task in action.tasks)
            for task in action.tasks:
                seconds = FOREVER if is_hung else float(len(action.tasks))
                freezes = self.hangs.get(task) == "all"
                self.held.setdefault(action.group, {})[task] = Running(seconds, freezes)
            if has_lanes:
                self.dispatcher.answered(action.group, self.now)

    def _has_lanes(self, group: str, task: StageTask) -> bool:
        return self.dispatcher.groups[group].resident[task.stage].in_flight > 1

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for group, (left_s, load) in tuple(self.loads.items()):
            self.loads[group] = (left_s - seconds, load)
            if left_s - seconds <= 0:
                del self.loads[group]
                self.dispatcher.answered(group, self.now)
                self.dispatcher.loaded(group, load.stage, load.fit, 1.0)
        for group in tuple(self.saved):
            if not self.held.get(group) and group not in self.loads:
                self._tell_saved(group)
        for group, tasks in self.held.items():
            if any(one.freezes for one in tasks.values()):
                continue
            for task, one in tuple(tasks.items()):
                one.left_s -= seconds
                if one.left_s <= 0:
                    self._ended(group, task)

    def _ended(self, group: str, task: StageTask) -> None:
        has_lanes = self._has_lanes(group, task)
        del self.held[group][task]
        if not has_lanes and not self.held[group]:
            self.dispatcher.answered(group, self.now)
        self._tell_saved(group)
        if not has_lanes and task.strand % 2:
            self.dispatcher.made(group, task, 1.0)
            self.saved.setdefault(group, []).append(task)
        else:
            self._told(group, task)

    def _tell_saved(self, group: str) -> None:
        for task in self.saved.pop(group, []):
            self._told(group, task)

    def _told(self, group: str, task: StageTask) -> None:
        self.dispatcher.ended(group, task, 1.0)
        self.done.append(task)
        self.dispatcher.add(self.flow.done(task, {}))

    def _end(self, order: EndWorker) -> None:
        self.killed.append(order)
        self.held.pop(order.group, None)
        self.loads.pop(order.group, None)
        self.saved.pop(order.group, None)
        self.watch.forget(order.group)
        self.watch.made_way(order.later)
        if order.loading is not None:
            self.dispatcher.lost(order.group, self.now, order.why)
            return
        self.dispatcher.end_slow(order.group, order)
        for task in order.failed:
            why = ItemFailure(STAGES[task.stage], *order.error)
            self.dispatcher.add(self.flow.failed(task, why))


def play(seed: int, limit_s: float | None, n_items: int, *, p_hang: float, p_load: float = 0.0) -> Workers:
    rng = random.Random(seed)
    devices = [f"d{at}" for at in range(rng.randint(1, 4))]
    fits = [Fit("layer_split", in_flight=n) if n > 1 else Fit() for n in (rng.choice([1, 1, 3]),) * 2]
    units = [
        tuple(Unit((device,), name, fit) for device in devices)
        for name, fit in zip(STAGES, fits, strict=True)
    ]
    if rng.random() < 0.5 or len(devices) == 1:
        phases = tuple(Phase(unit, (name,)) for unit, name in zip(units, STAGES, strict=True))
    else:  # side by side
        half = len(devices) // 2
        phases = (Phase((*units[0][:half], *units[1][half:]), STAGES),)
    rules = [StageRule(name, timeout_s=limit_s) for name in STAGES]
    flow = ItemFlow(rules, [(Item(at, str(at)), {}) for at in range(n_items)])
    hangs = {
        StageTask(rng.randrange(2), at): rng.choice(["alone", "all"])
        for at in range(n_items)
        if rng.random() < p_hang
    }
    dispatcher = GroupScheduler(phases, STAGES, batch={at: BatchRule(rng.choice([1, 4])) for at in (0, 1)})
    watch = HangWatch(flow.limit_of, {0: 20.0, 1: 20.0} if p_load else {}, {0: 1.0, 1: 1.0})
    hung_loads = [(d, s) for d in devices[1:] for s in (0, 1) if rng.random() < p_load]
    return Workers(dispatcher, flow, watch, hangs, hung_loads)


seeds = st.integers(0, 10**6)


def check_once(played: Workers) -> None:
    """Nothing was done twice, and only what hangs has failed."""
    assert len(played.done) == len(set(played.done))
    failed = {strand.at for strand in played.flow.strands if strand.fate == "failed"}
    assert failed <= {task.strand for task in played.hangs}
    blamed = [task for order in played.killed for task in order.failed]
    assert len(blamed) == len(set(blamed)) == len(failed)


@given(seeds, st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([0.0, 0.5]))
@settings(deadline=None, max_examples=examples(80))
def test_with_a_limit_everything_ends_and_only_what_hangs_fails(seed, n_items, p_hang, p_load) -> None:
    played = play(seed, 20.0, n_items, p_hang=p_hang, p_load=p_load)
    assert played.go(40_000.0), [strand for strand in played.flow.strands if strand.fate == "open"]
    check_once(played)
    fates = [strand.fate for strand in played.flow.strands]
    assert [fate == "failed" for fate in fates] == [
        any(StageTask(stage, at) in played.hangs for stage in (0, 1)) for at in range(n_items)
    ]
    assert all(order.error[0] == "TaskTimeout" for order in played.killed)


@given(seeds, st.integers(1, 10), st.sampled_from([0.0, 0.1, 0.3]))
@settings(deadline=None, max_examples=examples(20))
def test_without_a_limit_all_others_end_and_what_hangs_is_named(seed, n_items, p_hang) -> None:
    played = play(seed, None, n_items, p_hang=p_hang)
    has_ended = played.go(6_000.0)
    check_once(played)
    left = {strand.at for strand in played.flow.strands if strand.fate == "open"}
    assert left == {task.strand for task in played.hangs}
    assert has_ended == (not played.hangs)
    assert {task for _, task in played.named if task is not None} >= {
        task for task in played.hangs if task in {t for one in played.held.values() for t in one}
    }
    assert not any(order.failed for order in played.killed)


def test_slow_work_that_is_no_hang_makes_way_a_few_times_at_most() -> None:
    """All items take a thousand times as long as was thought: they end, after little in vain."""
    flow = ItemFlow([StageRule("edit")], [(Item(at, str(at)), {}) for at in range(6)])
    phases = (Phase((Unit(("d0",), "edit"),), ("edit",)),)
    played = Workers(GroupScheduler(phases, ("edit",)), flow, HangWatch(known_s={0: 1.0}), {})
    real_do = played._do

    def slow(action) -> None:
        real_do(action)
        for one in played.held.get("d0", {}).values():
            one.left_s = min(one.left_s, 1.0) + 299.0

    played._do = slow  # type: ignore[method-assign]
    assert played.go(6 * 300 + 3000.0)
    assert 0 < len(played.killed) < 9


def test_a_stopped_program_takes_nobodys_time() -> None:
    group = DeviceGroup("d0", ("d0",), state="up", running={StageTask(0, 0): 0.0})
    flow = ItemFlow([StageRule("edit", timeout_s=10.0)], [(Item(0, "0"), {})])
    flow.begin()
    watch = HangWatch(flow.limit_of)
    assert watch.look(0.0, [group], 0) == []
    assert watch.look(5000.0, [group], 0) == []
    assert watch.look(5004.0, [group], 0) == []
    assert isinstance(watch.look(5008.0, [group], 0)[0], EndWorker)


def test_saved_files_that_nobody_is_told_of_wait_as_well() -> None:
    """A worker tells of them when it answers, which one that hangs never does."""
    for saving in (set(), {StageTask(0, 0)}):
        group = DeviceGroup("d0", ("d0",), state="up", running={StageTask(0, 1): 0.0}, saving=saving)
        watch = HangWatch(known_s={0: 1.0})
        found = [one for now in range(0, 80, 4) for one in watch.look(float(now), [group], 0)]
        ends = [one for one in found if isinstance(one, EndWorker)]
        assert bool(ends) == bool(saving)
        assert all(one.later == (StageTask(0, 1),) for one in ends)


def test_a_load_that_takes_long_is_named() -> None:
    group = DeviceGroup("d0", ("d0",), state="up", loading=1)
    watch = HangWatch()
    found = [watch.look(float(now), [group], 3) for now in range(0, 200, 4)]
    assert not any(found[:30])
    assert found[-1] == [SlowWork("d0", 1, None, 196.0)]


@given(st.floats(0.1, 100.0), st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_the_time_of_an_item_is_the_sum_of_its_stages(limit_s: float, first_s: float, stage_s: float) -> None:
    rules = [StageRule("edit", timeout_s=stage_s), StageRule("score", samples=2, timeout_s=stage_s)]
    flow = ItemFlow(rules, [(Item(0, "0"), {})], timeout_s=limit_s)
    (task,) = flow.begin()
    limit = flow.limit_of(task)
    assert limit is not None
    assert limit.seconds == min(limit_s, stage_s)
    after = flow.done(task, {}, first_s)
    if first_s > limit_s:
        assert after == []
        assert flow.strands[0].error is not None
        assert flow.strands[0].error.type == "TaskTimeout"
    else:
        limits = [flow.limit_of(one) for one in after]
        assert [one.seconds for one in limits if one] == [min(limit_s - first_s, stage_s)] * 2
