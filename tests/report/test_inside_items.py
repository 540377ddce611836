"""Waiting that items told, and seconds of which nobody knows: by logs whose truth is planted."""

import pytest

from evenload.events import DeviceSample, RunFinished, RunStarted, Span, decode, encode
from evenload.report.inside_items import IdleSamples
from evenload.report.page.bars import LoadOverTime
from evenload.report.page.timeline import Timeline
from evenload.report.tally import summarise


def run(*events, kind="cpu", facts=None, devices=("a", "b")):
    sheets = {name: {"name": "X", "kind": kind} for name in devices}
    end_s = max(getattr(one, "stop_s", 0.0) for one in events)
    return summarise(
        [RunStarted(0.0, "r", 0.0, None, sheets, facts or {}), *events, RunFinished(end_s, "done")]
    )


def span(index, start, stop, device="a", stage="map", **more):
    return Span(stage, device, device, index, 1, start, stop, stop - start, **more)


def lost(summary):
    return {part.name: part.lost_s for part in summary.factors.parts if part.lost_s}


def test_an_old_log_has_neither():
    line = encode(span(0, 0.0, 2.0))
    old = line.replace(',"waited_s":0.0,"cpu_s":null', "")
    assert len(old) < len(line)
    assert decode(old) == span(0, 0.0, 2.0)
    assert run(decode(old), span(1, 0.0, 2.0, "b")).factors.useful_s == 2.0


@pytest.mark.parametrize("bad", [None, "much", -1.0, float("nan"), True])
def test_what_cannot_be_is_not_counted(bad):
    summary = run(span(0, 0.0, 2.0, waited_s=bad, cpu_s=bad), span(1, 0.0, 2.0, "b"))
    assert summary.factors.wall_s == 2.0
    assert summary.bound_s <= 2.0


def test_an_item_that_only_waits_leaves_no_work_and_all_seconds_counted():
    summary = run(span(0, 0.0, 5.0, waited_s=5.0), devices=("a",))
    assert lost(summary) == {"waiting": pytest.approx(5.0)}
    assert summary.factors.share == summary.factors.useful_s == 0.0
    assert summary.ratio is None


def test_a_gpu_works_without_a_processor_unless_its_samples_say_that_it_does_not():
    busy, idle = ([DeviceSample(t / 2, "a", load) for t in range(1, 20)] for load in (0.4, 0.0))
    sleeps = span(0, 0.0, 10.0, cpu_s=0.1)
    for samples, unknown_s in (([], 0.0), (busy, 0.0), (idle, 9.9), (idle[:4], 0.0), ([*idle, busy[8]], 0.0)):
        summary = run(*sorted(samples, key=lambda one: one.t), sleeps, kind="cuda", devices=("a",))
        assert lost(summary).get("not known", 0.0) == pytest.approx(unknown_s)


def test_of_a_group_all_devices_must_have_done_nothing():
    samples = [DeviceSample(t / 2, name, 0.0) for t in range(1, 20) for name in "ab"]
    both = Span("map", "a+b", "a+b", 0, 1, 0.0, 10.0, 10.0, cpu_s=0.1)
    assert lost(run(*samples, both, kind="cuda"))["not known"] == pytest.approx(9.9)
    assert "not known" not in lost(run(*samples[::2], both, kind="cuda"))


def test_many_samples_take_bounded_memory_and_the_latest_are_known():
    samples = IdleSamples()
    for t in range(20_000):
        samples.add(float(t), 1.0 if t == 19_000 else 0.0)
    assert len(samples._times) < 5000
    assert samples.are_idle(19_100.0, 19_900.0)
    assert not samples.are_idle(18_900.0, 19_900.0)
    assert not samples.are_idle(0.0, 19_000.0)


def test_load_timeline_and_devices_show_what_was_done():
    rows = [span(0, 0.0, 4.0, waited_s=3.0, cpu_s=1.0), span(1, 4.0, 8.0, cpu_s=0.5), span(2, 8.0, 12.0)]
    events = [RunStarted(0.0, "r", 0.0, None, {"a": {"kind": "cpu"}}), *rows, RunFinished(12.0, "done")]
    load, timeline = LoadOverTime(), Timeline()
    for event in events:
        load.add(event)
        timeline.add(event)
    assert sum(load.to_json()["busy"]["a"]) * load.width_s == pytest.approx(5.5, rel=0.02)
    (row,) = timeline.to_json()["rows"]
    assert row["idle"] == [3_000_000, 3_500_000, 0]
    (device,) = summarise(events).devices
    assert (device.busy_s, device.waited_s, device.unknown_s) == (12.0, 3.0, 3.5)
    assert device.utilisation == pytest.approx(5.5 / 12)


@pytest.mark.parametrize(
    ("told", "facts", "what", "cause"),
    [
        ({"waited_s": 0.9}, {}, "threads", "inside of items of map"),
        ({"waited_s": 0.9}, {"stages": ["map"]}, "concurrency", "inside of items of map"),
        ({"cpu_s": 0.1}, {}, "evenload.waiting()", None),
    ],
)
def test_the_remedy_for_waiting_inside_is_more_items_in_flight_or_to_tell_of_it(told, facts, what, cause):
    advice = run(*(span(k, k, k + 1.0, **told) for k in range(4)), facts=facts, devices=("a",)).advice
    assert advice.factor == ("waiting" if cause else "not known")
    assert cause is None or [one.cause for one in advice.causes] == [cause]
    assert what in advice.remedies[0].what
    assert advice.without_s == pytest.approx(0.4, rel=0.1)
