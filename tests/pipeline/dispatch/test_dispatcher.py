"""Who runs what: every task exactly once whatever dies, nobody idle without need, plans as they are meant."""

import random

from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import (
    STAGES,
    Fleet,
    any_policy,
    flow,
    least_s,
    phases_of_mode,
    random_phases,
)

from evenload.pipeline.dispatch.device_group import RunTasks
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.waiting import BatchRule
from evenload.pipeline.plan import Fit, Phase, Unit


def fleet(
    mode: str, n_items: int, n_devices: int, stages=STAGES, batch=None, policy="measured", **more
) -> Fleet:
    devices = [f"d{at}" for at in range(n_devices)]
    phases = phases_of_mode(mode, stages, devices, split=stages[:1], in_flight=1)
    dispatcher = GroupScheduler(phases, stages, batch=batch, policy=policy)
    return Fleet(dispatcher, flow(n_items, stages), **more)


MODES = ("single", "data_parallel", "swap", "stage_parallel", "model_parallel")


@given(
    st.sampled_from([*MODES, "random"]), st.integers(1, 25), st.integers(1, 5), st.integers(0, 10**6),
    st.sampled_from([0.0, 0.0, 0.05, 0.2]), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.0, 0.2]), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(500))
def test_every_task_ends_exactly_once_whatever_dies_leaves_or_is_slow(
    mode, n_items, n_devices, seed, p_death, p_saving, p_slow, p_change, is_replanned
) -> None:
    """The oracle is the course of the items, which refuses a second end of a task and waits for each.

    A plan may have been made before a device left, and its groups may share devices.
    """
    rng, devices = random.Random(seed), [f"d{at}" for at in range(n_devices)]
    stages = tuple("abcd"[: rng.choice([2, 2, 3, 4])])

    def plan_of(mode: str) -> tuple[Phase, ...]:
        if mode == "random":
            return random_phases(rng, stages, devices, n_items, rng.choice([0.0, 0.3, 0.5]))
        if mode == "stage_parallel" and n_devices < len(stages):
            mode = "swap"  # each stage must have a device
        return phases_of_mode(mode, stages, devices, split=stages[:1])

    dispatcher = GroupScheduler(
        plan_of(mode), stages, queue=rng.choice([2, 8]), policy=any_policy(seed),
        batch=dict.fromkeys(range(4), BatchRule(rng.choice([1, 3]))),
        copyable=rng.choice([(), (), (0,), (0, 1)]),
    )  # fmt: skip
    played = Fleet(
        dispatcher, flow(n_items, stages), rng=rng, p_death=p_death, p_saving=p_saving, p_slow=p_slow,
        p_change=p_change, load_s={at: rng.choice([0.0, 0.5, 1.0]) for at in range(4)},
        item_s={device: rng.choice([0.01, 0.5, 1.0, 2.0, 5.0]) for device in devices},
        plans=[plan_of(one) for one in (*MODES, "random", "random")] if is_replanned else (),
    )  # fmt: skip
    if not played.ends(p_death or p_change):  # every device was lost for good
        return
    tasks = [task for _, task, _ in played.ran]
    assert len(tasks) == len(set(tasks))
    assert p_death or not played.given_up
    fates = [strand.fate for strand in played.flow.strands]
    assert fates.count("failed") == len(played.given_up)
    assert fates.count("done") == n_items - len(played.given_up)
    assert dispatcher.n_running == 0
    groups = dispatcher.groups.values()
    assert all(task in (*group.running, *group.saving) for group in groups for task in group.extra)
    assert p_death or dispatcher.lost_devices() == played.gone


@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.0, 0.0, 0.1]),
    st.sampled_from([0.0, 0.5]), st.booleans(), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.3]),
)  # fmt: skip
@example(12, 3, 412, 0.1, 0.5, False, 0.0, 0.0)  # the queue is full for a stage that its only taker refuses
@example(12, 2, 325083, 0.2, 0.5, True, 0.0, 0.0)  # each refuses its own stage, and could do the other's
@example(9, 3, 453246, 0.3, 0.0, True, 0.3, 0.0)  # the tasks that are left of its own do not fit there
@settings(deadline=None, max_examples=examples(150))
def test_shares_of_a_plan_keep_nobody_from_what_is_left(
    n_items, n_devices, seed, p_death, p_saving, parks, p_too_large, p_split
) -> None:
    """Tasks come back, and devices differ from what was planned: no share is just what is left."""
    rng = random.Random(seed)
    stages, devices = ("edit", "score", "save")[: rng.choice([2, 3])], [f"d{at}" for at in range(n_devices)]
    too_large = frozenset(
        (device, StageTask(stage, at))
        for device in devices[1:] for stage in range(len(stages)) for at in range(n_items)
        if rng.random() < p_too_large
    )  # fmt: skip
    plans = [random_phases(rng, stages, devices, n_items, p_split) for _ in range(rng.choice([1, 1, 3]))]
    batch = {at: BatchRule(rng.choice([1, 3]), rng.choice([0.0, 2.0])) for at in range(3)}
    dispatcher = GroupScheduler(plans[0], stages, oom=("other_device",), batch=batch, policy=any_policy(seed))
    played = Fleet(
        dispatcher, flow(n_items, stages), rng=rng, p_death=p_death, p_saving=p_saving, parks=parks,
        plans=plans[1:],
        item_s={device: rng.choice([0.01, 1.0, 5.0]) for device in devices}, too_large=too_large,
        load_s={at: rng.choice([0.0, 1.0, 10.0]) for at in range(3)},
    )  # fmt: skip
    if not played.ends(p_death or p_too_large):
        return
    tasks = [task for _, task, _ in played.ran]
    assert len(tasks) == len(set(tasks))
    assert len(played.ran) == len(stages) * n_items or p_death or p_too_large


@given(
    st.integers(1, 20), st.integers(2, 5), st.integers(0, 10**6), st.sampled_from([0.0, 0.1]), st.booleans()
)  # fmt: skip
@settings(deadline=None, max_examples=examples(100))
def test_no_stage_runs_where_it_may_not_whoever_is_idle_lost_or_new(
    n_items, n_devices, seed, p_death, joins
) -> None:
    rng = random.Random(seed)
    devices = [f"d{at}" for at in range(n_devices)]
    barred = {device: frozenset(s for s in (0, 1) if rng.random() < 0.5) for device in devices}
    free = rng.choice(devices)
    barred[free] = frozenset()
    units = [
        tuple(Unit((device,), name) for device in devices if stage not in barred[device])
        for stage, name in enumerate(STAGES)
    ]
    phases = tuple(Phase(some, (name,)) for some, name in zip(units, STAGES, strict=True))
    dispatcher = GroupScheduler(phases, STAGES, barred=barred)
    played = Fleet(dispatcher, flow(n_items), rng=rng, p_death=p_death, load_s=rng.random())
    if joins:
        barred["new"] = frozenset([rng.choice([0, 1])])
        dispatcher.join("new", barred["new"])
    played.ends(p_death)
    assert not any(task.stage in barred[group] for group, task, _ in played.ran)
    assert not any(stage in barred[group] for group, stage in played.loads)
    assert all(group.barred == barred[group.id] for group in dispatcher.groups.values())


@given(
    st.integers(2, 20), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.1]),
    st.sampled_from([1, 3]),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(100))
def test_no_item_is_taken_while_one_of_higher_priority_waits_for_the_stage(
    n_items, n_devices, seed, p_death, batch
) -> None:
    rng = random.Random(seed)
    priority = [rng.choice([-float("inf"), 0.0, 1.0, 2.5]) for _ in range(n_items)]
    costs = {at: rng.choice([0.0, 1.0, 2.0]) for at in range(n_items)} if rng.random() < 0.5 else {}
    devices = [f"d{at}" for at in range(n_devices)]
    phases = phases_of_mode(rng.choice(["data_parallel", "swap"]), STAGES, devices)
    dispatcher = GroupScheduler(
        phases,
        STAGES,
        batch={0: BatchRule(batch), 1: BatchRule(batch)},
        priority_of=priority.__getitem__,
        policy=rng.choice(["measured", "pull", "static"]),
    )
    order, real = [], dispatcher.decide

    def rank(task: StageTask) -> tuple[float, float, int]:
        return -priority[task.strand], -costs.get(task.strand, 0), task.strand

    def decide(now: float, *, deals: bool = True):
        waiting = {stage: list(dispatcher.waiting[stage]) for stage in (0, 1)}
        actions = real(now, deals=deals)
        for task in (task for action in actions if isinstance(action, RunTasks) for task in action.tasks):
            assert p_death or task == min(waiting[task.stage], key=rank)
            waiting[task.stage].remove(task)
            order.append(task)
        return actions

    dispatcher.decide = decide  # type: ignore[method-assign]
    played = Fleet(dispatcher, flow(n_items), rng=rng, p_death=p_death)
    dispatcher.add([], costs)
    if not played.ends(p_death):
        return
    assert p_death or len(order) == len(set(order)) == 2 * n_items


def test_each_device_changes_its_model_once_and_nobody_waits_for_the_slowest() -> None:
    played = fleet("swap", 40, 4, item_s={"d0": 1.0, "d1": 1.0, "d2": 1.0, "d3": 3.0})
    played.go()
    assert sorted(played.loads) == sorted((f"d{at}", stage) for at in range(4) for stage in (0, 1))
    last_edit = max(time for _, task, time in played.ran if task.stage == 0)
    first_score = min(time for _, task, time in played.ran if task.stage == 1)
    assert first_score <= last_edit + 1.0


def test_beyond_its_limit_a_device_goes_on_and_comes_back_only_to_help() -> None:
    units = (Unit(("d0",), "edit"), Unit(("d1",), "edit", limit=2))
    phases = (Phase(units, ("edit",)), Phase((Unit(("d1",), "score"),), ("score",)))
    dispatcher = GroupScheduler(phases, STAGES, load_s={0: 5.0, 1: 0.5}, item_s={0: 1.0, 1: 1.0})
    played = Fleet(dispatcher, flow(20))
    played.go()
    edits = [task for group, task, _ in played.ran if group == "d1" and task.stage == 0]
    assert len(edits) in range(2, 6)
    assert next(task.stage for group, task, _ in played.ran[4:] if group == "d1") == 1


def test_tasks_of_a_batch_are_few_near_the_end_and_alone_after_a_death() -> None:
    phases = phases_of_mode("data_parallel", ("edit",), ["d0", "d1"])
    dispatcher = GroupScheduler(phases, ("edit",), batch={0: BatchRule(4)})
    for group in ("d0", "d1"):
        dispatcher.up(group)
        dispatcher.loaded(group, 0, Fit())
    dispatcher.add([StageTask(0, at) for at in range(6)])
    dealt = {action.group: action for action in dispatcher.decide(0.0)}
    assert [len(action.tasks) for action in dealt.values() if isinstance(action, RunTasks)] == [3, 2]
    assert not dispatcher.lost("d0", 0.0, "was killed")
    dispatcher.up("d0")
    dispatcher.loaded("d0", 0, Fit())
    again = dispatcher.decide(1.0)
    assert [len(action.tasks) for action in again if isinstance(action, RunTasks)] == [1]
    dispatcher.one_by_one("d1", 0)
    assert dispatcher.batch_of("d1", 0) == 1
    assert dispatcher.batch_of("d0", 0) == 4


def test_memory_that_runs_out_in_a_batch_halves_it_first() -> None:
    phases = (Phase((Unit(("d0",), "edit"),), ("edit",)),)
    dispatcher = GroupScheduler(phases, ("edit",), batch={0: BatchRule(4)}, oom=("smaller_in_flight",))
    said = [dispatcher.out_of_memory("d0", StageTask(0, 0)) for _ in range(3)]
    assert said == ["batches of 2", "batches of 1", None]
    dispatcher = GroupScheduler(phases, ("edit",), batch={0: BatchRule(2)}, oom=())
    said = [dispatcher.out_of_memory("d0", StageTask(0, 0)) for _ in range(2)]
    assert said == ["batches of 1", None], "others in its batch are no reason to give an item up"


def test_a_worker_that_dies_of_what_it_saves_is_given_up() -> None:
    """What is computed is no result yet: it would be computed and lost for ever."""
    dispatcher = GroupScheduler(phases_of_mode("data_parallel", ("edit",), ["d0"]), ("edit",))
    dispatcher.add([StageTask(0, 0)])
    for at in range(3):
        dispatcher.up("d0")
        dispatcher.loaded("d0", 0, Fit())
        assert isinstance(dispatcher.decide(10.0 * at)[0], RunTasks)
        dispatcher.answered("d0", 0.0)
        dispatcher.made("d0", StageTask(0, 0), 1.0)
        assert not dispatcher.lost("d0", 10.0 * at, "was killed")
    stuck = dispatcher.why_stuck()
    assert stuck == (0, {"d0": "its worker was killed 3 times before it had a result"})


def test_a_group_is_gone_until_all_of_its_devices_are_back_and_the_others_are_not() -> None:
    def split_over(*devices: str) -> tuple[Phase, ...]:
        return (Phase((Unit(devices, "edit", Fit("layer_split")),), ("edit",)),)

    dispatcher = GroupScheduler(split_over("d0", "d1", "d2"), ("edit",))
    dispatcher.leave("d1", "it was lost")
    dispatcher.leave("d2", "it was lost")
    dispatcher.follow(split_over("d0", "d2"))
    groups = dispatcher.groups
    assert (dispatcher.lost_devices(), dispatcher.gone) == ({"d1", "d2"}, {"d1", "d2"})
    dispatcher.join("d2")
    assert {name: group.state for name, group in groups.items()} == {"d0+d1+d2": "lost", "d0+d2": "off"}
    assert dispatcher.lost_devices() == {"d1"}
    dispatcher.join("d1")
    assert groups["d0+d1+d2"].state == "off"
    assert not groups["d0+d1+d2"].back_off.why_given_up
    assert not dispatcher.lost_devices()


def test_a_bounded_queue_between_stages_side_by_side() -> None:
    phases = phases_of_mode("stage_parallel", STAGES, ["d0", "d1"])
    dispatcher = GroupScheduler(phases, STAGES, queue=3, item_s={0: 1.0, 1: 1.0})
    played = Fleet(dispatcher, flow(30), item_s={"d0": 1.0, "d1": 1.0})
    seen = []
    ended = dispatcher.ended
    dispatcher.ended = lambda *rest: (ended(*rest), seen.append(len(dispatcher.waiting[1])))  # type: ignore[method-assign]
    played.go()
    assert max(seen) <= 3


def test_when_memory_runs_out_the_ladder_is_walked() -> None:
    units = tuple(Unit((device,), "edit", Fit("whole", in_flight=4)) for device in ("d0", "d1"))
    dispatcher = GroupScheduler(
        (Phase(units, ("edit",)),),
        ("edit",),
        fits={"edit": ("whole", "layer_split", "resident_stream")},
        oom=("smaller_in_flight", "next_fit", "other_device"),
    )
    task = StageTask(0, 0)
    dispatcher.add([task])
    said = []
    for _ in range(5):
        said.append(dispatcher.out_of_memory("d0", task))
        assert dispatcher.withdraw({0}) == [task]
    assert said == ["2 in flight", "1 in flight", "fit resident_stream", "another device", "another device"]
    dispatcher.groups["d1"].refused[0] = "no"
    assert dispatcher.out_of_memory("d0", task) is None


@given(st.integers(2, 8), st.integers(1, 60), st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(200))
def test_a_slow_device_begins_nothing_that_the_others_would_be_done_with(n_devices, n_more, seed) -> None:
    """Only the pace of a first item is unknown."""
    rng = random.Random(seed)
    item_s = {f"d{at}": rng.choice([0.5, 1.0, 4.0, 16.0]) * rng.uniform(0.8, 1.2) for at in range(n_devices)}
    n_items = n_devices + n_more
    played = fleet("data_parallel", n_items, n_devices, ("edit",), item_s=item_s)
    least = least_s(list(item_s.values()), n_items)
    assert played.go() <= max(max(item_s.values()), least + min(item_s.values())) + 1e-6
