"""A policy means in a stage what it means in a map: played fleets beside the map's own simulator."""

import random
from collections import Counter

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import POLICIES, Fleet, flow, phases_of_mode

from evenload.balance.fleet import ModelDevice
from evenload.balance.simulate import simulate
from evenload.pipeline.dispatch.device_group import RunTasks
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker
from evenload.pipeline.plan import Fit

BLIND = [one for one in POLICIES if one not in ("measured", "factoring:weighted")]  # to measured seconds


def played(policy: str, item_s: dict[str, float], n_items: int, **options) -> Fleet:
    dispatcher = GroupScheduler(
        phases_of_mode("swap", ("edit",), list(item_s)), ("edit",), policy=policy, **options
    )
    return Fleet(dispatcher, flow(n_items, ("edit",)), item_s=item_s)


@given(st.sampled_from(BLIND), st.integers(1, 60), st.integers(1, 5), st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(200))
def test_each_device_gets_of_a_stage_as_many_items_as_of_a_map(policy, n_items, n_devices, seed) -> None:
    """The oracle is the simulator of maps, whose dealer shares only the policy's formula with a stage."""
    rng = random.Random(seed)
    drawn = sorted((rng.uniform(0.3, 3.0) for _ in range(n_devices)), reverse=True)
    speeds = {f"d{at}": speed for at, speed in enumerate(drawn)}  # of equals a map asks the fastest first
    mapped = simulate(policy, [ModelDevice(*one) for one in speeds.items()], [1.0] * n_items, priors=speeds)
    stage = played(policy, {name: 1 / speed for name, speed in speeds.items()}, n_items, speeds=speeds)
    assert abs(stage.go() - mapped.makespan_s) < 1e-6
    wanted: Counter[str] = Counter()
    for span in mapped.spans:
        wanted[span.device] += len(span.indices)
    assert Counter(group for group, _, _ in stage.ran) == wanted


def test_only_what_a_worker_has_begun_is_to_blame_for_its_death() -> None:
    """The oracle is a fleet of one whose order of events is written out here."""
    dispatcher = GroupScheduler(phases_of_mode("swap", ("edit",), ["d0"]), ("edit",), policy="guided")
    course = flow(6, ("edit",))
    dispatcher.add(course.begin())
    dispatcher.decide(0.0)
    dispatcher.up("d0")
    dispatcher.decide(0.0)
    dispatcher.answered("d0", 0.0)
    dispatcher.loaded("d0", 0, Fit("whole"))
    dispatcher.groups["d0"].timed(0, 0.01)
    sent = [one for one in dispatcher.decide(0.0) if isinstance(one, RunTasks)]
    assert len(sent) > 1
    assert dispatcher.n_running == 6
    for now in (1.0, 2.0):  # twice: who is blamed twice is given up
        (begun,) = dispatcher.running_on("d0")
        given_up = dispatcher.lost("d0", now, "was killed")
        assert given_up == ([] if now == 1.0 else [begun])
        assert len(dispatcher.waiting) == (6 if now == 1.0 else 5)
        dispatcher.up("d0")
        dispatcher.loaded("d0", 0, Fit("whole"))
        dispatcher.decide(now)


def test_an_item_that_is_stopped_behind_another_is_not_run_again() -> None:
    """The oracle is the queue: what was to be run after the stopped item waits again, and it does not."""
    dispatcher = GroupScheduler(phases_of_mode("swap", ("edit",), ["d0"]), ("edit",), policy="guided")
    first, stopped, *rest = flow(6, ("edit",)).begin()
    dispatcher.add([first, stopped, *rest])
    dispatcher.decide(0.0)
    dispatcher.up("d0")
    dispatcher.loaded("d0", 0, Fit("whole"))
    dispatcher.groups["d0"].timed(0, 0.01)
    dispatcher.decide(0.0)
    assert dispatcher.withdraw({stopped.strand}) == []  # its worker has it
    failed, given_up = dispatcher.end_slow("d0", EndWorker("d0", "was killed", failed=(stopped,)))
    assert (failed, given_up) == ([stopped], [])
    assert sorted(dispatcher.waiting) == [first, *rest]
