"""Devices that leave and join: what left is used by no group, and the others go on without it."""

import random

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import STAGES, Fleet, any_policy, flow, random_phases

from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.plan import Fit, Phase, Unit


def split_over(*devices: str) -> tuple[Phase, ...]:
    return (Phase((Unit(devices, "edit", Fit("layer_split")),), ("edit",)),)


@given(
    st.integers(1, 10), st.integers(2, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.3]),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(150))
def test_no_worker_has_a_device_that_left_whatever_the_plan(
    n_items, n_devices, seed, p_saving, p_split
) -> None:
    """A plan may have been made before the device left, and its other devices may join again."""
    rng, devices = random.Random(seed), [f"d{at}" for at in range(n_devices)]
    plans = [random_phases(rng, STAGES, devices, n_items, p_split) for _ in range(3)]
    dispatcher = GroupScheduler(plans[0], STAGES, policy=any_policy(seed))
    played = Fleet(dispatcher, flow(n_items), rng=rng, p_saving=p_saving, plans=plans, p_change=0.2)
    if not played.ends("too many may have left"):
        return
    tasks = [task for _, task, _ in played.ran]
    assert len(tasks) == len(set(tasks))
    assert dispatcher.lost_devices() == played.gone


def test_a_group_is_gone_until_all_of_its_devices_are_back_and_the_others_are_not() -> None:
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
