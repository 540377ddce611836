"""Event logs by chance, of nonsense too: what a run never does, a damaged or foreign log may hold."""

import hypothesis.strategies as st

from evenload.events import (
    Idle,
    ItemFailed,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)

DEVICES = ["a", "b", "c", "b+c", "never"]
STAGES = ["x", "y"]
REASONS = ["no item is ready", "loads x", "nothing was ready before y", "the others end 2 s sooner", ""]
times = st.one_of(st.floats(0, 60), st.sampled_from([0.0, 1e-9, 5.0, 1e6, -3.0]))
lengths = st.one_of(st.floats(0, 20), st.sampled_from([0.0, 1e-7, -1.0]))
devices, stages = st.sampled_from(DEVICES), st.sampled_from(STAGES)

spans = st.builds(
    lambda stage, device, worker, index, n, start, length, busy, status, cost, items: Span(
        stage, device, f"{device}/{worker}", index, n, start, start + length, busy * length, status,
        cost=cost, items=items, duplicate=status == "superseded",
    ),
    stages, devices, st.integers(1, 2), st.integers(-1, 12), st.integers(0, 4), times, lengths,
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from(["ok", "ok", "ok", "failed", "lost", "superseded"]),
    st.sampled_from([None, None, 0.0, 3.0, 1e9]), st.sampled_from([None, None, (0, 7), (3, 3)]),
)  # fmt: skip
others = st.one_of(
    st.builds(lambda d, t, s, why: Idle(d, t, t + s, why), devices, times, lengths, st.sampled_from(REASONS)),
    st.builds(lambda d, n, t, s: WorkerStarted(t, d, f"{d}/{n}", None, s), devices, st.integers(1, 2), times,
              lengths),
    st.builds(lambda d, n, t, why: WorkerExited(t, d, f"{d}/{n}", why), devices, st.integers(1, 2), times,
              st.sampled_from(["closed", "killed by signal 9"])),
    st.builds(StageStarted, times, stages, st.none()),
    st.builds(StageFinished, times, stages),
    st.builds(Restored, times, stages, st.integers(0, 5), st.integers(0, 5)),
    st.builds(lambda t, stage, i: ItemFailed(t, stage, i, "", "E", "m"), times, stages, st.integers(0, 9)),
)  # fmt: skip
names = st.sampled_from(["", "GPU", "CPU"])
work = st.sampled_from([{}, {"x": {"flop": 1e6}, "y": {"flop": 1e5, "bytes": 10}}, {"x": {"flop": -1}}, "no"])


@st.composite
def logs(draw):
    """A list of events in any order, with a start that knows devices or none, with an end or none."""
    events = draw(st.lists(st.one_of(spans, spans, others), max_size=25))
    if draw(st.booleans()):
        known = {d: {"name": draw(names), "kind": "k", "flop_per_s": 1e7} for d in draw(st.sets(devices))}
        known = {name: {**facts, "bytes_per_s": 1e9} for name, facts in known.items()}
        events.insert(0, RunStarted(0.0, "r", 0.0, None, known, {"item_work": draw(work)}))
    if draw(st.booleans()):
        events.append(RunFinished(draw(times), "done"))
    return events
