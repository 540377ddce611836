"""Tests batches of a loaded stage through whole runs: the bytes of single items, or no batches."""

import json
from pathlib import Path

import pytest
from pipeline.written_jobs import made_by, write_job

from evenload.events import Note, Span, read_events
from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.run.workers.worker_cache import KeptWorkers
from evenload.report.tally import summarise

STAGES = """
from pathlib import Path

CALLS = Path(__file__).with_name("calls")

def note(n):
    with CALLS.open("a") as file:
        file.write(f"{n}\\n")

class Double:
    def __call__(self, inputs, item):
        note(1)
        return {"double": 2 * inputs["x"], "text": f"{item.id} {item.seed}"}
    def batch(self, inputs, items):
        note(len(items))
        pairs = zip(inputs, items)
        return [{"double": 2 * one["x"], "text": f"{item.id} {item.seed}"} for one, item in pairs]

class Rounds(Double):
    '''As a kernel that sums in another order.'''
    def batch(self, inputs, items):
        return [{**one, "double": one["double"] + 1e-9} for one in super().batch(inputs, items)]

class Tuned(Double):
    def __call__(self, inputs, item, *, off=0.0):
        return super().__call__(inputs, item)
    def batch(self, inputs, items, *, off=0.0):
        return [{**one, "double": one["double"] + off} for one in super().batch(inputs, items)]

class Alone:
    def __call__(self, inputs, item):
        note(1)
        return {"double": 2 * inputs["x"], "text": "-"}

class Inherits(Alone):
    pass

class Picky(Double):
    def __call__(self, inputs, item):
        if inputs["x"] == 5:
            raise ValueError("not five")
        return super().__call__(inputs, item)
    def batch(self, inputs, items):
        if any(one["x"] == 5 for one in inputs):
            raise ValueError("five is among them")
        return super().batch(inputs, items)

class Fair(Double):
    def __call__(self, inputs, item):
        if inputs["x"] == 5:
            raise ValueError("not five")
        return super().__call__(inputs, item)
    def batch(self, inputs, items):
        mades = super().batch(inputs, items)
        return [ValueError("not five") if one["x"] == 5 else made for one, made in zip(inputs, mades)]

class Small(Double):
    def batch(self, inputs, items):
        if len(items) > 2:
            raise MemoryError("too many")
        return super().batch(inputs, items)

class Short(Double):
    def batch(self, inputs, items):
        return super().batch(inputs, items)[1:]

class Shaped(Double):
    def batch_key(self, inputs, item):
        if inputs["x"] == 7:
            raise ValueError("seven has no shape")
        return (inputs["x"] % 3, "wide"), None
    def batch(self, inputs, items):
        assert len({one["x"] % 3 for one in inputs}) == 1, inputs
        return super().batch(inputs, items)

class Odd(Shaped):
    def batch_key(self, inputs, item):
        return {"x": inputs["x"]}

class Feed:
    def __call__(self, inputs, item):
        return {"shape": inputs["x"] % 2}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    stage = "  - {name: s, target: 'stages.py:Double', batch: 4, outputs: {double: number, text: txt}}\n"
    return write_job(tmp_path, STAGES, stage, [{"id": f"i{at}", "x": at} for at in range(24)])


def run(job: Path, *changes: str, target: str = "Double", out: str = "run", **more) -> PipelineResult:
    (job.parent / "calls").write_text("")
    changes = (f"stages.s.target=stages.py:{target}", *changes)
    return Pipeline.from_yaml(job, changes).run(out=job.parent / out, backend="inline", **more)


def calls(job: Path) -> list[int]:
    return [int(line) for line in (job.parent / "calls").read_text().split()]


def told(folder: Path) -> dict[str, str]:
    return json.loads((folder / "summary.json").read_text())["measured"]["batches"]["s"]


def test_batches_give_what_single_items_give_and_are_checked_once(job: Path) -> None:
    single = run(job, "stages.s.batch=1", out="single")
    assert calls(job) == [1] * 24
    batched = run(job)
    assert calls(job) == [4, 1, 1, 1, 1, 4, 4, 4, 4, 4]
    assert made_by(batched.folder) == made_by(single.folder)
    assert told(batched.folder)["cpu:0"].startswith("equal")
    spans = [event for event in read_events(batched.folder) if isinstance(event, Span)]
    assert sorted(span.index for span in spans) == list(range(24))
    again = run(job, "stages.s.batch=1")  # other batches are no other job
    assert (again.n_restored, calls(job)) == (24, [])


def test_a_batch_that_changes_bits_is_the_last_and_its_results_are_not_taken(job: Path) -> None:
    single = run(job, "stages.s.batch=1", out="single")
    result = run(job, target="Rounds")
    assert made_by(result.folder) == made_by(single.folder)
    assert calls(job) == [4, 1, 1, 1, 1, *[1] * 20]
    assert told(result.folder) == {"cpu:0": "differs"}
    notes = [event.text for event in read_events(result.folder) if isinstance(event, Note)]
    assert any("one by one: a batch gives other bytes" in text for text in notes)


def test_whoever_takes_other_bits_gets_batches_unchecked_and_another_size_is_done_anew(job: Path) -> None:
    allow = "stages.s.batch_changes_bits=allow"
    result = run(job, allow, target="Rounds")
    assert calls(job) == [4] * 6
    assert [row.outputs["double"] for row in result][3] == 6 + 1e-9
    run(job, allow, target="Rounds")
    assert calls(job) == []
    run(job, allow, "stages.s.batch=2", target="Rounds")
    assert calls(job) == [2] * 12


def test_a_stage_without_batches_runs_item_by_item_and_it_is_said(job: Path) -> None:
    result = run(job, target="Inherits")
    assert (result.n_done, calls(job), told(result.folder)) == (24, [1] * 24, {"cpu:0": "refused"})
    notes = [event.text for event in read_events(result.folder) if isinstance(event, Note)]
    assert any("write one, or take batch out" in text for text in notes)


def test_one_bad_item_in_a_batch_costs_only_itself(job: Path) -> None:
    result = run(job, target="Picky")
    assert result.n_done == 23
    (failure,) = result.failures
    assert (failure.id, failure.error.message if failure.error else "") == ("i5", "not five")


def test_a_batch_may_say_which_of_its_items_failed(job: Path) -> None:
    result = run(job, target="Fair")
    (failure,) = result.failures
    assert (failure.id, failure.error.message if failure.error else "") == ("i5", "not five")
    assert calls(job) == [4, 1, 1, 1, 1, 4, 4, 4, 4, 4]
    again = run(job, "errors.retries=2", target="Fair", out="again")
    assert [(one.id, one.error.message if one.error else "") for one in again.failures] == [
        ("i5", "not five")
    ]


def test_memory_for_two_but_not_for_four(job: Path) -> None:
    result = run(job, target="Small")
    assert result.n_done == 24
    assert max(calls(job)) == 2


def test_a_batch_that_loses_an_item_is_done_one_by_one(job: Path) -> None:
    result = run(job, target="Short")
    assert result.n_done == 24
    assert [row.outputs["double"] for row in result] == [2 * at for at in range(24)]


def test_the_next_run_of_kept_workers_checks_its_own_batches(job: Path) -> None:
    """Other arguments, other bits: what the first run saw says nothing of the second."""
    changes = ("stages.s.target=stages.py:Tuned", "stages.s.call={off: 0.5}")
    single = run(job, *changes, "stages.s.batch=1", out="single")
    with KeptWorkers("inline") as workers:
        first = Pipeline.from_yaml(job, changes[:1]).run(out=job.parent / "first", backend=workers)
        second = Pipeline.from_yaml(job, changes).run(out=job.parent / "second", backend=workers)
    assert told(first.folder)["cpu:0"].startswith("equal")
    assert told(second.folder) == {"cpu:0": "differs"}
    assert made_by(second.folder) == made_by(single.folder)


def notes(folder: Path) -> list[str]:
    return [event.text for event in read_events(folder) if isinstance(event, Note)]


def test_a_class_says_what_must_be_equal_and_an_item_without_a_key_runs_alone(job: Path) -> None:
    single = run(job, "stages.s.batch=1", target="Shaped", out="single")
    batched = run(job, target="Shaped")
    assert made_by(batched.folder) == made_by(single.folder)
    # 24 items of 3 shapes, one of them alone; the first batch of each shape is compared with single items
    assert sorted(calls(job)) == [*[1] * (1 + 12), 3, *[4] * 5]
    assert any("runs alone: ValueError: seven has no shape" in text for text in notes(batched.folder))
    (stage,) = summarise(read_events(batched.folder)).stages
    assert (stage.n_batches, stage.mean_batch, stage.batch_fill) == (7, 24 / 7, 24 / 28)


def test_a_key_that_cannot_be_compared_is_told_once(job: Path) -> None:
    result = run(job, target="Odd")
    told = [text for text in notes(result.folder) if "batch_key" in text]
    assert (result.n_done, calls(job), len(told)) == (24, [1] * 24, 1)
    assert "gave a batch_key that is {'x': 0} of type dict" in told[0]


def test_a_job_names_what_must_be_equal_and_a_batch_waits_for_more(job: Path) -> None:
    text = job.read_text()
    job.write_text(text.replace("stages:\n", "stages:\n  - {name: feed, target: 'stages.py:Feed'}\n"))
    changes = ("stages.s.batch_key=[shape, group]", "stages.s.max_wait_s=60", "schedule.mode=data_parallel")
    single = run(job, "stages.s.batch=1", out="single")
    batched = run(job, *changes, "stages.s.batch_changes_bits=allow")
    assert made_by(batched.folder) == made_by(single.folder)
    assert calls(job) == [4] * 6
