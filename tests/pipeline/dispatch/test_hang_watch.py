"""Random jobs with random hangs, by a virtual clock: whatever hangs, all else ends, and is run once."""

import random
from math import inf

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import STAGES, Fleet, phases_of_mode

from evenload.pipeline.dispatch.device_group import DeviceGroup, LoadStage, RunTasks, StopWorker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker, HangWatch, SlowWork
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.dispatch.waiting import BatchRule
from evenload.pipeline.plan import Fit, Phase, Unit
from evenload.pipeline.stage import Item


class Hung(Fleet):
    """Plays workers of which some hang, and a watch that looks at them at least once a second."""

    def __init__(self, watch: HangWatch, *fleet, hangs=(), hung_loads=(), **more):
        super().__init__(*fleet, load_s=1.0, **more)
        self.watch, self.hangs, self.hung_loads = watch, set(hangs), set(hung_loads)
        self.killed: list[EndWorker] = []
        self.named: set[StageTask | None] = set()

    def go_for(self, most_s: float) -> bool:
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
                    self.named.add(verdict.task)
            if (self._next_s() or inf) <= self.now + 1.0:
                self._next()
            else:
                self.now += 1.0
        return not self.flow.n_open

    def _do(self, action) -> None:
        super()._do(action)
        if isinstance(action, StopWorker):
            self.watch.forget(action.group)
        elif isinstance(action, LoadStage) and (action.group, action.stage) in self.hung_loads:
            self.busy[action.group] = inf, action

    def _begin(self, order: RunTasks) -> None:
        super()._begin(order)
        if not self.hangs.isdisjoint(order.tasks):
            self.busy[order.group] = inf, order

    def _end(self, order: EndWorker) -> None:
        self.killed.append(order)
        self._forget(order.group)
        self.watch.forget(order.group)
        self.watch.made_way(order.later)
        if order.loading is not None:
            self.dispatcher.lost(order.group, self.now, order.why)
            return
        self.dispatcher.end_slow(order.group, order)
        for task in order.failed:
            self.dispatcher.add(self.flow.failed(task, ItemFailure(STAGES[task.stage], *order.error)))


def play(seed: int, limit_s: float | None, n_items: int, *, p_hang: float, p_load: float = 0.0) -> Hung:
    rng = random.Random(seed)
    devices = [f"d{at}" for at in range(rng.randint(1, 4))]
    phases = phases_of_mode(
        rng.choice(["swap", "stage_parallel"]) if len(devices) > 1 else "swap", STAGES, devices
    )
    flow = ItemFlow(
        [StageRule(name, timeout_s=limit_s) for name in STAGES],
        [(Item(at, str(at)), {}) for at in range(n_items)],
    )
    hangs = [StageTask(rng.randrange(2), at) for at in range(n_items) if rng.random() < p_hang]
    dispatcher = GroupScheduler(phases, STAGES, batch={at: BatchRule(rng.choice([1, 4])) for at in (0, 1)})
    watch = HangWatch(flow.limit_of, {0: 20.0, 1: 20.0} if p_load else {}, {0: 1.0, 1: 1.0})
    hung_loads = [(d, s) for d in devices[1:] for s in (0, 1) if rng.random() < p_load]
    return Hung(
        watch, dispatcher, flow, hangs=hangs, hung_loads=hung_loads, rng=rng, p_saving=rng.choice([0.0, 0.5])
    )


seeds = st.integers(0, 10**6)


def check_once(played: Hung) -> None:
    """Nothing was done twice, and only what hangs has failed."""
    done = [task for _, task, _ in played.ran]
    assert len(done) == len(set(done))
    failed = {strand.at for strand in played.flow.strands if strand.fate == "failed"}
    assert failed <= {task.strand for task in played.hangs}
    blamed = [task for order in played.killed for task in order.failed]
    assert len(blamed) == len(set(blamed)) == len(failed)


@given(seeds, st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([0.0, 0.5]))
@settings(deadline=None, max_examples=examples(80))
def test_with_a_limit_everything_ends_and_only_what_hangs_fails(seed, n_items, p_hang, p_load) -> None:
    played = play(seed, 20.0, n_items, p_hang=p_hang, p_load=p_load)
    assert played.go_for(40_000.0), [strand for strand in played.flow.strands if strand.fate == "open"]
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
    has_ended = played.go_for(1_000.0)
    check_once(played)
    left = {strand.at for strand in played.flow.strands if strand.fate == "open"}
    assert left == {task.strand for task in played.hangs}
    assert has_ended == (not played.hangs)
    running = {task for group in played.dispatcher.groups.values() for task in group.running}
    assert played.named >= played.hangs & running
    assert not any(order.failed for order in played.killed)


def test_slow_work_that_is_no_hang_makes_way_a_few_times_at_most() -> None:
    """All items take a thousand times as long as was thought: they end, after little in vain."""
    flow = ItemFlow([StageRule("edit")], [(Item(at, str(at)), {}) for at in range(6)])
    phases = (Phase((Unit(("d0",), "edit"),), ("edit",)),)
    dispatcher = GroupScheduler(phases, ("edit",))
    played = Hung(HangWatch(known_s={0: 1.0}), dispatcher, flow, item_s={"d0": 300.0})
    assert played.go_for(6 * 300 + 3000.0)
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


def test_a_batch_has_twice_the_time_of_all_its_items_and_items_side_by_side_have_their_own() -> None:
    """A batch may be done one by one, too."""
    flow = ItemFlow([StageRule("edit", timeout_s=10.0)], [(Item(at, str(at)), {}) for at in (0, 1)])
    running = dict.fromkeys(flow.begin(), 0.0)
    for fit, ended_s in ((Fit(), 44), (Fit("layer_split", in_flight=3), 12)):
        group = DeviceGroup("d0", ("d0",), state="up", running=dict(running), resident={0: fit})
        watch = HangWatch(flow.limit_of)
        looks = ((now, watch.look(float(now), [group], 0)) for now in range(0, 100, 4))
        assert (
            next(now for now, found in looks if any(isinstance(one, EndWorker) for one in found)) == ended_s
        )


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
