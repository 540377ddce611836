"""Idleness that was planted is found, in every format, by its cause."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from planted_traces import EXCERPTS, FORMATS, KNOWS_UNUSED, TELLS_EXCHANGE, Schedule, expected_losses, spans

from evenload.audit.audit import AuditParts, audit_of
from evenload.audit.losses import CAUSES
from evenload.audit.recording import EXCHANGE, LOADING, PARTLY, REPEAT, WORK, Recording
from evenload.audit.traces import audit_traces
from evenload.errors import FormatError

WITHIN = 0.02


@st.composite
def schedules(draw: st.DrawFn, kinds: tuple[int, ...] = (WORK, EXCHANGE)) -> Schedule:
    """One to five devices over up to forty ticks, in stretches; at least one of them does something."""
    n_ticks = draw(st.integers(1, 40))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        row: list[int | None] = []
        while len(row) < n_ticks:
            row += [draw(st.sampled_from([None, *kinds]))] * draw(st.integers(1, 7))
        rows.append(row[:n_ticks])
    if all(kind is None for row in rows for kind in row):
        rows[0][0] = WORK
    return rows


def used(schedule: Schedule) -> Schedule:
    """The devices of a schedule that did something."""
    return [row for row in schedule if any(kind is not None for kind in row)]


def recorded(schedule: Schedule, *, excerpt: bool = False) -> Recording:
    """The recording of a schedule: a tick is 40 ns, and shorter gaps than 100 ns are launch gaps."""
    device, start, stop, kind = np.array(spans(schedule), np.int64).T
    window = (0, 40 * len(schedule[0])) if excerpt else None
    return made(len(schedule), (device, start * 40, stop * 40, kind), 100, window, is_excerpt=excerpt)


def made(n_devices: int, columns: Any, gap_ns: int, window: tuple[int, int] | None, **more: Any) -> Recording:
    device, start, stop, kind = columns
    return Recording(
        "planted",
        tuple(f"d{at}" for at in range(n_devices)),
        start,
        stop,
        device.astype(np.int32),
        kind.astype(np.int8),
        np.zeros(len(start), np.int32),
        gap_ns=gap_ns,
        window_ns=window,
        **more,
    )


@settings(max_examples=examples(60), deadline=None)
@given(schedules(), st.booleans())
def test_every_lost_nanosecond_has_its_cause(schedule, excerpt):
    """As the slow twin finds, tick by tick; and work and losses sum to the devices' time exactly."""
    found = audit_of(AuditParts(recorded(schedule, excerpt=excerpt)))
    expected = expected_losses(schedule, excerpt=excerpt)
    assert found.lost_ns == {cause: 40 * n for cause, n in expected.items()}
    assert found.work_ns + sum(found.lost_ns.values()) == found.wall_ns * len(schedule)


overlapping = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(-50, 300),
        st.integers(0, 120),
        st.sampled_from([WORK, WORK, EXCHANGE, REPEAT, LOADING, PARTLY]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=examples(60), deadline=None)
@given(overlapping, st.integers(0, 40), st.none() | st.tuples(st.integers(-80, 0), st.integers(1, 500)))
def test_spans_that_overlap_are_counted_once(rows, gap_ns, window):
    """Whatever overlaps, nests or has no length: the sums hold, and each tick of work counts."""
    device, start, length, kind = np.array(rows, np.int64).T
    if int(start.min()) == int((start + length).max()) and window is None:
        length = length + 1
    found = audit_of(AuditParts(made(4, (device, start, start + length, kind), gap_ns, window)))
    begin, end = int(start.min()), int((start + length).max())
    if window is not None:
        begin, end = min(begin, window[0]), max(end, window[1])
    assert found.wall_ns == end - begin
    assert found.work_ns + sum(found.lost_ns.values()) == found.wall_ns * 4
    ticks = {
        (d, t)
        for d, a, n, k in zip(device.tolist(), start.tolist(), length.tolist(), kind.tolist(), strict=True)
        if k == WORK
        for t in range(a, a + n)
    }
    assert found.work_ns == len(ticks)
    assert 0 <= found.bound_s <= found.wall_s * (1 + 1e-9)
    assert all(one.wall_s >= found.bound_s * (1 - 1e-9) for one in found.what_ifs)
    for one in found.devices:
        assert one.work_s + sum(one.lost_s.values()) == pytest.approx(found.wall_s)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=8, deadline=None)
@given(chosen=st.data())
def test_planted_idleness_is_found_in_every_format(name, chosen, tmp_path_factory):
    kinds = (WORK, EXCHANGE) if name in TELLS_EXCHANGE else (WORK,)
    schedule = chosen.draw(schedules(kinds))
    if name not in KNOWS_UNUSED:
        schedule = used(schedule)
    path = tmp_path_factory.mktemp("planted") / name
    tick_s = FORMATS[name](schedule, path)
    expected = expected_losses(schedule, short=0 if name == "load.csv" else 2, excerpt=name in EXCERPTS)
    found = audit_traces([path])
    assert len(found.devices) == len(schedule)
    whole_s = sum(expected.values()) * tick_s
    for cause in CAUSES:
        assert found.lost_ns[cause] / 1e9 == pytest.approx(
            expected[cause] * tick_s, abs=WITHIN * whole_s + 1e-9
        ), cause


@given(
    n_gpus=st.integers(1, 16), after_ms=st.integers(0, 20), n=st.integers(20, 60), late=st.integers(0, 10**6)
)
@settings(max_examples=examples(30), deadline=None)
def test_samples_of_several_gpus_that_nothing_tells_apart_are_refused(
    n_gpus, after_ms, n, late, tmp_path_factory
):
    """Else one of them would hide the others. One GPU whose recording paused for long is still read."""
    lines = ["timestamp, utilization.gpu [%]"]
    for at in range(n):
        for gpu in range(n_gpus):
            seconds = 1_795_000_000 + at + (late if 2 * at > n else 0) + gpu * after_ms / 1000 / n_gpus
            lines.append(f"{seconds:.6f}, {100 if gpu % 2 else 0}")
    path = tmp_path_factory.mktemp("samples") / "load.csv"
    path.write_text("\n".join(lines))
    if n_gpus == 1:
        assert len(audit_traces([path]).devices) == 1
        return
    with pytest.raises(FormatError, match="several GPUs"):
        audit_traces([path])
