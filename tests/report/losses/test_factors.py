"""Factors multiply to the share of the time that was useful, whatever the log; a planted loss is named."""

import json
import math

import hypothesis.strategies as st
import pytest
from examples_count import examples
from hypothesis import given, settings
from random_logs import logs

from evenload.balance.factors import FACTORS
from evenload.events import Idle, RunFinished, RunStarted, Span, WorkerStarted
from evenload.report.tally import summarise

TWO = {"a": {"name": "GPU"}, "b": {"name": "GPU"}}


def span(index, start, stop, device="a", stage="map", **more):
    return Span(stage, device, device, index, 1, start, stop, **more)


def factors(*events, devices=TWO, facts=None, wall_s=None):
    started = RunStarted(0.0, "r", 0.0, None, devices, facts or {})
    end_s = max(wall_s or 0.0, *(getattr(one, "stop_s", 0.0) for one in events))
    return summarise([started, *events, RunFinished(end_s, "done")]).factors


def value(found, name):
    return next(part.value for part in found.parts if part.name == name)


def lost(found, name):
    return next(part.lost_s for part in found.parts if part.name == name)


def test_a_worker_of_which_next_to_nothing_is_known_has_no_infinite_seconds():
    found = summarise([span(0, 0.0, 1.0), WorkerStarted(2e-309, "a", "a/2", None, 1.0)])
    json.dumps(found.to_json(), allow_nan=False)
    assert found.factors is not None
    assert all(s >= 0 for one in found.factors.workers for s in one.lost_s.values())


@settings(max_examples=examples(120))
@given(logs())
def test_the_factors_of_any_log_multiply_to_the_total(events):
    summary = summarise(events)
    found = summary.factors
    json.dumps(summary.to_json(), allow_nan=False)
    assert summary.headline()
    if found is None:
        assert summary.advice is None
        return
    if summary.advice is not None:
        assert 0 <= summary.advice.without_s <= summary.wall_s * (1 + 1e-9)
        assert summary.advice.lost_s == max(part.lost_s for part in found.parts)
        assert all(0 <= one.without_s <= summary.wall_s for one in summary.advice.remedies)
        assert all(one.what in summary.advice.text() for one in summary.advice.remedies)
        named_s = math.fsum(one.lost_s for one in summary.advice.causes)
        assert named_s <= summary.wall_s * (1 + 1e-9)
    assert [part.name for part in found.parts] == list(FACTORS)
    known = [part.value for part in found.parts if part.value is not None]
    assert all(0 < one <= 1 for one in [*known, found.share])
    assert math.prod(known) == pytest.approx(found.share, rel=1e-9)
    assert all(part.lost_s >= 0 for part in found.parts)
    whole_s = found.useful_s + math.fsum(part.lost_s for part in found.parts)
    assert whole_s == pytest.approx(found.wall_s, rel=1e-9) == summary.wall_s
    assert found.useful_s / found.wall_s == pytest.approx(found.share, rel=1e-9)
    priced = [one for one in found.workers if one.price > 0]
    assert math.fsum(one.price for one in priced) == pytest.approx(1.0)
    for one in found.workers:
        assert one.in_task_s + math.fsum(one.lost_s.values()) == pytest.approx(found.wall_s)
    for part in found.parts:  # a person can add them up: what is moved is balance, and copies at no cost
        if part.name in ("start-up", "waiting", "overhead"):
            of_workers_s = math.fsum(one.price * one.lost_s[part.name] for one in priced)
            assert of_workers_s == pytest.approx(part.lost_s, rel=1e-6, abs=1e-9 * found.wall_s)


def test_a_run_that_lost_nothing():
    found = factors(span(0, 0.0, 4.0), span(1, 0.0, 2.0, "b"), span(2, 2.0, 4.0, "b"))
    assert found.share == pytest.approx(1.0)
    assert found.largest is None or found.largest.lost_s < 1e-9
    assert found.text() == "100% of it useful work at the devices' speed"


def test_nothing_useful_has_no_factors():
    assert factors(span(0, 0.0, 4.0, status="lost")) is None
    assert factors(Idle("a", 0.0, 4.0, "no item is ready")) is None


def test_the_device_is_known_only_if_all_work_says_what_it_needs():
    rows = [span(0, 0.0, 4.0), span(1, 0.0, 4.0, "b")]
    sheet = {name: {"name": "GPU", "flop_per_s": 1e12, "bytes_per_s": 1e11} for name in TWO}
    assert value(factors(*rows), "device efficiency") is None
    bound_by_flop = factors(*rows, devices=sheet, facts={"item_work": {"map": {"flop": 2e12, "bytes": 1e10}}})
    assert (value(bound_by_flop, "device efficiency"), bound_by_flop.share) == pytest.approx((0.5, 0.5))
    bound_by_bytes = factors(
        *rows, devices=sheet, facts={"item_work": {"map": {"flop": 2e12, "bytes": 3e11}}}
    )
    assert value(bound_by_bytes, "device efficiency") == pytest.approx(0.75)
    too_good = factors(*rows, devices=sheet, facts={"item_work": {"map": {"flop": 2e13}}})
    assert (value(too_good, "device efficiency"), too_good.share) == (None, pytest.approx(1.0))
    one_sheet = factors(*rows, devices={**TWO, "a": sheet["a"]}, facts={"item_work": {"map": {"flop": 1e12}}})
    assert value(one_sheet, "device efficiency") is None


def test_a_group_works_as_fast_as_its_devices_together_and_a_shared_device_is_shared():
    sheet = {name: {"name": "GPU", "flop_per_s": 1e12} for name in TWO}
    work = {"item_work": {"map": {"flop": 4e12}}}
    group = factors(span(0, 0.0, 4.0, "a+b"), devices=sheet, facts=work)
    assert (value(group, "device efficiency"), group.share) == pytest.approx((0.5, 0.5))
    both = [Span("map", "a", f"a/{i}", i, 1, 0.0, 8.0) for i in range(2)]
    shared = factors(*both, devices={"a": sheet["a"]}, facts=work)
    assert value(shared, "device efficiency") == pytest.approx(1.0)


def test_a_run_that_goes_on_counts_no_worker_as_idle_whose_chunk_is_not_back_yet():
    started = RunStarted(0.0, "r", 0.0, None, TWO)
    found = summarise([started, span(0, 0.0, 1.0), span(1, 0.0, 8.0, "b")]).factors
    assert found.share == pytest.approx(1.0)


@settings(max_examples=examples(40))
@given(st.randoms(use_true_random=False), st.lists(st.floats(0.1, 2.0), min_size=2, max_size=8))
def test_two_stages_whose_chunks_are_told_late_lose_the_same(chance, lengths):
    """Two stages in turn on two devices, each loaded for 3 s: planted, and told in any order."""
    rows, at = [], {}
    for name in TWO:
        at[name] = 0.0
        for stage in ("x", "y"):
            at[name] += 3.0 if stage == "y" else 0.0
            for i, length in enumerate(lengths):
                rows.append(span(2 * i + (name == "b"), at[name], at[name] + length, name, stage))
                at[name] += length
    chance.shuffle(rows)
    found = factors(*rows)
    assert lost(found, "start-up") == pytest.approx(3.0)
    assert found.useful_s == pytest.approx(2 * math.fsum(lengths))
