"""A stream replayed. Oracles: costs added up by hand, all schedules of a small one, the checker alone."""

import json
from itertools import pairwise, product
from operator import getitem

import pytest

from evenload.certificate import check, parse
from evenload.errors import ConfigError
from evenload.moe import Fleet, MoveCosts, MoveRule, rebalance_experts
from evenload.moe.generators import Popularity, generate
from evenload.moe.replay.moves import replay_moves
from evenload.moe.search.transfers import keep_slots

FLEET = Fleet.even(4, 12)
WINDOWS = generate(
    Popularity(spread=1.5, shift=4), n_windows=16, n_layers=2, n_experts=8, n_ids=400, seed=1
).windows(1)


def plan(recent, in_use):
    new = rebalance_experts(recent.sum(axis=0), 12, 1, 1, 4).phy2log
    return new if in_use is None else keep_slots(in_use, new, 4)


def busiest(slots, loads):
    """Tokens of the busiest GPU when each expert's are split equally over its copies."""
    held = slots.tolist()
    return max(sum(loads[e] / held.count(e) for e in held[g : g + 3]) for g in range(0, 12, 3))


@pytest.mark.parametrize("price", [1.0, 40.0, 1e6])
def test_the_totals_are_what_the_maps_cost(price):
    costs = MoveCosts(FLEET, is_routed=False, fetch_tokens=price)
    found = replay_moves(WINDOWS, plan, MoveRule(costs), history=2)
    served = WINDOWS[2:]
    cost = found.cost
    by_hand = sum(
        busiest(found.maps[i][layer], one[layer]) for i, one in enumerate(served) for layer in range(2)
    )
    assert cost["rule"] == pytest.approx(by_hand + sum(found.moves))
    assert cost["never"] == pytest.approx(
        sum(busiest(found.maps[0][layer], one[layer]) for one in served for layer in range(2))
    )
    assert cost["rule"] <= 1.02 * cost["never"] + found.worst + 1e-6
    assert (
        cost["bound"] <= cost["hindsight"] <= min(cost[name] for name in ("rule", "never", "always")) + 1e-6
    )
    assert found.moved["rule"].any() == (price == 1)
    assert price > 1 or cost["rule"] < 0.97 * cost["never"]

    page = found.certificate()
    achieved, bound = check(parse(json.dumps(page).encode()))
    assert float(achieved) == pytest.approx(cost["rule"])
    assert float(bound) == pytest.approx(found.cost["bound"], rel=1e-6)
    if found.moves.any():
        page["evidence"]["moves"][0] *= 2  # moves that were dearer than what is claimed
        with pytest.raises(Exception, match="achieved"):
            check(parse(json.dumps(page).encode()))


def test_hindsight_is_no_more_than_the_best_of_all_schedules():
    """Of a few windows, over the placements of rule and always; moves priced as the rule's are."""
    costs = MoveCosts(FLEET, is_routed=False, fetch_tokens=20.0)
    windows = WINDOWS[2:8, :1]
    found = replay_moves(windows, plan, MoveRule(costs), history=1)
    offered, at = [plan(windows[:1], None)], plan(windows[:1], None)
    for i in range(1, 5):
        at = plan(windows[i : i + 1], at)
        offered.append(at)
    moving = [[float(costs.moving(a, b)[0]) for b in offered] for a in offered]
    serving = [[busiest(one[0], loads[0]) for one in offered] for loads in windows[1:]]
    best = min(
        sum(moving[a][b] for a, b in pairwise((0, *course))) + sum(map(getitem, serving, course))
        for course in product(range(len(offered)), repeat=5)
    )
    assert found.cost["hindsight"] <= best + 1e-6
    assert found.cost["hindsight"] >= 0.9 * best


def test_a_routed_stream_is_certified_with_its_quotas():
    found = replay_moves(WINDOWS, plan, MoveRule(MoveCosts(FLEET, fetch_tokens=5.0)), history=2)
    achieved, bound = check(parse(json.dumps(found.certificate()).encode()))
    assert float(achieved) >= found.cost["rule"] - 1e-6 >= found.cost["bound"] * (1 - 1e-9)
    assert float(achieved) < 1.03 * found.cost["rule"]  # whole tokens
    assert float(bound) == pytest.approx(found.cost["bound"], rel=1e-6)


def test_nothing_to_serve_is_refused():
    rule = MoveRule(MoveCosts(FLEET))
    with pytest.raises(ConfigError, match="leave no load"):
        replay_moves(WINDOWS[:2], plan, rule, history=2)
    with pytest.raises(ConfigError, match="leave no load"):
        replay_moves(0 * WINDOWS, plan, rule, history=2)
