"""The certificate of a run: it holds, says what the summary says, and what it proves is so."""

import json
import random
from fractions import Fraction
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from certificate_truth import is_true
from examples_count import examples
from hypothesis import HealthCheck, given, settings
from random_logs import logs

from evenload.certificate import check, parse
from evenload.errors import ConfigError
from evenload.events import RunFinished, RunStarted, Span, StageFinished, StageStarted
from evenload.report.certificates import badge, run_certificate
from evenload.report.tally import summarise


def a_run(seed: int):
    """Events of a run as they come: devices of several speeds and lanes, stages, repeats."""
    chance = random.Random(seed)
    devices = {f"gpu:{d}": chance.choice([0.5, 1, 2, 3]) for d in range(chance.randint(1, 4))}
    lanes = {name: chance.choice([1, 1, 2, 3]) for name in devices}
    events = []
    free, at_once = {name: [0.25] * n for name, n in lanes.items()}, chance.random() < 0.5
    for stage in ["edit", "score"][: chance.randint(1, 2)]:
        begins = 0.0 if at_once else max(max(one) for one in free.values())
        item, has_cost = 0, chance.random() < 0.3
        for _ in range(chance.randint(1, 12)):
            device = chance.choice(list(devices))
            lane = chance.randrange(lanes[device])
            n, size = chance.randint(1, 3), chance.choice([0.05, 0.1, 0.13, 2.0])
            start = max(free[device][lane], begins) + chance.choice([0, 0.01])
            busy = n * size / devices[device]
            free[device][lane] = start + busy + 0.001
            status = chance.choice(["ok"] * 6 + ["failed", "lost", "superseded"])
            cost = n * size if has_cost else None
            span = Span(stage, device, device, item, n, start, free[device][lane], busy, status, cost=cost)
            events.append(span)
            item += chance.choice([n] * 6 + [0, 1])  # all of it, or a part of it, is done again
    end = max(max(one) for one in free.values())
    events.sort(key=lambda span: span.stop_s)
    return [RunStarted(0.0, "a run", 0.0, None, {d: {} for d in devices}), *events, RunFinished(end, "done")]


@given(st.integers(0, 10**9))
@settings(max_examples=examples(60), deadline=None)
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
    achieved, bound = check(parse(json.dumps(page).encode()))
    assert (achieved, bound) == (numbers["achieved"], numbers["bound"])


@pytest.mark.parametrize("seed", range(5))
def test_what_it_claims_is_so_by_another_way(seed):
    events = next(events for events in (a_run(100 * seed + k) for k in range(100)) if summarise(events).ratio)
    assert is_true(run_certificate(events))


@given(logs())
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    assert page["evidence"]["devices"] == [{"name": "a", "lanes": 2, "parts": [], "like": "a"}]
    assert (page["claim"]["achieved"], page["claim"]["bound"]) == (10**9, 10**9)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_however_often_items_are_done_the_bound_is_of_each_once(n_lanes, chunks):
    """One worker with lanes, a second each: chunks overlap in items, and in time."""
    free, spans = [0.0] * n_lanes, []
    for at, (index, n) in enumerate(chunks):
        lane = at % n_lanes
        spans.append(Span("x", "a", "a", index, n, free[lane], free[lane] + n))
        free[lane] += n
    spans.sort(key=lambda span: span.stop_s)
    n_items = len({i for index, n in chunks for i in range(index, index + n)})
    ends = sorted({t for span in spans for t in (span.start_s, span.stop_s)})
    lanes = max(sum(span.start_s <= t < span.stop_s for span in spans) for t in ends)
    bound = max(1, n_items / lanes)
    assert summarise(spans).bound_s == pytest.approx(bound)
    page = run_certificate(spans)
    assert page["claim"]["bound"] == pytest.approx(bound * 1e9, abs=20)
    assert page["evidence"]["stages"][0]["items"] == n_items


def test_what_a_crash_undid_is_needed_once_and_what_is_begun_anew_is_needed_again():
    first = [RunStarted(0.0, "r", 0.0), StageStarted(0.0, "x", 2), Span("x", "a", "a", 0, 2, 0.0, 2.0)]
    again = [StageStarted(2.0, "x", 2), Span("x", "a", "a", 0, 2, 2.0, 4.0), StageFinished(4.0, "x")]
    resumed, anew = [*first, RunStarted(2.0, "r", 2.0), *again], [*first, StageFinished(2.0, "x"), *again]
    at_once = [*first, *again]  # two maps of one name: nobody can tell which items are whose
    for events, bound in ((resumed, 2), (anew, 4), (at_once, 4)):
        assert summarise(events).bound_s == pytest.approx(bound)
        assert run_certificate(events)["claim"]["bound"] == bound * 10**9


def test_scattered_items_are_runs_of_items():
    page = run_certificate([Span("x", "a", "a", 0, 4, 0.0, 1.0, items=(0, 1, 5, 3))])
    assert page["evidence"]["stages"][0]["chunks"][0][4:6] == [[0, 2, 5, 1, 3, 1], 0]


@pytest.mark.parametrize(
    ("share", "percent"), [(1.0, 100), (0.9999999, 99), (Fraction(19, 20), 95), (0.0, 0), (1.2, 100)]
)
def test_percent_rounded_down(share, percent):
    image = ElementTree.fromstring(badge(share))
    assert image.attrib["aria-label"] == f"evenload {percent} % of the best possible"
    texts = [one.text for one in image.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["evenload", f"{percent} % of the best possible"]
