import numpy as np
import pytest

from evenload.errors import ConfigError
from evenload.moe import Fleet


def test_slots_that_do_not_divide_are_shared_out():
    fleet = Fleet.even(4, 10, n_nodes=2)
    assert fleet.slots == (3, 3, 2, 2)
    assert fleet.nodes == (0, 0, 1, 1)
    assert fleet.width == 3
    assert fleet.open_slots().tolist() == [True] * 3 + [True] * 3 + [True, True, False] + [True, True, False]
    assert not fleet.is_even
    assert Fleet.even(4, 12).is_even


def test_dead_gpus_have_no_speed_and_no_slots():
    fleet = Fleet((2, 0, 2), speeds=(1, 1, 0.5), dead=frozenset([0]))
    assert fleet.living_speeds().tolist() == [0, 0, 0.5]
    assert fleet.open_slots().tolist() == [False] * 4 + [True] * 2
    assert fleet.n_living_slots == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fleet(()), "nowhere"),
        (lambda: Fleet((0, 0)), "nowhere"),
        (lambda: Fleet((2, 2), speeds=(1.0,)), "1 by speeds"),
        (lambda: Fleet((2, 2), speeds=(1.0, 0.0)), "speeds"),
        (lambda: Fleet((2, 2), nodes=(1,)), "1 by nodes"),
        (lambda: Fleet((2, 2), dead=frozenset([2])), "dead GPUs [2]"),
        (lambda: Fleet((2, 2), dead=frozenset([0, 1])), "alive"),
        (lambda: Fleet.even(4, 8, n_nodes=3), "do not divide over 3 nodes"),
        (lambda: Fleet.even(0, 8), "0 GPUs"),
    ],
)
def test_bad_fleets_are_refused(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("dead", [[1.5], [True, False], np.array([False, True]), "1", 1])
def test_dead_names_gpus_by_their_place(dead):
    with pytest.raises(ValueError, match="dead"):
        Fleet.even(2, 4, dead=dead)
