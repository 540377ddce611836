import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.balance.metrics import spread
from evenload.balance.migrate import LoadBalancer, Move, QueueLoad
from evenload.errors import ConfigError


def queues(**queued):
    return {device: QueueLoad(running=1, queued=n) for device, n in queued.items()}


def step(loads, now=0.0, balancer=None, state=None):
    balancer = balancer or LoadBalancer()
    return balancer.step(state or balancer.init(), now, loads)


def test_moves_half_the_difference_from_hot_to_cold():
    state, moves = step(queues(a=11, b=3, c=7))
    assert moves == (Move("a", "b", 4, 8 / 12),)
    assert (state.n_rebalances, state.n_moves_asked) == (1, 4)


def test_below_the_threshold_nothing_moves():
    assert step(queues(a=9, b=6))[1] == (), "(10 - 7) / 10 is not above 0.3"
    assert step(queues(a=9, b=5))[1] != ()
    assert step(queues(a=9, b=6), balancer=LoadBalancer(threshold=0.2))[1] != ()
    assert step({})[1] == step(queues(a=5))[1] == step(queues(a=3, b=3))[1] == ()


def test_waits_for_the_interval():
    state, _ = step(queues(a=20, b=0))
    assert step(queues(a=20, b=0), now=0.99, state=state)[1] == ()
    assert step(queues(a=20, b=0), now=1.0, state=state)[1] != ()
    assert step(queues(a=20, b=0), now=-5.0, state=state)[1] == (), "a clock that jumps back triggers nothing"


def test_nothing_moves_back_on_the_next_tick():
    state, moves = step(queues(a=20, b=0))
    assert moves[0].source == "a"
    assert step(queues(a=0, b=20), now=1.0, state=state)[1] == ()
    assert step(queues(a=0, b=20), now=1.1, state=state)[1][0].source == "b"
    assert step(queues(a=0, b=0, c=20), now=1.0, state=state)[1][0].source == "c"


def test_utilisation_decides_who_may_give_and_take_where_it_is_known():
    def with_utilisation(a, b):
        return {"a": QueueLoad(1, 20, utilisation=a), "b": QueueLoad(1, 0, utilisation=b)}

    assert step(with_utilisation(0.9, 0.4))[1] != ()
    assert step(with_utilisation(0.9, 0.6))[1] == (), "the taker is in the band between cold and hot"
    assert step(with_utilisation(0.7, 0.1))[1] == (), "the giver is in the band"
    assert step(with_utilisation(None, None))[1] != ()


def test_seconds_count_once_every_device_is_measured():
    # equal queues, but b is four times slower: a counts as idle
    loads = {"a": QueueLoad(0, 20, item_s=1.0), "b": QueueLoad(0, 20, item_s=4.0)}
    (move,) = step(loads, balancer=LoadBalancer(max_moves=100))[1]
    assert (move.source, move.target, move.n_items) == ("b", "a", 12)
    half_known = {**loads, "a": QueueLoad(0, 20)}
    assert step(half_known)[1] == ()


def test_off_and_on_and_counters():
    balancer = LoadBalancer()
    state = balancer.init(enabled=False)
    assert step(queues(a=20, b=0), state=state) == (state, ())
    state, moves = step(queues(a=20, b=0), state=state.switched(True))
    assert len(moves) == 1
    state = state.report(done=7, failed=3).switched(False)
    assert step(queues(a=20, b=0), now=10, state=state)[1] == ()
    assert (state.n_rebalances, state.n_moves_asked, state.n_moves_done, state.n_moves_failed) == (
        1,
        10,
        7,
        3,
    )


@pytest.mark.parametrize(
    "bad",
    [{"threshold": 1.5}, {"threshold": -1}, {"interval_s": -1}, {"max_moves": 0}, {"cold": 0.9}, {"hot": 2}],
)
def test_ranges_are_checked(bad):
    with pytest.raises(ConfigError) as caught:
        LoadBalancer(**bad)
    assert caught.value.hint


queue_loads = st.builds(
    QueueLoad,
    running=st.integers(0, 3),
    queued=st.integers(0, 60),
    item_s=st.one_of(st.none(), st.floats(0.01, 10)),
    utilisation=st.one_of(st.none(), st.floats(0, 1)),
)
fleets = st.lists(queue_loads, min_size=2, max_size=5).map(
    lambda loads: {f"d{i}": q for i, q in enumerate(loads)}
)


@given(fleets)
def test_a_move_takes_only_queued_items_and_never_swaps_the_two(loads):
    _, moves = step(loads)
    for move in moves:
        source, target = loads[move.source], loads[move.target]
        assert 0 < move.n_items <= min(10, source.queued)
        known = all(q.item_s is not None for q in loads.values())
        per_item = {d: q.item_s if known else 1.0 for d, q in loads.items()}
        before = [source.n_items * per_item[move.source], target.n_items * per_item[move.target]]
        after = [
            (source.n_items - move.n_items) * per_item[move.source],
            (target.n_items + move.n_items) * per_item[move.target],
        ]
        assert after[0] >= after[1] * (1 - 1e-9)
        assert max(after) < max(before)
        assert spread(before) > 0.3


@given(fleets, st.lists(st.floats(0, 2), max_size=8))
def test_it_settles_and_no_two_rebalances_are_closer_than_the_interval(loads, waits):
    balancer, now, at = LoadBalancer(), 0.0, []
    state = balancer.init()
    for wait in waits:
        now += wait
        state, moves = balancer.step(state, now, loads)
        for move in moves:
            at.append((now, move))
            source, target = loads[move.source], loads[move.target]
            loads = {
                **loads,
                move.source: dataclasses.replace(source, queued=source.queued - move.n_items),
                move.target: dataclasses.replace(target, queued=target.queued + move.n_items),
            }
    assert state.n_rebalances == len(at)
    assert state.n_moves_asked == sum(move.n_items for _, move in at)
    for (t1, first), (t2, second) in itertools.pairwise(at):
        assert t2 - t1 >= 1.0
        assert (first.source, first.target) != (second.target, second.source) or t2 - t1 > 1.0
