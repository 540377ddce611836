"""Starts that take long, on a clock that the test moves."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenload.executor.supervisor.awake_clock import LONGEST_TURN_S, AwakeClock
from evenload.executor.supervisor.start_watch import LateStart, StartLimits, StartWatch

LIMITS = StartLimits(up_s=30.0, build_s=60.0, most_s=500.0)


class World:
    """One worker that does what ``does`` says each second."""

    def __init__(self, *, is_up: bool) -> None:
        self.worker: Any = SimpleNamespace(number=1, is_up=is_up, loading=None)
        self.done: float | None = 0.0
        self.now = 1000.0
        self.watch = StartWatch(LIMITS, lambda number: self.done)
        if is_up:
            self.build("Model")

    def build(self, name: str | None) -> None:
        self.worker.loading = name and SimpleNamespace(name=name)

    def live(self, seconds: int, does: float = 0.0) -> list[LateStart]:
        """Pass the time; returns what was said, the last being the end if it was given up."""
        said: list[LateStart] = []
        for _ in range(seconds):
            self.now += 1.0
            self.done = None if self.done is None else self.done + does
            said += self.watch.look([self.worker], self.now)
            if said and said[-1].is_over:
                break
        return said


def test_one_that_is_silent_is_told_of_and_then_given_up() -> None:
    world = World(is_up=False)
    told, over = world.live(100)
    assert not told.is_over
    assert over.is_over
    assert over.how == "had not started and shown no sign of life for 35 s"
    world = World(is_up=True)
    assert world.live(60)[-1].is_over is False
    assert world.live(30)[-1].how == "had not built Model and shown no sign of life for 65 s"


def test_where_nobody_can_see_only_the_longest_time_counts() -> None:
    world = World(is_up=True)
    world.done = None
    assert world.live(499) == []
    assert world.live(20)[-1].is_over


def test_each_task_is_judged_from_its_own_beginning_and_an_idle_worker_not_at_all() -> None:
    world = World(is_up=True)
    for name in "ABCDEFG":
        world.build(name)
        assert not any(one.is_over for one in world.live(50))
    world.build(None)
    assert world.live(1000) == []


def test_time_in_which_this_process_was_stopped_does_not_count() -> None:
    world = World(is_up=False)
    world.live(2)
    for _ in range(3):
        world.now += 10_000.0
        assert world.live(1) == []


@given(st.lists(st.floats(min_value=0.0, max_value=1e6), max_size=50), st.floats(0.0, LONGEST_TURN_S))
def test_the_clock_never_goes_faster_than_time_nor_than_its_owner_looks(
    steps: list[float], counted_s: float
) -> None:
    """The oracle is the sum of the owner's turns: of one that was kept up, ``counted_s``."""
    clock, now, began = AwakeClock(counted_s=counted_s), 5.0, [(5.0, 0.0)]
    clock.look(now)
    for step in steps:
        now += step
        clock.look(now)
        turn_s = counted_s if step > LONGEST_TURN_S else step
        began = [*((then, awake_s + turn_s) for then, awake_s in began), (now, 0.0)]
        assert all(abs(clock.since(then, now) - awake_s) <= 1e-6 for then, awake_s in began)
