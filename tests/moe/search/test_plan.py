from pathlib import Path

import numpy as np
import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenload.balance.flow import route
from evenload.errors import ConfigError, UnknownName
from evenload.moe import Fleet, MoveCosts, place, rebalance_experts, schedule_transfers
from evenload.moe.placement.bound import placement_bound
from evenload.moe.search.layer_search import Effort, LayerSearch, LivingFleet, as_demand
from evenload.moe.topology import lay_out, ring

TRACES = Path(__file__).parents[2] / "data" / "routing"
MAY_MISS = pytest.mark.filterwarnings("ignore:target .* is not met")
BRIEF = Effort(n_windows=8, n_made_up=24, n_rounds=2, n_tries=40)


MET_BY_THE_SECOND_SEARCH = np.array(  # of the looser target below only the first one was asked
    [
        [37, 36, 133, 45, 164, 51, 100, 50, 42, 49, 9],
        [30, 21, 126, 38, 244, 41, 123, 55, 24, 27, 17],
    ],
    float,
)


@st.composite
def tasks(draw):
    """(windows [windows, experts], fleet, homes [experts], is_strict): GPUs of all kinds."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    n_nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n_gpus = n_nodes * per_node
    slots = random.integers(1, 5, n_gpus)
    speeds = random.uniform(0.5, 2.0, n_gpus) if draw(st.booleans()) else np.ones(n_gpus)
    dead = [0] if n_gpus > 2 and draw(st.booleans()) else []
    fleet = Fleet(tuple(slots), tuple(speeds), tuple(np.arange(n_gpus) // per_node), frozenset(dead))
    n_experts = int(random.integers(1, fleet.n_living_slots + 1))
    windows = random.lognormal(0, 1, n_experts) * random.lognormal(
        0, 0.3, (draw(st.integers(1, 6)), n_experts)
    )
    return np.rint(windows * 50), fleet


def search_of(windows, fleet, is_routed=True, home=None, is_strict=False):
    home = np.full(windows.shape[1], -1) if home is None else home
    return LayerSearch(
        windows, LivingFleet.of(fleet), home=home, is_strict=is_strict, is_routed=is_routed, seed=0
    )


def exact_cost(phy2log, demand, fleet):
    """The router's answer, busiest GPU for its speed over the mean. Demand in whole tokens."""
    living = fleet.living_speeds()
    slot2gpu = np.arange(len(phy2log)) // fleet.width
    routing = route(
        phy2log,
        np.rint(demand)[None].astype(np.int64),
        fleet.n_gpus,
        speeds=fleet.speeds,
        slot2gpu=slot2gpu,
        dead=np.flatnonzero(living == 0),
    )
    return float(routing.bounds[0]) / (np.rint(demand).sum() / (living.sum() / living.max()))


def check(plan_slots, windows, fleet):
    """A placement must hold every expert, no twins, nothing on dead GPUs or missing slots."""
    n_experts = windows.shape[-1]
    held = plan_slots[plan_slots >= 0]
    assert sorted(set(held.tolist())) == list(range(n_experts))
    assert (plan_slots[~fleet.open_slots()] == -1).all()
    for gpu in plan_slots.reshape(fleet.n_gpus, -1).tolist():
        experts = [e for e in gpu if e >= 0]
        assert len(experts) == len(set(experts))


@settings(max_examples=examples(60), deadline=None)
@given(tasks(), st.sampled_from(["routed", "equal"]))
def test_every_plan_is_sound_and_no_better_than_its_bound(task, objective):
    windows, fleet = task
    plan = place(windows[:, None], fleet, objective=objective, effort=BRIEF)
    check(plan.phy2log[0], windows, fleet)
    assert plan.imbalance[0] >= plan.bound[0] - 1e-6
    logcnt = plan.placement.logcnt[0]
    assert (np.bincount(plan.phy2log[0][plan.phy2log[0] >= 0], minlength=windows.shape[1]) == logcnt).all()


@settings(max_examples=examples(60), deadline=None)
@given(tasks(), st.booleans(), st.sampled_from([0, 30]))
def test_costs_are_the_routers_or_by_hand_however_long_the_search(task, is_routed, n_tries):
    windows, fleet = task
    windows = windows + 1  # a window without load has no cost to compare
    search = search_of(windows, fleet, is_routed)
    demand = as_demand(windows, search.fleet.speed.sum())
    for _, start in search.starts():
        slots, costs = search.search(start, demand, n_tries)
        assert costs == pytest.approx(search.costs(slots, demand), abs=1e-6)
        assert costs.mean() <= search.costs(start, demand).mean() + 1e-6
        phy2log = np.full(fleet.n_gpus * fleet.width, -1)
        phy2log[search.fleet.slot_index] = slots
        check(phy2log, windows, fleet)
        used, gpu = slots >= 0, search.fleet.slot2gpu
        share = demand / np.bincount(slots[used], minlength=demand.shape[1])
        for window, split, cost in zip(windows, share, costs, strict=True):
            if is_routed:  # the router keeps speeds in steps of 1/4096
                assert cost == pytest.approx(max(1.0, exact_cost(phy2log, window * 4096, fleet)), rel=2e-3)
            else:
                load = np.bincount(gpu[used], split[slots[used]], minlength=len(search.fleet.speed))
                assert cost == pytest.approx((load / search.fleet.speed).max(), abs=1e-9)


@MAY_MISS
@settings(max_examples=examples(40), deadline=None)
@given(tasks(), st.sampled_from(["routed", "equal"]))
def test_an_old_placement_is_made_fit_and_repaired_with_few_fetches(task, objective):
    windows, fleet = task
    random = np.random.default_rng(0)
    old = random.integers(-1, windows.shape[1], (1, fleet.n_gpus * fleet.width))
    plan = place(windows[:, None], fleet, old=old, target=1.1, effort=BRIEF, objective=objective)
    check(plan.phy2log[0], windows, fleet)
    generous = place(windows[:, None], fleet, old=old, target=1e9, effort=BRIEF, objective=objective)
    check(generous.phy2log[0], windows, fleet)
    lost = set(range(windows.shape[1])) - set(old[0][fleet.open_slots()].tolist())
    assert len(generous.transfers(old).transfers) <= 2 * len(lost)
    from_old = place(windows[:, None], fleet, old=old, effort=BRIEF, objective=objective)
    check(from_old.phy2log[0], windows, fleet)


@MAY_MISS
@settings(max_examples=examples(30), deadline=None)
@given(tasks(), st.booleans(), st.lists(st.floats(1.0, 2.0), min_size=2, max_size=4))
@example(
    (MET_BY_THE_SECOND_SEARCH, Fleet((1, 2, 2, 4, 1, 3), (1.0,) * 6, (0, 0, 0, 1, 1, 1))),
    False,
    [1.125, 1.1875],
)
def test_a_tighter_target_fetches_no_fewer_experts(task, is_routed, targets):
    windows, fleet = task
    old = place(windows[:1, None], fleet, effort=BRIEF).phy2log
    objective = "routed" if is_routed else "equal"
    plans = [
        place(windows[:, None], fleet, objective=objective, old=old, target=target, effort=BRIEF)
        for target in sorted(targets, reverse=True)
    ]
    fetched = [len(plan.transfers(old).transfers) for plan in plans]
    met = [n for n, plan in zip(fetched, plans, strict=True) if plan.target_met]
    assert met == sorted(met)


def groups_by_node(plan, n_groups, fleet):
    """[(layer, expert, nodes that hold it)]"""
    for layer, row in enumerate(plan.phy2log):
        for expert in range(plan.placement.logcnt.shape[1]):
            slots = np.flatnonzero(row == expert)
            yield layer, expert, {fleet.nodes[slot // fleet.width] for slot in slots}


@MAY_MISS
@pytest.mark.parametrize("limit", ["base", "all"])
def test_node_limits(limit):
    windows = np.random.default_rng(3).lognormal(4, 0.8, (6, 2, 16))
    fleet = Fleet.even(8, 24, n_nodes=4)
    old = rebalance_experts(windows.sum(axis=0), 24, 1, 1, 8).phy2log
    for options in ({}, {"old": old}, {"old": old, "target": 1.05}):
        plan = place(windows, fleet, node_limit=limit, n_groups=8, effort=BRIEF, **options)
        homes: dict = {}
        for layer, expert, nodes in groups_by_node(plan, 8, fleet):
            if limit == "all":
                assert len(nodes) == 1
            homes.setdefault((layer, expert // 2), nodes).intersection_update(nodes)
        assert all(homes.values())  # each group has a node with copies of all its experts


def test_the_fast_gpu_does_more():
    windows = np.random.default_rng(1).lognormal(4, 0.5, (4, 1, 12))
    fleet = Fleet((4, 4, 10), speeds=(1, 1, 3))
    plan = place(windows, fleet)
    assert plan.imbalance[0] <= 1.01
    loads = route(
        plan.phy2log[0], np.rint(windows[0, 0][None] * 100).astype(np.int64), 3, speeds=[1, 1, 3]
    ).loads[0]
    assert loads[2] > 2.5 * loads[0]


def real_windows(name, n_tokens, lo, hi, layers):
    ids = np.load(TRACES / f"routing_{name}.npz")["experts"][layers, lo:hi].astype(np.int64)
    n = ids.shape[1] // n_tokens
    ids = ids[:, : n * n_tokens].reshape(len(ids), n, n_tokens * ids.shape[2])
    return np.stack([[np.bincount(layer[w], minlength=64) for layer in ids] for w in range(n)])


@pytest.mark.parametrize("name", ["intent", "law"])
def test_held_out_batches_of_real_traffic_are_even(name):
    layers = slice(0, 26, 6)
    history = real_windows(name, 128, 0, 4096, layers)
    later = real_windows(name, 512, 4096, 8192, layers)
    plan = place(history, Fleet.even(16, 80))
    peers = {
        "EPLB": rebalance_experts(history.sum(axis=0), 80, 1, 1, 16).phy2log,
        "ring": lay_out(ring(16), history.sum(axis=0), 80),
    }
    ours = np.mean([route(plan.phy2log, batch, 16).imbalance for batch in later])
    assert ours <= 1.02
    for phy2log in peers.values():
        assert ours < np.mean([route(phy2log, batch, 16).imbalance for batch in later])


@pytest.mark.parametrize("tied", [2, 8])
def test_gpus_that_tie_for_the_busiest_are_relieved_one_by_one(tied):
    """Each of the tied GPUs has a heavy expert too many: no single change lowers the maximum."""
    fleet, n_experts = Fleet.even(16, 64), 64
    load = np.full((1, 1, n_experts), 10.0)
    old = np.arange(n_experts)[None]
    for gpu in range(tied):
        load[0, 0, 4 * gpu], load[0, 0, 4 * (gpu + 8)] = 14.0, 6.0

    plan = place(load, fleet, objective="equal", old=old, target=1.03)

    assert plan.imbalance.max() <= 1.03
    assert np.count_nonzero(plan.phy2log != old) <= 2 * tied  # an exchange for each of them, at most


def test_same_arguments_same_plan_on_any_number_of_threads():
    windows = np.random.default_rng(2).lognormal(3, 0.7, (5, 4, 16))
    a = place(windows, Fleet.even(4, 24), effort=BRIEF)
    b = place(windows, Fleet.even(4, 24), effort=BRIEF, threads=3)
    assert (a.phy2log == b.phy2log).all()
    assert a.held_out is not None
    assert (a.phy2log != place(windows, Fleet.even(4, 24), effort=BRIEF, seed=9).phy2log).any()


def test_no_load_at_all():
    plan = place(np.zeros((3, 1, 8)), Fleet.even(4, 12), effort=BRIEF)
    assert plan.imbalance[0] == pytest.approx(1.0, abs=0.02)
    assert plan.bound[0] == 1.0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"load_windows": np.ones((1, 1, 9))}, ConfigError, "8 living slots are too few for 9 experts"),
        ({"load_windows": [[[1, -1, 1, 1]]]}, ConfigError, "load -1.0 of expert 1"),
        ({"load_windows": [[[1, np.nan, 1, 1]]]}, ConfigError, "load nan of expert 1"),
        ({"objective": "best"}, UnknownName, "objective 'best'"),
        ({"target": 1.1}, ConfigError, "without old="),
        ({"robust": 2}, ConfigError, "robust is 2"),
        ({"robust": 0.5, "target": 1.1, "old": [[0] * 8]}, ConfigError, "for the mean of the windows"),
        ({"old": [[0, 1, 2]]}, ConfigError, "old has shape (1, 3)"),
        ({"old": [[0, 1, 2, 3, 0, 1, 2, 4]]}, ConfigError, "ids from 0 to 4"),
        ({"node_limit": "base", "n_groups": 3}, ConfigError, "do not divide over 3 groups"),
        (
            {"node_limit": "all", "n_groups": 1, "fleet": Fleet.even(4, 4, n_nodes=2)},
            ConfigError,
            "do not fit",
        ),
    ],
)
def test_bad_input_is_refused(options, error, words):
    arguments = {"load_windows": np.ones((2, 1, 4)), "fleet": Fleet.even(4, 8, n_nodes=2)} | options
    with pytest.raises(error) as caught:
        place(**arguments)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_target_that_cannot_be_met_is_told():
    windows = np.ones((4, 2, 8))
    windows[:, 1, 0] = 1000.0
    fleet = Fleet.even(4, 8)
    with pytest.warns(
        UserWarning, match=r"target 1\.02 is not met in 1 of 2 layers: .* in layer 1, whose bound"
    ):
        plan = place(windows, fleet, old=np.tile(np.arange(8), (2, 1)), target=1.02)
    assert not plan.target_met
    assert plan.imbalance[0] == plan.stay[0] == 1.0


def test_a_plan_is_judged_on_windows_it_has_not_seen():
    random = np.random.default_rng(2)
    before, after = random.poisson(random.lognormal(4, 0.8, (2, 1, 3, 32)), (2, 8, 3, 32))
    fleet = Fleet((9, 9, 12, 10), speeds=(1, 1, 2, 1.5))
    for objective in ("routed", "equal"):
        plan = place(before, fleet, objective=objective, effort=BRIEF)
        np.testing.assert_allclose(plan.judge(before).mean(axis=0), plan.imbalance)
        assert (plan.judge(after).mean(axis=0) > plan.imbalance).all()
        assert (plan.judge(np.zeros((1, 3, 32))) == 1).all()
    with pytest.raises(ConfigError, match="for a plan of"):
        plan.judge(after[:, :2])


def test_a_robust_plan_serves_what_is_rare():
    """One window in 64 is of another domain: the mean of them all forgets it."""
    found = {}
    for robust in (0.0, 0.5):
        for seed in range(2):
            random = np.random.default_rng(seed)
            usual, rare = random.lognormal(3, 1.2, (2, 1, 32))
            windows = np.concatenate([random.poisson(usual, (63, 1, 32)), random.poisson(rare, (1, 1, 32))])
            plan = place(windows[random.permutation(64)], Fleet.even(8, 40), objective="equal", robust=robust)
            for name, load in (("usual", usual), ("rare", rare)):
                judged = plan.judge(random.poisson(load, (20, 1, 32))).mean()
                found.setdefault((robust, name), []).append(judged)
    means = {key: np.mean(values) for key, values in found.items()}
    assert means[0.5, "rare"] < means[0.0, "rare"] - 0.1
    assert means[0.5, "usual"] < means[0.0, "usual"] + 0.05


@settings(max_examples=examples(20), deadline=None)
@given(tasks(), st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_change_pays_where_it_saves_more_than_its_moves(task, tokens, price):
    windows, fleet = task
    old = place(windows[:1, None], fleet, effort=BRIEF).phy2log
    plan = place(windows[::-1, None], fleet, old=old, effort=BRIEF)
    pays = MoveCosts(fleet, fetch_tokens=price).pays(plan, old, tokens)
    speeds = [speed for gpu, speed in enumerate(fleet.speeds) if gpu not in fleet.dead and fleet.slots[gpu]]
    saved = tokens * (plan.stay[0] - plan.imbalance[0]) * max(speeds) / sum(speeds)
    n_batches = len(schedule_transfers(old, plan.phy2log, fleet).batches)
    assert pays.tolist() == [saved > n_batches * price]


def test_a_placement_that_lost_its_gpu_must_change_whatever_it_costs():
    windows, fleet = np.ones((2, 1, 4)), Fleet.even(4, 8)
    old = place(windows, fleet).phy2log
    left = Fleet.even(4, 8, dead=[0])
    plan = place(windows, left, old=old)
    lost = set(range(4)) - set(old[0][2:].tolist())
    assert MoveCosts(left, fetch_tokens=1e12).pays(plan, old, 0).tolist() == [bool(lost)]
    with pytest.raises(ConfigError, match="old=old"):
        MoveCosts(fleet).pays(place(windows, fleet), old, 1)
    with pytest.raises(ConfigError, match="tokens_to_come is nan"):
        MoveCosts(left).pays(plan, old, float("nan"))


def test_bound_is_the_mean_of_the_windows_bounds():
    windows = np.random.default_rng(0).lognormal(3, 1.5, (3, 1, 8))
    plan = place(windows, Fleet.even(8, 9), effort=BRIEF)
    each = [placement_bound(window, 9, 8)[0] for window in windows]
    assert plan.bound[0] == pytest.approx(np.mean(each))
    assert plan.bound[0] > 1
