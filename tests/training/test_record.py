"""The record of a training: its events make report, summary and certificate, whatever the times."""

import json
from fractions import Fraction

import pytest

from evenload.balance.claim import text_of
from evenload.certificate import check
from evenload.errors import ConfigError
from evenload.events import Idle, Note, Span, read_events
from evenload.report.certificates import run_certificate
from evenload.training.record import TrainingRecord


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def record_steps(folder, steps, gap_s=0.0, **more):
    """A record of ``(counts, seconds)`` steps; returns its numbers."""
    clock = Clock()
    record = TrainingRecord(folder, ["fast card", "slow card"], clock=clock, **more)
    for counts, seconds in steps:
        clock.now += max(seconds) + gap_s
        record.step(counts, seconds)
    return record.close()


def test_ranks_that_end_together_are_at_their_bound(tmp_path):
    summary = record_steps(tmp_path, [((6, 2), (0.3, 0.3))] * 5, total=40)
    assert (summary.status, summary.n_done, summary.total) == ("done", 40, 40)
    assert summary.ratio == pytest.approx(1.0)
    assert [device.name for device in summary.devices] == ["fast card", "slow card"]
    assert "rank 0" in (tmp_path / "report.html").read_text()


def test_equal_shares_are_as_far_from_it_as_the_slowest_rank_says(tmp_path):
    summary = record_steps(tmp_path, [((4, 4), (0.1, 0.4))] * 5)
    assert summary.ratio == pytest.approx(0.4 / (8 / 50))  # 40 and 10 samples a second
    page = json.loads(text_of(run_certificate(read_events(tmp_path))))
    achieved, bound = check(page)
    assert Fraction(achieved, bound) == pytest.approx(summary.ratio, rel=1e-6)
    waits = [event for event in read_events(tmp_path) if isinstance(event, Idle)]
    assert [(one.device, round(one.stop_s - one.start_s, 6)) for one in waits] == [("rank 0", 0.3)] * 5


def test_a_rank_whose_clock_is_fast_never_works_past_the_exchange():
    seen = []
    clock = Clock()
    record = TrainingRecord(None, ["a", "b"], clock=clock, sink=seen.append)
    clock.now += 1.0
    record.step((1, 1), (1.1, 0.5), start=99.0)
    clock.now += 1.0
    record.note("rank 1 is away\x1b", "warning")
    record.step((1, 0), (0.5, 0.0), start=101.25)
    assert record.close() is None
    spans = [event for event in seen if isinstance(event, Span)]
    assert [(one.start_s, one.stop_s) for one in spans] == [
        (0, 1),
        (0, pytest.approx(0.5 / 1.1)),
        (1.25, 1.75),
    ]
    assert [one.text for one in seen if isinstance(one, Note)][:1] == ["rank 1 is away?"]


def test_a_long_training_says_where_its_record_ends():
    seen = []
    record = TrainingRecord(None, ["a"], most_steps=2, sink=seen.append)
    for _ in range(5):
        record.step((1,), (0.0,))
    record.close()
    assert sum(isinstance(event, Span) for event in seen) == 2
    assert [one.text for one in seen if isinstance(one, Note)] == [
        "Steps after the first 2 are not in this record."
    ]


def test_what_ends_a_training_is_in_its_record(tmp_path):
    def train():
        with TrainingRecord(tmp_path, ["a"]) as record:
            record.step((1,), (0.1,))
            raise ValueError("the loss is nan")

    with pytest.raises(ValueError, match="nan"):
        train()
    *_, last = read_events(tmp_path)
    assert last.status == "failed"
    assert "the loss is nan" in (tmp_path / "report.html").read_text()
    with pytest.raises(ConfigError, match="record of a run already"):
        TrainingRecord(tmp_path, ["a"])


@pytest.mark.parametrize(("counts", "seconds"), [((1,), (1.0,)), ((1, 2), (1.0,)), ((), ())])
def test_a_step_of_other_ranks_is_refused(counts, seconds):
    with pytest.raises(ConfigError, match="2 ranks"):
        TrainingRecord(None, ["a", "b"]).step(counts, seconds)
    with pytest.raises(ConfigError, match="without ranks"):
        TrainingRecord(None, [])


def test_other_ranks_write_nothing(tmp_path):
    seen = []
    with TrainingRecord(tmp_path / "run", ["a", "b"], rank=1, sink=seen.append) as record:
        record.step((1, 1), (0.1, 0.1))
    assert seen == []
    assert not (tmp_path / "run").exists()


def test_shares_that_move_are_noted_once_and_the_last_batch_of_an_epoch_is_none():
    seen = []
    record = TrainingRecord(None, ["a", "b"], sink=seen.append)
    for counts in ((32, 32), (32, 32), (21, 43), (22, 42), (4, 5), (21, 43), (32, 32)):
        record.step(counts, (0.0, 0.0))
    assert [one.text for one in seen if isinstance(one, Note)] == [
        "Step 3: shares are 21, 43, after 32, 32.",
        "Step 7: shares are 32, 32, after 21, 43.",
    ]
