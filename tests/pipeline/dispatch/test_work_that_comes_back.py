"""Tasks that come back when their stage seemed to be over, or when those who were to do it cannot."""

import random

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import STAGES, phases_of_mode, random_phases

from evenload.pipeline.dispatch.device_group import StartWorker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.plan import Fit, Phase, Unit


def test_who_cannot_do_its_own_part_helps_with_others() -> None:
    """Its own work, which it refuses, is on its way for ever."""
    dispatcher = GroupScheduler(phases_of_mode("stage_parallel", STAGES, ["d0", "d1"]), STAGES)
    dispatcher.refused("d0", 0, "no memory")
    dispatcher.refused("d1", 1, "no memory")
    dispatcher.add([StageTask(0, 5), StageTask(1, 4)])
    assert dispatcher.decide(0.0) == [StartWorker("d0"), StartWorker("d1")]


@given(st.integers(2, 4), st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(150))
def test_a_stage_that_a_plan_leaves_out_has_every_device_that_works_alone(n_devices, seed) -> None:
    """Those that had it may be lost when its last tasks come back."""
    rng, devices = random.Random(seed), [f"d{at}" for at in range(n_devices)]
    dispatcher = GroupScheduler(random_phases(rng, STAGES, devices, 9, 0.5), STAGES)
    is_on_one = any(one.stage == 0 for name in devices if name in dispatcher.groups
                    for one in dispatcher.groups[name].assignments)  # fmt: skip
    left = rng.choice(devices)
    on_all = Phase(tuple(Unit((device,), STAGES[1]) for device in devices), STAGES[1:])
    dispatcher.follow((on_all,))
    dispatcher.add([StageTask(0, 5)])
    for device in devices:
        if device != left:
            dispatcher.leave(device, "it was lost")
    if is_on_one:
        assert dispatcher.why_stuck() is None
        assert dispatcher.decide(0.0) == [StartWorker(left)]


@given(st.integers(1, 3), st.integers(0, 10))
def test_who_is_off_helps_where_its_own_results_are_not_wanted_yet(queue, n_more) -> None:
    """Those who are to take them have enough, and may be busy for long with something else."""
    phases = phases_of_mode("stage_parallel", STAGES, ["d0", "d1"])
    dispatcher = GroupScheduler(phases, STAGES, queue=queue)
    dispatcher.up("d1")
    dispatcher.loaded("d1", 1, Fit())
    dispatcher.add([StageTask(0, 99), *(StageTask(1, at) for at in range(queue + 1 + n_more))])
    assert StartWorker("d0") in dispatcher.decide(0.0)
