"""The certificate of a routing travels: with any speeds, costs, loads that are there, and dead GPUs."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from certificate_truth import is_true
from examples_count import examples
from hypothesis import given, settings

from evenload.balance.flow import route
from evenload.certificate import check, parse
from evenload.errors import ConfigError


@st.composite
def batches(draw):
    n_gpus, n_experts = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    width = draw(st.integers(-(-n_experts // n_gpus), 4))
    extra = draw(st.lists(st.integers(-1, n_experts - 1), min_size=n_gpus * width, max_size=n_gpus * width))
    phy2log = [*range(n_experts), *extra][: n_gpus * width]
    demands = draw(st.lists(st.integers(0, 9), min_size=n_experts, max_size=n_experts))
    options = {}
    if draw(st.booleans()):
        options["speeds"] = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=n_gpus, max_size=n_gpus))
    if draw(st.booleans()):
        options["fixed"] = draw(st.lists(st.integers(0, 5), min_size=n_gpus, max_size=n_gpus))
    options["cost"] = draw(st.sampled_from(["tokens", "experts", 3]))
    return phy2log, demands, n_gpus, options


@given(batches())
@settings(max_examples=examples(60), deadline=None)
def test_it_holds_and_is_exact(batch):
    phy2log, demands, n_gpus, options = batch
    routing = route(phy2log, demands, n_gpus, **options)
    if routing.peaks[0] == 0:
        with pytest.raises(ConfigError, match="cannot be certified"):
            routing.certificate().to_json()
        return
    page = routing.certificate().to_json()
    assert page["claim"]["achieved"] == pytest.approx(routing.peaks[0], rel=1e-8)
    assert page["claim"]["ratio"] == pytest.approx(1, rel=1e-8)
    check(parse(json.dumps(page).encode()))
    assert is_true(page)


def test_the_routers_next_call_changes_nothing():
    from evenload.balance.flow import ReplicaGraph, Router

    router = Router(ReplicaGraph.from_slots([0, 1, 2, 0], 3, 2))
    proof = router.solve(np.array([5, 1, 1])).certificate()
    router.solve(np.array([0, 9, 9]))
    assert proof.to_json()["claim"]["achieved"] == 4


def test_experts_that_nobody_alive_holds_are_left_out():
    routing = route([0, 1, 2, 0], [5, 0, 1], 2, dead=[1], slot2gpu=[0, 1, 0, 1])
    assert routing.certificate().to_json()["claim"]["achieved"] == 6


def test_capacities_cannot_travel():
    routing = route([0, 1, 1, 0], [5, 3], 2, capacities=[9, 9, 9, 9])
    with pytest.raises(ConfigError, match="capacities"):
        routing.certificate().to_json()
