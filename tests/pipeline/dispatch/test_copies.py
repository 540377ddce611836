"""Copies of tasks at the end of a stage: played fleets of which the least possible makespan is known."""

import heapq
import random

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import STAGES, Fleet, any_policy, flow, phases_of_mode, random_phases

from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.waiting import BatchRule

LIMIT = 1.6


def least_s(item_s: list[float], n_items: int) -> float:
    """Return the least makespan of equal whole items: each goes to who would end it first."""
    ends = [(seconds, seconds) for seconds in item_s]
    heapq.heapify(ends)
    last_s = 0.0
    for _ in range(n_items):
        last_s, seconds = ends[0]
        heapq.heapreplace(ends, (last_s + seconds, seconds))
    return last_s


def played_s(item_s: list[float], n_items: int, **options) -> float:
    devices = [f"d{at}" for at in range(len(item_s))]
    dispatcher = GroupScheduler(phases_of_mode("swap", ("edit",), devices), ("edit",), **options)
    return Fleet(dispatcher, flow(n_items, ("edit",)), item_s=dict(zip(devices, item_s, strict=True))).go()


@given(st.lists(st.floats(1.0, 12.0), min_size=1, max_size=4), st.integers(0, 30))
@settings(deadline=None, max_examples=examples(200))
def test_an_end_with_copies_is_near_the_least_possible_and_no_later_than_without(item_s, n_more) -> None:
    """The oracle is the least possible makespan, and the same fleet where nothing is copied.

    Of a device that nobody knows, the first item may be on the slowest: only a copy can help there.
    """
    n_items = 3 * len(item_s) + n_more
    with_s = played_s(item_s, n_items, copyable=(0,))
    assert with_s <= played_s(item_s, n_items) + 1e-6
    assert with_s <= LIMIT * least_s(item_s, n_items)


@given(
    st.integers(1, 9), st.integers(2, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 0.1]),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(300))
def test_each_task_ends_once_whichever_attempt_dies_is_ended_or_is_slow(
    n_items, n_devices, seed, p_death, p_saving, p_slow, p_change
) -> None:
    """The oracle is the course of the items, which refuses a second end of a task and waits for each."""
    rng, devices = random.Random(seed), [f"d{at}" for at in range(n_devices)]
    item_s = {device: rng.choice([0.01, 1.0, 5.0]) for device in devices}
    modes = ["data_parallel", "swap"]
    plans = [phases_of_mode(mode, STAGES, devices) for mode in modes]
    plans.append(random_phases(rng, STAGES, devices, n_items))
    rng.shuffle(plans)
    dispatcher = GroupScheduler(
        plans[0],
        STAGES,
        copyable=rng.choice([(0,), (1,), (0, 1)]),
        batch={0: BatchRule(rng.choice([1, 3]))},
        policy=any_policy(seed),
    )
    played = Fleet(
        dispatcher, flow(n_items), rng=rng, p_death=p_death, p_saving=p_saving, p_slow=p_slow,
        plans=plans[1:], p_change=p_change, item_s=item_s,
    )  # fmt: skip
    if not played.ends(p_death or p_change):
        return
    tasks = [task for _, task, _ in played.ran]
    assert len(tasks) == len(set(tasks)) >= 2 * (n_items - len(played.given_up))
    groups = dispatcher.groups.values()
    assert dispatcher.n_running == 0
    assert all(task in (*group.running, *group.saving) for group in groups for task in group.extra)


def test_an_item_that_hangs_is_done_by_who_is_idle_and_what_comes_late_does_not_count() -> None:
    """The oracle is the clock of a world in which one device takes a thousand times as long."""
    dispatcher = GroupScheduler(phases_of_mode("swap", STAGES, ["d0", "d1"]), STAGES, copyable=(0, 1))
    played = Fleet(dispatcher, flow(4), item_s={"d0": 1000.0, "d1": 1.0})
    assert played.go() < 20
    assert {group for group, _, _ in played.ran} == {"d1"}
