"""The bound of a run: below every makespan, exact where the optimum is known."""

import itertools
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.balance import bound as bound_module
from evenload.balance.bound import Lanes, SharedItems, StageWork, bound_of_spans, bound_together

names = st.sampled_from(["a", "b", "c", "d"])
spans = st.lists(st.tuples(names, st.floats(0.001, 100.0), st.integers(1, 20)), min_size=1, max_size=40)


def busy_of(rows):
    busy = {}
    for device, seconds, _ in rows:
        busy[device] = busy.get(device, 0.0) + seconds
    return busy


@given(spans)
def test_no_run_beats_its_bound(rows):
    bound = bound_of_spans(rows)
    assert bound.bound_s <= max(busy_of(rows).values()) * (1 + 1e-9)
    assert bound.bound_s > 0


@given(spans, st.randoms(use_true_random=False))
def test_the_order_of_the_spans_does_not_matter(rows, random):
    devices = sorted({row[0] for row in rows})
    shuffled = list(rows)
    random.shuffle(shuffled)
    first, second = bound_of_spans(rows, devices), bound_of_spans(shuffled, devices)
    assert math.isclose(first.bound_s, second.bound_s, rel_tol=1e-9)


@given(st.dictionaries(names, st.integers(1, 8), min_size=1), st.integers(1, 50))
def test_equal_items_on_unequal_devices_are_bounded_by_all_speed_together(speeds, n_each):
    rows = [(name, n_each / speed, n_each) for name, speed in speeds.items()]
    bound = bound_of_spans(rows)
    whole_s = n_each * len(speeds) / sum(speeds.values())
    assert math.isclose(bound.work_s, whole_s, rel_tol=1e-9)
    assert math.isclose(bound.bound_s, max(whole_s, bound.longest_s), rel_tol=1e-9)


def test_one_long_item_sets_the_bound_and_does_not_slow_its_device():
    bound = stage([("a", 1.0, 1)] * 9 + [("b", 1.0, 1)] * 9 + [("b", 40.0, 1)]).bound()
    assert bound.limit == "longest item"
    assert bound.speeds == pytest.approx({"a": 1.0, "b": 1.0})
    assert bound.bound_s == pytest.approx(40.0)


@given(st.lists(st.tuples(st.floats(0.01, 100.0), st.integers(1, 9)), min_size=1, max_size=30))
def test_the_middle_half_is_what_a_slow_reading_of_it_gives(rows):
    logs = sorted(math.log(seconds / n) for seconds, n in rows for _ in range(n))
    quarter = len(logs) / 4
    inside = [max(0.0, min(i + 1, 3 * quarter) - max(i, quarter)) for i in range(len(logs))]
    middle = sum(w * x for w, x in zip(inside, logs, strict=True)) / sum(inside)
    speed = bound_of_spans([("a", seconds, n) for seconds, n in rows]).speeds["a"]
    assert math.log(speed) == pytest.approx(-middle, abs=0.02)


def test_size_hints_separate_large_items_from_slow_devices():
    work = StageWork()
    work.add("fast", 10.0, 1, cost=100.0)
    work.add("slow", 20.0, 1000, cost=20.0)
    assert work.bound().work_s == pytest.approx(120 / 11)
    blind = bound_of_spans([("fast", 10.0, 1), ("slow", 20.0, 1000)])
    assert blind.work_s > work.bound().work_s  # what the docstring warns of


def test_a_device_that_finished_nothing_is_named_and_left_out():
    bound = bound_of_spans([("a", 2.0, 2)], devices=["a", "b"])
    assert bound.unmeasured == ("b",)
    assert bound.bound_s == pytest.approx(2.0)


def test_failed_work_counts_as_work_but_not_as_speed():
    work = StageWork()
    work.add("a", 2.0, 2)
    work.add("a", 1.0, 4, is_good=False)
    assert work.bound().speeds == pytest.approx({"a": 1.0})
    assert work.bound().bound_s == pytest.approx(3.0)


def test_nothing_measured_is_no_bound():
    bound = bound_of_spans([])
    assert bound.bound_s == 0.0
    assert bound.ratio(3.0) is None
    assert bound_together([]) == (0.0, 0.0)
    assert bound_together([StageWork(["a"])]) == (0.0, 0.0)


def stage(rows, likes=None, *, is_told=False):
    work = StageWork(likes=likes)
    for device, seconds, n in rows:
        work.add(device, seconds, n, cost=n if is_told else None)
    return work


def test_a_lone_long_item_says_nothing_of_its_device():
    """40 items of 0.05 s, one of 4 s: on equal devices the least is 4 s, else not known beyond 2 s."""
    rows = [("a", 0.05, 1)] * 40 + [("b", 4.0, 1)]
    equal = stage(rows, {"a": "GPU", "b": "GPU"}).bound()
    assert (equal.bound_s, equal.up_to_s, equal.limit) == pytest.approx((4.0, 4.0, "longest item"))
    unlike = stage(rows).bound()
    assert (unlike.bound_s, unlike.up_to_s) == pytest.approx((2.0, 4.0))


def test_what_a_copy_did_not_do_meanwhile_is_evidence():
    """A copy of the long item ran for 2 s elsewhere and was not done: so long takes the item there, too."""
    work = stage([("a", 0.05, 1)] * 40 + [("b", 4.0, 1)])
    for name, start, stop, is_done in (("b", 0.0, 4.0, True), ("a", 2.0, 4.0, False)):
        work.add_shared(name, (40, 1), start, stop, is_done=is_done)
    r = 0.95 * 2 / 4  # the least that b's speed may be of a's
    assert work.bound().bound_s == pytest.approx((2 + 4 * r) / (1 + r))
    assert work.bound().up_to_s == pytest.approx(4.0)
    work.add_shared("a", (40, 1), 0.0, 4.0, is_done=True)  # a has done it, too: as fast, to 5 %
    assert work.bound().bound_s == pytest.approx(0.95 * 4)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 9)), min_size=1, max_size=30), st.randoms())
def test_lanes_are_the_most_chunks_at_once_in_whatever_order_they_come(chunks, random):
    """Another way: count at the start of each chunk those that go on then."""
    chunks = [(start, start + length) for start, length in chunks]
    lanes = Lanes()
    random.shuffle(chunks)
    for chunk in chunks:
        lanes.add("a", *chunk)
    most = max(sum(a <= start < b - 1e-6 for a, b in chunks) for start, _ in chunks)
    assert lanes.n("a") == most


def test_lanes_of_many_chunks_are_counted_in_little_memory(monkeypatch):
    monkeypatch.setattr(bound_module, "MOST_TIMES", 16)
    lanes = Lanes()
    for k in range(0, 1000, 2):
        lanes.add("a", k + 1.0, k + 1.9)  # of each two, the later one comes first
        lanes.add("a", k + 0.0, k + 1.0)
    assert lanes.n("a") == 1
    lanes.add("a", 990.0, 999.0)
    assert lanes.n("a") == 2


@given(st.lists(spans, min_size=1, max_size=3))
def test_stages_at_once_are_bounded_below_their_makespan(stages):
    busy = busy_of([row for rows in stages for row in rows])
    assert bound_together([stage(rows, is_told=True) for rows in stages])[0] <= max(busy.values()) * (
        1 + 1e-9
    )


@given(st.lists(spans, min_size=1, max_size=3))
def test_stages_at_once_take_at_least_as_long_as_each_alone(stages):
    together, _ = bound_together([stage(rows, is_told=True) for rows in stages])
    assert all(together >= bound_of_spans(rows).bound_s * (1 - 1e-9) for rows in stages)


TRIES = [
    ("a", 7, 2.0, 5.0, False),
    ("b", 7, 0.0, 4.0, True),
    ("a", 8, 0.0, 1.0, True),
    ("b", 9, 0.0, 1.0, True),
]  # in whatever order it is told


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_copy_that_was_given_up_took_at_least_as_long(order):
    """By hand: "a" had item 7 for 3 s, of which it was busy with something else until 2.5."""
    found = SharedItems()
    for at in order:
        device, items, start, stop, is_done = TRIES[at]
        found.add(device, items, start, stop, is_done=is_done)
    assert found.pairs(lambda device, time_s: 2.5) == [("a", "b", 2.5, 4.0)]
    assert found.pairs(lambda device, time_s: 5.0) == []


def test_who_both_did_them_are_compared_both_ways_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(bound_module, "MOST_KEPT", 4)
    monkeypatch.setattr(bound_module, "MOST_PAIRS", 3)
    found = SharedItems()
    for item in range(9):
        for name, seconds in (("a", 1.0), ("b", 2.0)):
            found.add(name, item, 0.0, seconds, is_done=True)
    pairs = found.pairs(lambda device, time_s: 0.0)
    assert pairs[:2] == [("a", "b", 1.0, 2.0), ("b", "a", 2.0, 1.0)]
    assert len(pairs) == 4
    found.add("c", 0, 0.0, 1.0, is_done=True)
    assert len(found.pairs(lambda device, time_s: 0.0)) == 4
