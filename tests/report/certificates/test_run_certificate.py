"""The certificate of a run: it holds, says what the summary says, and what it proves is so."""

import json
import random

import hypothesis.strategies as st
import pytest
from certificate_truth import is_true
from hypothesis import HealthCheck, given, settings
from random_logs import logs

from evenload.certificate import check, parse
from evenload.errors import ConfigError
from evenload.events import RunFinished, RunStarted, Span
from evenload.report.certificates.run_certificate import run_certificate
from evenload.report.tally import summarise


def a_run(seed: int):
    """Events of a run as they come: devices of several speeds, stages one after the other or at once."""
    chance = random.Random(seed)
    devices = {f"gpu:{d}": chance.choice([0.5, 1, 2, 3]) for d in range(chance.randint(1, 4))}
    events = [RunStarted(0.0, "a run", 0.0, None, {name: {} for name in devices})]
    free, at_once = dict.fromkeys(devices, 0.25), chance.random() < 0.5
    for stage in ["edit", "score"][: chance.randint(1, 2)]:
        begins = 0.0 if at_once else max(free.values())
        item, has_cost = 0, chance.random() < 0.3
        for _ in range(chance.randint(1, 12)):
            device = chance.choice(list(devices))
            n, size = chance.randint(1, 3), chance.choice([0.05, 0.1, 0.13, 2.0])
            start = max(free[device], begins) + chance.choice([0, 0.01])
            busy = n * size / devices[device]
            free[device] = start + busy + 0.001
            status = chance.choice(["ok"] * 6 + ["failed", "lost", "superseded"])
            cost = n * size if has_cost else None
            events.append(
                Span(stage, device, device, item, n, start, free[device], busy, status, cost=cost)
            )  # fmt: skip
            item += n if chance.random() < 0.9 else 0
    return [*events, RunFinished(max(free.values()), "done")]


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_it_holds_and_says_what_the_summary_says(seed):
    events = a_run(seed)
    summary = summarise(events)
    if summary.ratio is None:
        with pytest.raises(ConfigError, match="nothing was measured"):
            run_certificate(events)
        return
    page = run_certificate(events)
    numbers = page["claim"]
    assert numbers["achieved"] == pytest.approx(summary.work_s * 1e9, abs=5)
    assert numbers["bound"] == pytest.approx(summary.bound_s * 1e9, rel=1e-7, abs=50)
    assert numbers["ratio"] == pytest.approx(summary.ratio, rel=1e-6)
    achieved, bound, _ = check(parse(json.dumps(page).encode()))
    assert (achieved, bound) == (numbers["achieved"], numbers["bound"])


@pytest.mark.parametrize("seed", range(5))
def test_what_it_claims_is_so_by_another_way(seed):
    events = next(events for events in (a_run(100 * seed + k) for k in range(100)) if summarise(events).ratio)
    assert is_true(run_certificate(events))


@given(logs())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_log_is_certified_truly_or_refused(events):
    refusal = ""
    try:
        page = run_certificate(events)
    except ConfigError as error:
        refusal = error.message
    assert "cannot be certified" in refusal or 0 < page["claim"]["bound"] <= page["claim"]["achieved"]


def test_chunks_at_once_on_one_worker_count_it_that_often():
    one = [Span("x", "a", "a", k, 1, 0.0, 1.0) for k in range(2)]
    page = run_certificate([RunStarted(0.0, "twice", 0.0), *one])
    assert page["evidence"]["devices"] == [{"name": "a", "lanes": 2, "parts": []}]
    assert (page["claim"]["achieved"], page["claim"]["bound"]) == (10**9, 10**9)


def test_what_was_done_again_is_said():
    spans = [Span("x", "a", "a", 0, 1, 0.0, 1.0), Span("x", "a", "a", 0, 1, 1.0, 2.0)]
    page = run_certificate(spans)
    assert page["evidence"]["stages"][0]["repeats"] == 1
    assert "1 items done again" in check(parse(json.dumps(page).encode()))[2]


def test_scattered_items_are_runs_of_items():
    page = run_certificate([Span("x", "a", "a", 0, 4, 0.0, 1.0, items=(0, 1, 5, 3))])
    assert page["evidence"]["stages"][0]["chunks"][0][4] == [0, 2, 5, 1, 3, 1]
