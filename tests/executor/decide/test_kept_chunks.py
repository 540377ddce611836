"""What a map keeps of its chunks makes the certificate that its events make."""

import json

import hypothesis.strategies as st
import pytest
from examples_count import examples
from hypothesis import given, settings

import evenload
from evenload.balance.bound import SharedItems
from evenload.certificate import check, parse
from evenload.errors import ConfigError
from evenload.events import EventLog, Span
from evenload.executor.decide import kept_chunks
from evenload.executor.decide.kept_chunks import KeptChunks
from evenload.report.certificates import run_certificate

ITEMS = st.one_of(
    st.builds(lambda first, n: range(first, first + n), st.integers(0, 20), st.integers(1, 6)),
    st.sets(st.integers(0, 25), min_size=1, max_size=5).map(tuple),
)
CHUNKS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        ITEMS,
        st.sampled_from([0.25, 1.0, 3.0]),
        st.sampled_from([0.0, 0.5]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(CHUNKS, st.sampled_from([None, 2.0]))
def test_it_is_the_certificate_of_the_events(chunks, cost):
    kept, spans, free, shared = KeptChunks("map"), [], dict.fromkeys("abc", 100.0), SharedItems()
    for device, items, seconds, waits, is_good in chunks:
        start, free[device] = free[device], free[device] + seconds
        times = (start, free[device], seconds * 0.75)
        waited_s = times[2] * waits
        kept.add(device, items, *times[:2], times[2] - waited_s, waited_s, cost, is_good=is_good)
        status = "ok" if is_good else "failed"
        if is_good and not waits:
            shared.add(device, tuple(items), 0.0, times[2], is_done=True)
        spans.append(
            Span(
                "map",
                device,
                device,
                items[0],
                len(items),
                *times,
                status,
                cost=cost,
                items=tuple(items),
                waited_s=waited_s,
            )
        )
    try:
        theirs = run_certificate(spans)
    except ConfigError:  # whoever did needed work has no speed
        with pytest.raises(ConfigError, match="nothing was measured"):
            kept.certificate(shared=shared.pairs(lambda device, time_s: 0.0))
        return
    mine = kept.certificate(shared=shared.pairs(lambda device, time_s: 0.0))
    assert mine["claim"] == pytest.approx(theirs["claim"], abs=9)
    what = [[row[0], *row[4:]] for row in mine["evidence"]["stages"][0]["chunks"]]
    assert what == [[row[0], *row[4:]] for row in theirs["evidence"]["stages"][0]["chunks"]]
    told = [one["evidence"]["stages"][0]["waited"] for one in (mine, theirs)]
    assert told[0] == told[1]


@pytest.mark.parametrize("batch", [None, 3])
def test_a_map_is_certified_once_it_is_over(batch):
    seen = []
    fn = abs if batch is None else (lambda some: [abs(one) for one in some])
    run = evenload.map(
        fn, range(10), batch=batch, backend="inline", devices="cpu", events=EventLog(seen.append)
    )
    assert next(run) == 0
    with pytest.raises(ConfigError, match="before it is over"):
        run.certificate()
    assert list(run) == list(range(1, 10))
    page = run.certificate()
    assert page["evidence"]["stages"][0]["items"] == 10
    achieved, bound = check(parse(json.dumps(page).encode()))
    assert 0 < bound <= achieved
    assert bound == pytest.approx(run.summary.bound_s * 1e9, rel=1e-6, abs=200)
    assert run_certificate(seen)["claim"]["bound"] == pytest.approx(float(bound), rel=1e-6, abs=200)


def test_more_chunks_than_are_kept_are_refused_and_take_no_memory(monkeypatch):
    monkeypatch.setattr(kept_chunks, "MOST_CHUNKS", 3)
    run = evenload.map(abs, range(9), policy="pull", backend="inline", devices="cpu")
    list(run)
    with pytest.raises(ConfigError, match="more than 3 chunks"):
        run.certificate()
