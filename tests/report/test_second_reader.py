"""Two readers of one log give the same seconds of every slot.

The oracle is ``second_reader``: the rules of ``docs/explanation/bounds.md`` in plain Python, by somebody who
had that page and not the source. It shares no code with the account.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import second_reader
from examples_count import examples
from hypothesis import given, settings
from random_logs import DEVICES, REASONS, logs, spans
from worlds import cut, play, worlds

import evenload
from evenload.events import DeviceSample, EventFile, EventLog, Idle, RunFinished, RunStarted, Span
from evenload.events.json_lines import encode
from evenload.report.source import RunClock, open_run
from evenload.report.tally import summarise

NEAR = 1e-6  # of the run's time


def assert_same(lines, events):
    """Both give the same seconds; a run without useful work has none."""
    factors = summarise(events).factors
    if factors is None:
        return
    found = second_reader.read(lines)
    assert found["wall_s"] == pytest.approx(factors.wall_s, rel=NEAR)
    told = {one.name: {**one.lost_s, "useful": one.in_task_s} for one in factors.workers}
    assert told.keys() == found["slots"].keys()
    for name, seconds in told.items():
        assert found["slots"][name] == pytest.approx(seconds, abs=NEAR * factors.wall_s), name


def sound(event, chance):
    """The event as a writer that is not broken could write it: nothing before the start, or of no length."""
    at = chance.uniform(0, 60)
    new = {"t": at} if hasattr(event, "t") and not 1e-6 < event.t <= 100 else {}
    if hasattr(event, "stop_s") and not (1e-6 < event.start_s < event.stop_s - 1e-6 < 100):
        new = {"start_s": at, "stop_s": at + chance.uniform(0.1, 20)}
    return replace(event, **new, **({"index": 0} if getattr(event, "index", 0) < 0 else {}))


@st.composite
def sound_logs(draw):
    """Logs by chance whose events are sound, in any order, with waiting, processors, samples and sessions."""
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    known = {name: {"kind": chance.choice(["cpu", "cuda"])} for name in DEVICES if chance.random() < 0.7}
    started = RunStarted(0.0, "r", 1000.0, None, known)
    events = [started]
    drawn = [*draw(logs()), *draw(st.lists(spans, min_size=4, max_size=12))]
    chance.shuffle(drawn)
    for event in (sound(one, chance) for one in drawn):
        if isinstance(event, Span):
            length = event.stop_s - event.start_s
            items = event.items and tuple(sorted(set(event.items)))
            n_items = len(items) if items else event.n_items
            waited, cpu = chance.choice([0.0, 0.3, 2.0]) * length, chance.choice([None, 0.0, 0.1, 0.6])
            cpu = None if cpu is None else cpu * length
            event = replace(event, items=items, n_items=n_items, waited_s=waited, cpu_s=cpu)
            if chance.random() < 0.5:
                device, load = chance.choice(event.device.split("+")), chance.choice([0.0, 0.0, None, 0.5])
                loads = [0.0, chance.choice([0.0, 0.01]), load]
                events += [
                    DeviceSample(event.start_s + part * length, device, each)
                    for part, each in zip((0.3, 0.5, 0.8), loads, strict=True)
                ]
        if not isinstance(event, RunStarted):
            events.append(event)
        if isinstance(event, Span) and chance.random() < 0.5:
            at, why = (
                chance.uniform(0, 60),
                chance.choice([*REASONS, REASONS[0], "results wait to be fetched"]),
            )
            events.append(Idle(event.device, at, at + chance.uniform(1, 20), why))
        if chance.random() < 0.05:
            events.append(replace(started, unix_s=2000.0))
    return events


@settings(max_examples=examples(300), deadline=None)
@given(sound_logs())
def test_of_logs_by_chance(events):
    samples = [one for one in events if isinstance(one, DeviceSample)]
    events = [
        *events[:1],
        *sorted(samples, key=lambda one: one.t),
        *(x for x in events[1:] if x not in samples),
    ]
    assert_same(map(encode, events), map(RunClock().place, events))


def test_of_items_that_only_waited():
    """Sums of seconds that all were told are not exactly those of the chunks."""
    for seed in range(40):
        chance, at, events = (
            random.Random(seed),
            0.0,
            [RunStarted(0.0, "r", 0.0, None, {"a": {"kind": "cpu"}})],
        )
        for index in range(6):
            length = chance.uniform(0.01, 1.0)
            waited = length * chance.choice([0.0, 0.5, 1.0])
            events.append(Span("x", "a", "a/1", index, 1, at, at + length, waited_s=waited, cpu_s=0.0))
            at += length
        events.append(RunFinished(at, "done"))
        assert_same(map(encode, events), events)


@pytest.mark.parametrize("is_cut", [False, True])
def test_of_worlds(is_cut):
    for seed, _, world in worlds(examples(60)):
        played = play(world, seed)
        events = played.events
        if is_cut and world.chunk == 1:
            events = cut(played, world, played.wall_s / 2, has_journal=seed % 2 == 0)
        if len(events) < 300:
            assert_same(map(encode, events), map(RunClock().place, events))


def works(item):
    if isinstance(item, str) and not os.path.exists(item):
        Path(item).touch()
        os._exit(3)
    with evenload.waiting():
        return sum(range(20_000))


@pytest.mark.parametrize("policy", ["measured", "static"])
def test_of_a_real_run_that_loses_a_worker(tmp_path, policy):
    path = tmp_path / "events.jsonl"
    items = [*range(20), str(tmp_path / "dies"), *range(20)]
    with EventFile(path) as log:
        run = evenload.map(works, items, devices="cpu*2", policy=policy, retries=1, events=EventLog(log))
        assert len(list(run)) == len(items)
    assert_same(path.read_text().splitlines(), open_run(path))
