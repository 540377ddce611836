"""Clones of experts for each batch, against integer programs and plain sums."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from clone_plan_claims import check_plan
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.clone_program import best_plan

from evenload.balance.flow import ReplicaGraph
from evenload.errors import ConfigError
from evenload.moe import Cloner, Dispatcher, FetchCosts, clone_experts
from evenload.moe.cloning import fetch_bound
from evenload.moe.cloning.fetch_bound import most_groups_bound
from evenload.moe.cloning.load_certificate import LoadCertificate


@st.composite
def layers(draw):
    """(counts, homes, spare slots, cap) of any shape: no slots, no experts on a rank, tiny and large
    counts."""
    n_ranks = draw(st.integers(1, 24) | st.sampled_from([63, 65, 130]))
    n_experts = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    homes = rng.integers(0, n_ranks, n_experts)
    if draw(st.booleans()):
        homes = np.arange(n_experts) * n_ranks // n_experts
    spare = rng.integers(0, 4, n_ranks) if draw(st.booleans()) else np.full(n_ranks, draw(st.integers(0, 3)))
    counts = (rng.lognormal(0, 1, n_experts) * draw(st.sampled_from([0, 1, 30, 1000, 10**6]))).astype(
        np.int64
    )
    return counts, homes, spare, draw(st.none() | st.integers(0, 4))


@settings(max_examples=examples(60), deadline=None)
@given(layers(), st.sampled_from([1.0, 1.01, 1.1, 2.0]), st.sampled_from([1, 7, 500]), st.integers(1, 4))
def test_a_plan_keeps_to_its_tolerance_its_least_tokens_and_its_domains(layer, tolerance, least, n_domains):
    """Oracle: plain sums, and the plan for the lowest peak, which a tolerance may only exceed by itself."""
    counts, homes, spare, cap = layer
    domains = np.random.default_rng(len(homes)).integers(0, n_domains, len(spare))
    rules = {"least_tokens": least, "domains": domains}
    plan = clone_experts(counts, homes, spare, cap, tolerance=tolerance, **rules)
    check_plan(plan, counts, homes, spare, cap, least, domains)
    lowest = clone_experts(counts, homes, spare, cap, **rules)
    check_plan(lowest, counts, homes, spare, cap, least, domains)
    assert plan.peak <= max(tolerance * lowest.peak_bound, lowest.peak)
    assert plan.fetch_bound <= lowest.fetch_bound
    again = clone_experts(counts, homes, spare, cap, tolerance=tolerance, **rules)
    for name in ("experts", "ranks", "tokens", "loads"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(again, name))


@pytest.mark.parametrize("tolerance", [1.0, 1.05])
def test_small_layers_with_rules_beside_the_integer_programs(tolerance):
    """Oracle: HiGHS, which knows nothing of groups: its lowest peak, and its fewest fetches within the
    tolerance of it."""
    pytest.importorskip("scipy", reason="scipy solves the integer programs")
    rng = np.random.default_rng(5)
    found = best = 0
    for _ in range(12):
        homes = np.repeat(np.arange(4), 2)
        counts = (rng.lognormal(0, 1, len(homes)) * rng.choice([20, 100])).astype(np.int64)
        domains, least = rng.integers(0, 2, 4) * rng.integers(2), int(rng.choice([1, 3]))
        plan = clone_experts(counts, homes, 2, tolerance=tolerance, least_tokens=least, domains=domains)
        check_plan(plan, counts, homes, np.full(4, 2), None, least, domains)
        peak, fetches = best_plan(counts, plan.layer, tolerance)
        assert plan.peak_bound <= peak
        assert plan.peak <= tolerance * peak + least - 1 + 1e-9  # so many cannot be moved alone
        assert plan.peak == peak or tolerance > 1 or least > 1 or domains.any()
        within = best_plan(counts, plan.layer, plan.peak / peak)[1] if plan.peak > peak else fetches
        assert plan.fetch_bound <= min(fetches, within)
        found, best = found + plan.fetches, best + fetches
    assert found <= 1.1 * best


def test_nothing_is_fetched_where_homes_are_within_the_tolerance():
    """Oracle: plain sums of homes, beside the peak's bound, which slots may hold above the mean."""
    chance, n_raised = np.random.default_rng(0), 0
    for _ in range(700):
        n_ranks = int(chance.integers(2, 7))
        counts = chance.integers(0, 200, chance.integers(n_ranks, 2 * n_ranks))
        homes, domains = chance.integers(0, n_ranks, len(counts)), chance.integers(0, 2, n_ranks)
        options = {"n_ranks": n_ranks, "domains": domains, "least_tokens": int(chance.choice([1, 8]))}
        plan = clone_experts(counts, homes, chance.integers(0, 2, n_ranks), tolerance=1.5, **options)
        highest, bound = np.bincount(homes, counts, n_ranks).max(), plan.certificate().peak
        if 2 * highest <= 3 * bound:
            n_raised += 2 * highest > 3 * plan.first_bound + 1
            assert (plan.fetches, plan.fetch_bound) == (0, 0)
    assert n_raised > 4


def test_one_percent_saves_fetches_where_loads_are_as_ultraep_publishes_them():
    """Oracle: UltraEP's published run (EP64, 256 experts, two spare slots, imbalance 3.03): 51 fetches for
    1.01, where a rank's odds fall as a power of its number and its first expert has nearly all of them."""
    weight = np.outer(np.arange(1, 65) ** -0.6, np.arange(1, 5) ** -4.0).ravel()
    counts = (2**22 * weight / weight.sum()).astype(np.int64)
    homes = np.arange(256) // 4
    plan = clone_experts(counts, homes, 2, tolerance=1.01, least_tokens=1024)
    check_plan(plan, counts, homes, np.full(64, 2), None, 1024)
    assert plan.imbalance <= 1.01 * (1 + 1e-4)
    assert plan.fetches <= 44 < clone_experts(counts, homes, 2).fetches
    assert plan.fetch_gap <= 0.1


def batches(n_ranks, n_experts, tokens, n=8, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        odds = np.exp(0.7 * rng.normal(size=n_experts))
        yield rng.multinomial(n_ranks * tokens, odds / odds.sum())


@pytest.mark.parametrize(("n_ranks", "n_experts"), [(8, 64), (16, 256), (32, 64), (64, 256), (100, 300)])
def test_two_slots_a_rank_are_enough(n_ranks, n_experts):
    homes, spare = np.arange(n_experts) * n_ranks // n_experts, np.full(n_ranks, 2)
    cloner = Cloner(homes, spare)
    for counts in batches(n_ranks, n_experts, 1024):
        plan = cloner.plan(counts)
        check_plan(plan, counts, homes, spare, None)
        assert plan.peak <= 1.02 * counts.sum() / n_ranks


def test_the_most_groups_are_those_of_all_partitions():
    def by_hand(slack):
        if not slack:
            return 0
        first, *others = slack
        best = -1
        for chosen in range(1 << len(others)):
            inside = [s for i, s in enumerate(others) if chosen >> i & 1]
            outside = [s for i, s in enumerate(others) if not chosen >> i & 1]
            if first + sum(inside) >= 0:
                rest = by_hand(outside)
                best = max(best, rest + 1 if rest >= 0 else -1)
        return best

    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 7, 7, 8, 8):
        slack = rng.integers(-5, 6, n)
        slack[0] -= slack.sum() - rng.integers(0, 3)
        most = by_hand(slack.tolist())
        assert most_groups_bound(slack) == most
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch_bound, "MOST_EXACT", 0)  # as of more ranks
            assert most_groups_bound(slack) >= most


def test_ranks_of_a_group_that_match_need_one_clone_fewer():
    plan = clone_experts([15, 5, 18, 2, 10], [0, 1, 2, 3, 4], 1)
    assert (plan.peak, plan.fetches, plan.fetch_bound, plan.fetch_gap) == (10, 2, 2, 0.0)


def test_what_no_clone_can_change_is_proven():
    nothing = clone_experts([9, 1], [0, 1], 0)
    assert (nothing.peak, nothing.fetches, nothing.peak_bound) == (9, 0, 9)
    capped = clone_experts([90, 0, 0, 0], [0, 1, 2, 3], 1, cap=1)
    assert (capped.peak, capped.peak_bound, capped.certificate().reason) == (45, 45, "cap")
    some = clone_experts([9, 1, 0, 2], [0, 1, 2, 3], [0, 0, 1, 0])
    assert some.peak == 5
    assert some.certificate().ranks == (0, 2)


def all_plans(counts, layer, costs):
    """(peak, fetches, seconds) of every set of clones, the peak by Hall's condition: tiny layers only."""
    n_ranks, n_experts = layer.n_ranks, layer.n_experts
    cells = [(e, r) for e in range(n_experts) for r in range(n_ranks) if layer.homes[e] != r]
    token_s, near_s, far_s, hidden_s = costs.table().tolist()
    nodes = costs.nodes_of(n_ranks)
    for chosen in itertools.product((False, True), repeat=len(cells)):
        clones = [cell for cell, is_chosen in zip(cells, chosen, strict=True) if is_chosen]
        received, made = (np.bincount([c[i] for c in clones], minlength=n)
                          for i, n in ((1, n_ranks), (0, n_experts)))  # fmt: skip
        if (received > layer.spare).any() or (made > layer.cap).any():
            continue
        on = [{int(layer.homes[e])} | {r for f, r in clones if f == e} for e in range(n_experts)]
        peak, links = 0, np.zeros((2, n_ranks))
        for mask in range(1, 1 << n_ranks):
            ranks = {r for r in range(n_ranks) if mask >> r & 1}
            peak = max(
                peak, -(-sum(int(c) for c, of in zip(counts, on, strict=True) if of <= ranks) // len(ranks))
            )
        for e, r in clones:
            links[[0, 1], [layer.homes[e], r]] += near_s if nodes[layer.homes[e]] == nodes[r] else far_s
        yield peak, len(clones), peak * token_s + max(links.max() - hidden_s, 0)


def test_no_set_of_clones_is_below_a_bound():
    """Oracle: all sets of clones of tiny layers, their peaks by Hall's condition."""
    rng, found, best = np.random.default_rng(12), 0, 0
    for _ in range(60):
        n_ranks, n_experts = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        homes, spare = rng.integers(0, n_ranks, n_experts), rng.integers(0, 3, n_ranks)
        counts, cap = rng.integers(0, rng.choice([3, 12, 50]), n_experts), rng.choice([0, 1, 9])
        token_s, far = float(rng.choice([0.01, 0.1, 1])), float(rng.choice([0.3, 1, 3]))
        nodes = tuple(rng.integers(0, 2, n_ranks).tolist())
        costs = FetchCosts(token_s, 1.0, 1.0, far, nodes, hidden_s=float(rng.choice([0, 1])))
        made = partial(clone_experts, counts, homes, spare, cap, n_ranks=n_ranks)
        peaks, fetches, seconds = np.array(list(all_plans(counts, made().layer, costs))).T
        for tolerance in (1.0, 1.1, 1.3, 1.5, 2.0):
            plan = made(tolerance=tolerance)
            check_plan(plan, counts, homes, spare, cap)
            within = np.floor(tolerance * plan.certificate().peak + 1e-9)
            assert plan.certificate().peak <= peaks.min() <= plan.peak <= max(within, peaks.min())
            assert plan.fetch_bound <= fetches[peaks <= max(within, plan.peak)].min()
            found, best = found + plan.fetches, best + fetches[peaks <= max(within, peaks.min())].min()
        timed = made(costs=costs)
        check_plan(timed, counts, homes, spare, cap)
        assert timed.fetch_bound <= fetches[peaks <= timed.peak].min() <= timed.fetches
        assert timed.seconds_bound <= seconds.min() * (1 + 1e-12)
        assert timed.seconds >= seconds.min() * (1 - 1e-12)
    assert best <= found <= 1.1 * best


@pytest.mark.parametrize(
    "forged",
    [
        ("mean", 6, 9, 5, (0,)),
        ("mean", 4, 21, 15, (0, 0, 1, 2, 3)),  # a rank named twice does not weigh twice
        ("mean", 4, 9, 3, (9,)),
        ("cap", 6, 9, 5),
        ("cap", 6, 9, 5, (), (4,)),
        ("room", 6, 12, 5),
        ("slots", 6, 2, 1),
        ("whatever", 6, 1, 0),
    ],
)
def test_a_forged_certificate_proves_nothing(forged):
    plan = clone_experts([9, 1, 0, 2], [0, 1, 2, 3], [1, 1, 1, 1])
    assert plan.peak == 3
    assert not LoadCertificate(*forged).proves([9, 1, 0, 2], plan.layer)
    with pytest.raises(ConfigError, match="shape"):
        plan.certificate().proves([9, 1], plan.layer)


def test_a_plan_stays_what_it_is_whatever_is_planned_next_by_whom():
    cloner, all_counts = Cloner(np.arange(64) // 4, 2), list(batches(16, 64, 512, n=24))
    alone = [clone_experts(counts, np.arange(64) // 4, 2) for counts in all_counts]
    buffer = np.empty(64, np.int64)
    kept = []
    for counts in all_counts:
        buffer[:] = counts
        kept.append(cloner.plan(buffer))
    with ThreadPoolExecutor(4) as pool:
        kept += pool.map(cloner.plan, all_counts)
    for plan, other in zip(kept, alone * 2, strict=True):
        for name in ("experts", "ranks", "tokens", "loads", "totals"):
            np.testing.assert_array_equal(getattr(plan, name), getattr(other, name))


def test_ids_fill_the_quotas_exactly_over_all_ranks():
    rng = np.random.default_rng(1)
    homes, n_ranks = np.arange(16) // 4, 4
    ids = [rng.choice(16, (200 + 50 * rank, 2), p=np.arange(1, 17) / 136) for rank in range(n_ranks)]
    ids[2][:5, 1] = -1
    counts = np.stack([np.bincount(of[of >= 0], minlength=16) for of in ids])
    plan = clone_experts(counts, homes, 2)
    dispatch, received = plan.dispatch, 0
    graph = ReplicaGraph.from_slots(dispatch.phy2log, 16, n_ranks)
    twin = Dispatcher(graph)
    for rank, of_rank in enumerate(ids):
        slots = plan.map(of_rank, rank)
        assert ((slots == -1) == (of_rank == -1)).all()
        used = slots >= 0
        np.testing.assert_array_equal(dispatch.phy2log[slots[used]], of_rank[used])
        received = received + np.bincount(slots[used], minlength=len(dispatch.quotas))
        shares = dispatch.shares(counts, rank)
        np.testing.assert_array_equal(shares, twin.exact_shares(dispatch.quotas, counts, rank))
        np.testing.assert_array_equal(slots, twin.map(of_rank, shares))
    np.testing.assert_array_equal(received, dispatch.quotas)
    np.testing.assert_array_equal(received.reshape(n_ranks, -1).sum(axis=1), plan.loads)


@settings(max_examples=examples(40), deadline=None)
@given(layers(), st.sampled_from([1e-9, 1e-6, 1e-3]), st.sampled_from([0.0, 1e-4]))
def test_with_costs_a_plan_takes_no_longer_than_without_clones_or_with_all(layer, token_s, hidden_s):
    """Oracle: sums by hand of the homes alone, and of the plan with the lowest peak."""
    counts, homes, spare, cap = layer
    costs = FetchCosts(token_s, expert_bytes=40e6, bytes_per_s=400e9, hidden_s=hidden_s)
    plan = clone_experts(counts, homes, spare, cap, costs=costs)
    even = clone_experts(counts, homes, spare, cap)
    ends = [np.bincount(of, minlength=len(spare)).max() for of in (homes[even.experts], even.ranks)]
    of_even = even.peak * token_s + max(max(ends) * 1e-4 - hidden_s, 0)
    check_plan(plan, counts, homes, spare, cap)
    assert plan.seconds_bound <= plan.seconds
    assert plan.seconds <= min(of_even, np.bincount(homes, counts).max() * token_s) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": [1, 2, 3]}, "shape"),
        ({"counts": [-1, 2]}, "0 or more"),
        ({"counts": [1.5, 2]}, "whole numbers"),
        ({"counts": [2**38, 2]}, "274877906944"),
        ({"homes": [0, 9], "n_ranks": 5}, "homes"),
        ({"spare_slots": -1}, "spare_slots"),
        ({"spare_slots": [1]}, "homes"),
        ({"cap": -1}, "cap"),
        ({"n_ranks": 1}, "n_ranks"),
        ({"costs": 3}, "costs"),
        ({"tolerance": 0.99}, "tolerance"),
        ({"tolerance": 1.01, "costs": FetchCosts(1.0, 1.0, 1.0)}, "beside costs"),
        ({"least_tokens": 0}, "least_tokens"),
        ({"domains": [0]}, "domains"),
        ({"costs": FetchCosts(1.0, 1.0, 1.0, nodes=(0,))}, "nodes"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, words):
    arguments = {"counts": [5, 1], "homes": [0, 1], "spare_slots": 1} | change
    with pytest.raises(ConfigError, match=words):
        clone_experts(**arguments)


def test_ids_that_were_not_counted_are_refused():
    plan = clone_experts([[5, 1], [1, 1]], [0, 1], 1)
    with pytest.raises(ConfigError, match="counted"):
        plan.map([0] * 9, 0)
    with pytest.raises(ConfigError, match="shares of 6"):
        plan.map([0], 0)
    with pytest.raises(ConfigError, match="from -1"):
        plan.dispatch.map([0], -np.ones(4, int))
    with pytest.raises(ConfigError, match="shape"):
        plan.dispatch.map([0], np.ones(2, int))
    with pytest.raises(ConfigError, match="do not sum to the counts"):
        plan.dispatch.shares(np.ones((2, 2), int), 0)
    with pytest.raises(ConfigError, match="rank 5"):
        plan.map([0], 5)
    with pytest.raises(ConfigError, match="sums over ranks"):
        clone_experts([5, 1], [0, 1], 1).map([0], 0)
    with pytest.raises(ConfigError, match="no costs"):
        _ = plan.seconds
