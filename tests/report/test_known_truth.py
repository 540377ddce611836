"""The bound and the factors of runs in worlds whose truth is known (``worlds``), and of real processes.

The oracle is the world: what its devices can do at best is found by trying every plan, or lies between what
no plan beats and what a plan reaches; what each second went into was planted.
"""

import contextlib
import json
import os
import time

import pytest
from examples_count import examples
from worlds import cut, least_divided, play, time_of, worlds

import evenload
from evenload.certificate import check, parse
from evenload.errors import ConfigError
from evenload.events import EventFile, EventLog
from evenload.report.certificates import run_certificate, share_up_to
from evenload.report.source import open_run
from evenload.report.tally import summarise

NEAR = 0.95


def is_told(kind, world):
    """Whether the log says how fast devices are: sizes, or sheets; and no long item hides in a chunk."""
    is_known = world.is_told or len(set(world.names.values())) == 1
    return is_known and (world.chunk == 1 or kind in ("one size", "few sizes"))


def faults(seed, kind, world):
    """What the account says of one run in a world that is not so."""
    played = play(world, seed)
    summary = summarise(played.events)
    divided_s, plan_s = world.bracket(played.events)
    slack = 1 + world.drift + 1e-6
    if summary.bound_s > plan_s * slack:
        yield "bound above what a plan reaches"
    hides = world.is_told and world.chunk > 1  # items of a chunk are taken to be of one size
    if summary.bound_up_to_s * slack < NEAR * divided_s and not hides:
        yield "not even 'up to' is as much as no plan beats"
    if is_told(kind, world) and summary.bound_s * slack < NEAR * divided_s:
        yield "bound too low, though the log says enough"
    if len({*world.speeds.values()}) == 1 and world.waits and not hides:
        held = [
            cost + wait * next(iter(world.speeds.values()))
            for cost, wait in zip(world.costs, world.waits, strict=True)
        ]
        held_s = least_divided(held, [world.speeds[d] for d in world.seen(played.events)])
        if summary.bound_up_to_s * slack < NEAR * held_s:
            yield "'up to' is less than items need that keep their devices while they wait"
    in_order = sorted(played.events, key=time_of)
    if summarise(in_order).bound_s != pytest.approx(summary.bound_s, rel=1e-9):
        yield "bound depends on the order of events"
    is_up = all(one < played.wall_s for one in world.start_s.values())  # else no event tells of it
    is_seen = len(world.seen(played.events)) == len(world.speeds)
    if is_told(kind, world) and not world.drift and is_up and is_seen:
        yield from misattributed(summary, played.priced(world), divided_s)


def misattributed(summary, planted, divided_s):
    """Factors that are off by more than 5 % of their seconds, and half a percent of the run's."""
    work_s = planted["useful"] + planted["not known"]  # who tells of no waiting keeps the device
    uncut_s = min(planted["balance"] + planted["repeats"], max(0.0, divided_s - work_s))
    idle_s = min(planted["balance"], uncut_s)  # copies where nothing else was to be done cost nothing
    planted = planted | {"longest item": uncut_s, "balance": planted["balance"] - idle_s}
    planted["repeats"] -= uncut_s - idle_s
    found = {part.name: part.lost_s for part in summary.factors.parts} | {"useful": summary.factors.useful_s}
    for name, seconds in planted.items():
        if abs(found[name] - seconds) > max(0.05 * seconds, 0.005 * summary.wall_s):
            yield f"{name}: {found[name]:.3g} s, and {seconds:.3g} s were planted"


@pytest.mark.parametrize("small", [True, False], ids=["every plan tried", "large"])
def test_the_account_says_what_is_so(small):
    found = {
        seed: list(faults(seed, kind, world)) for seed, kind, world in worlds(examples(150), small=small)
    }
    assert {seed: some for seed, some in found.items() if some} == {}


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_run_that_was_cut_off_and_goes_on_has_the_bound_of_its_items(tmp_path, has_journal):
    """With or without a journal each item is needed once, by the log as it is written and read."""
    for seed, _, world in worlds(examples(30)):
        if len(set(world.names.values())) > 1 or world.drift or world.chunk > 1:
            continue
        played = play(world, seed)
        path = tmp_path / f"{seed}.jsonl"
        with EventFile(path) as sink:
            for event in cut(played, world, played.wall_s / 2, has_journal=has_journal):
                sink(event)
        summary = summarise(open_run(path))
        divided_s, _ = world.bracket(played.events)
        assert summary.bound_s == pytest.approx(divided_s, rel=1e-3)


def test_certificate_report_json_and_metrics_say_the_same():
    pytest.importorskip("prometheus_client")
    from evenload.report.metrics import Metrics

    for seed, _, world in worlds(examples(40)):
        events = play(world, seed).events
        summary, metrics = summarise(events), Metrics()
        for event in events:
            metrics(event)
        told = json.loads(json.dumps(summary.to_json()))
        assert told["bound_s"] == round(summary.bound_s, 6)
        assert {part["name"]: part["lost_s"] for part in told["factors"]["parts"]} == {
            part.name: part.lost_s for part in summary.factors.parts
        }
        samples = [one for family in metrics.registry.collect() for one in family.samples]
        bounds = {one.name: one.value for one in samples if "bound" in one.name}
        assert bounds == {
            "evenload_bound_seconds": summary.bound_s,
            "evenload_bound_up_to_seconds": summary.bound_up_to_s,
        }
        lost = {one.labels["factor"]: one.value for one in samples if one.name == "evenload_lost_seconds"}
        assert lost == {part.name: part.lost_s for part in summary.factors.parts if part.value is not None}
        try:
            page = run_certificate(events)
        except ConfigError:
            assert summary.bound_s == 0
            continue
        page = parse(json.dumps(page).encode())
        achieved, bound = check(page)
        assert float(achieved) == pytest.approx(summary.work_s * 1e9, abs=5)
        assert float(bound) == pytest.approx(summary.bound_s * 1e9, rel=1e-6, abs=50)
        up_to = float(share_up_to(page, with_idle=False) * achieved)
        most_s = min(summary.bound_up_to_s, summary.work_s)
        assert up_to == pytest.approx(most_s * 1e9, rel=1e-6, abs=50)


def nap(seconds):
    """Sleep, and say when by this worker's own clock."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def slept(intervals, n_devices):
    """The least seconds for what was slept, and those in which at least one worker slept."""
    each = sorted((stop - start for start, stop in intervals), reverse=True)
    return max(each[0], sum(each) / n_devices), max(stop for _, stop in intervals) - min(
        start for start, _ in intervals
    )


@pytest.mark.parametrize("naps", [[0.02] * 12, [0.02] * 8 + [0.4]], ids=["alike", "a long one at the end"])
@pytest.mark.parametrize("cost", [None, float], ids=["", "told"])
def test_real_processes_that_sleep(naps, cost):
    """The oracle is each worker's own clock, read in the task: the bound is of what it slept."""
    events = []
    log = EventLog(events.append)
    run = evenload.map(nap, naps, devices="cpu*2", cost=cost, policy="pull", events=log)  # one at a time
    least_s, work_s = slept(list(run), 2)
    report, own = summarise(events), run.summary
    for bound_s in (report.bound_s, own.bound_s, run.certificate()["claim"]["bound"] / 1e9):
        assert bound_s == pytest.approx(least_s, rel=0.05)
    assert report.work_s >= work_s * 0.999
    assert report.factors.useful_s <= report.wall_s


def spend(how):
    """Wait, sleep or compute for a while; returns the seconds of it, by this worker's own clock."""
    began = time.monotonic()
    if how == "compute":
        computed_s = time.thread_time()
        while time.thread_time() - computed_s < 0.1:
            pass
    with evenload.waiting() if how == "wait" else contextlib.nullcontext():
        time.sleep(0.0 if how == "compute" else 0.2)
    return time.monotonic() - began


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system does not tell what a process computed")
def test_real_processes_that_wait_sleep_and_compute():
    """The oracle is each worker's own clock, read in the task. Wide, as others have the processor, too."""
    events, hows = [], ["wait", "sleep", "compute"] * 6
    run = evenload.map(spend, hows, devices="cpu*2", policy="pull", events=EventLog(events.append))
    planted = dict.fromkeys(hows, 0.0)
    for how, seconds in zip(hows, run, strict=True):
        planted[how] += seconds
    report, own = summarise(events).factors, run.summary.factors
    for factors in (report, own):
        found = {"compute": sum(one.in_task_s for one in factors.workers)}
        for how, kind in (("wait", "waiting"), ("sleep", "not known")):
            found[how] = sum(one.lost_s[kind] for one in factors.workers)
        for how, seconds in planted.items():
            assert 0.6 * seconds <= found[how] <= 1.6 * seconds, how
    lost = [{part.name: part.lost_s for part in factors.parts} for factors in (report, own)]
    for kind in ("waiting", "not known"):
        assert lost[0][kind] == pytest.approx(lost[1][kind], rel=0.1, abs=0.02)
