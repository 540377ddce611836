"""Tests whole runs: the same rows and bytes on any number of devices, and nothing lost whatever fails."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from pipeline.written_jobs import made_by, write_job

from evenload.devices import Telemetry
from evenload.errors import ConfigError, MissingExtra, NoUsableDevice, UnknownName
from evenload.events import (
    DeviceSample,
    Event,
    EventFile,
    ItemFailed,
    ItemFinished,
    Note,
    RunFinished,
    RunStarted,
    Span,
    StageStarted,
    read_events,
)
from evenload.pipeline import Pipeline, PipelineResult, read_picture
from evenload.pipeline.run.stage_driver import StageDriver
from evenload.pipeline.store.ledger import GroupCommit, Ledger
from evenload.pipeline.store.run_folder import RunFolder

STAGES = """
import time

from evenload.pipeline import read_picture

class Brighten:
    def __init__(self, context, *, by=0.25, broken_on=()):
        if context.device.id in broken_on:
            raise RuntimeError(f"no room on {context.device.id}")
        self.by = by
    def __call__(self, inputs, item):
        picture = read_picture(inputs["path"]) + self.by
        return {"bright": picture + 0.1 * item.rng().random(picture.shape), "on": 1}

class Mean:
    def __call__(self, inputs, item):
        value = float(read_picture(inputs["bright"]).mean())
        if inputs.get("poison"):
            raise ValueError(f"{item.id} is poison")
        return {"mean": round(value, 6), "noise": float(item.rng().random())}

class Slow:
    def __init__(self, context, *, seconds): self.seconds = seconds
    def __call__(self, inputs, item):
        time.sleep(self.seconds)
        return {"slept": self.seconds}

class Odd:
    def __init__(self, context): pass
    def __call__(self, inputs, item):
        if item.id == "raises":
            raise ValueError("half a pair: \\ud800")
        if item.id == "long":
            return {"out": 10**5000}
        return {"out": "\\udfff" if item.id == "text" else float("nan")}

def odd_headline(rows):
    return {"long": 10**5000, "nan": float("nan"), "text": "\\ud800"}

def headline(rows):
    done = [row["outputs"]["mean"] for row in rows if row["status"] == "done"]
    return {"n": len(done), "mean": round(sum(done) / len(done), 6)}

def broken_headline(rows):
    raise KeyError("not there")
"""
JOB = """\
version: 1
job:
  name: test
  inputs: {folder: pictures, table: table.csv}
  seed: 5
devices: cpu*1
stages:
  - {name: brighten, target: 'stages.py:Brighten', outputs: {bright: png}}
  - {name: mean, target: 'stages.py:Mean', outputs: {mean: number}}
report: {headline: 'stages.py:headline', keep_inputs: true, html: false, trace: false}
"""
NAMES = [f"p{number}" for number in range(6)]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    from evenload.pipeline.file_types import encode_artifact

    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for name in NAMES:
        pixels = rng.integers(0, 128, (8, 10, 3), dtype=np.uint8)
        (tmp_path / "pictures" / f"{name}.png").write_bytes(encode_artifact(pixels, "png"))
    (tmp_path / "table.csv").write_text("id,kind\np0,a\n")
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def run(job: Path, *changes: str, out: str = "run", **options) -> PipelineResult:
    options.setdefault("backend", "inline")
    return Pipeline.from_yaml(job, changes).run(out=job.parent / out, **options)


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_rows_come_in_input_order_with_all_outputs(job: Path) -> None:
    result = run(job)
    assert (result.status, result.exit_code, result.n_done, len(result)) == ("done", 0, 6, 6)
    assert [item.id for item in result] == NAMES
    rows = rows_of(result.folder)
    assert [row["id"] for row in rows] == NAMES
    first = rows[0]
    assert first["outputs"]["bright"] == "outputs/brighten/p0.png"
    assert first["inputs"] == {"kind": "a", "path": "pictures/p0.png"}
    bright = read_picture(result.folder / first["outputs"]["bright"])
    assert first["outputs"]["mean"] == pytest.approx(bright.mean(), abs=1e-6)
    assert bright.mean() > read_picture(job.parent / "pictures/p0.png").mean() + 0.2
    assert result.headline == {
        "n": 6,
        "mean": pytest.approx(np.mean([r["outputs"]["mean"] for r in rows]), abs=1e-6),
    }


def test_bytes_do_not_depend_on_devices(job: Path) -> None:
    alone = made_by(run(job, out="alone").folder)
    for at, (devices, backend, policy) in enumerate([
        ("cpu*3", "inline", "measured"), ("cpu*3", "inline", "static"), ("cpu*3", "inline", "pull:2"),
        ("cpu*2", "process", "measured"),
    ]):  # fmt: skip
        other = run(job, out=f"other{at}", devices=devices, backend=backend, policy=policy)
        assert made_by(other.folder) == alone, (devices, backend, policy)


def test_seeds_make_the_difference(job: Path) -> None:
    first, again, other = (
        run(job, f"job.seed={seed}", out=out) for seed, out in [(5, "a"), (5, "b"), (6, "c")]
    )
    assert made_by(first.folder) == made_by(again.folder)
    assert all(one.seed != two.seed for one, two in zip(first, other, strict=True))
    assert made_by(first.folder) != made_by(other.folder)


def test_an_item_that_fails_is_recorded_and_the_others_go_on(job: Path) -> None:
    (job.parent / "pictures" / "p2.png").write_text("not a picture")
    (job.parent / "table.csv").write_text("id,poison\np4,1\n")
    result = run(job, devices="cpu*2")
    assert (result.status, result.exit_code, result.n_done) == ("failures", 1, 4)
    rows = rows_of(result.folder)
    assert [row["status"] for row in rows] == ["done", "done", "failed", "done", "failed", "done"]
    assert rows[2]["error"]["stage"] == "brighten"
    assert rows[2]["error"]["type"] == "FormatError"
    assert "p2.png is not a picture" in rows[2]["error"]["message"]
    assert rows[4]["error"] == {"stage": "mean", "type": "ValueError", "message": "p4 is poison"}
    assert "bright" in rows[4]["outputs"]
    assert "ValueError" in (result.items[4].error.traceback if result.items[4].error else "")
    assert [found["id"] for found in result.to_json()["failures"]] == ["p2", "p4"]
    assert result.summary.n_failed == 2
    assert result.headline["n"] == 4


@pytest.mark.parametrize(
    "wrong",
    [{"policy": "mesured"}, {"backend": "proces"}, {"devices": "cpu*0"}, {"report": "none/dir/r.html"},
     {"report": "."}],
)  # fmt: skip
def test_an_option_that_is_none_is_refused_before_there_is_a_folder(job: Path, wrong: dict) -> None:
    with pytest.raises(ConfigError):
        run(job, **{name: job.parent / one if name == "report" else one for name, one in wrong.items()})
    assert not (job.parent / "run").exists()


def broken(*_: object) -> None:
    raise OSError("it broke")


@pytest.mark.parametrize("where", ["a copy", "the headline", "telemetry", "a watcher"])
def test_what_is_beside_the_work_may_break_and_is_told(
    job: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Telemetry.stop
    if where == "a copy":
        monkeypatch.setattr("shutil.copyfile", broken)
    elif where == "telemetry":
        monkeypatch.setattr(Telemetry, "stop", lambda self: broken(stop(self)))
    changes = ["report.headline=stages.py:broken_headline"] if where == "the headline" else []
    result = run(job, *changes, sinks=[broken] if where == "a watcher" else [])
    assert (result.status, result.n_done) == ("done", 6)
    said = "broken_headline raised KeyError" if where == "the headline" else "it broke"
    told = [*(getattr(event, "text", "") for event in read_events(result.folder)), *result.faults]
    assert any(said in text for text in told), told


def test_what_is_done_is_written_before_an_error_of_our_own_is_raised(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenload.pipeline.run.result_recorder import ResultRecorder

    advance = ResultRecorder._advance
    monkeypatch.setattr(
        ResultRecorder,
        "_advance",
        lambda self, task, *rest: 1 / 0 if task.strand == 3 else advance(self, task, *rest),
    )
    with pytest.raises(ZeroDivisionError):
        run(job)
    assert len(rows_of(job.parent / "run")) == 6


def test_events_name_items_by_id_and_place_in_the_input(job: Path) -> None:
    (job.parent / "pictures" / "p2.png").write_text("not a picture")
    seen: list[Event] = []
    result = run(job, sinks=[seen.append])
    assert isinstance(seen[0], RunStarted)
    assert seen[0].total == 6
    assert list(seen[0].devices) == ["cpu:0"]
    assert isinstance(seen[-1], RunFinished)
    assert seen[-1].facts == result.headline
    started = {event.stage: event.total for event in seen if isinstance(event, StageStarted)}
    assert started["brighten"] == 6
    assert started["mean"] in (5, None)  # None: it began before all of the first stage were on disk
    assert [(e.index, e.item) for e in seen if isinstance(e, ItemFailed)] == [(2, "p2")]
    scored = [(e.index, e.item) for e in seen if isinstance(e, ItemFinished) and e.stage == "mean"]
    assert sorted(scored) == [(0, "p0"), (1, "p1"), (3, "p3"), (4, "p4"), (5, "p5")]
    shown = next(e.outputs for e in seen if isinstance(e, ItemFinished) and e.item == "p0")
    assert shown == {"bright": "outputs/brighten/p0.png", "on": 1, "before": "inputs/p0.png"}
    assert (result.folder / "inputs/p0.png").read_bytes() == (job.parent / "pictures/p0.png").read_bytes()
    assert [type(e) for e in read_events(result.folder)] == [type(e) for e in seen]


def test_stop_at_the_first_error_keeps_what_is_done(job: Path) -> None:
    (job.parent / "table.csv").write_text("id,poison\np2,1\n")
    result = run(job, "errors.on_error=stop", policy="pull")
    assert (result.status, result.exit_code) == ("failed", 1)
    states = [row["status"] for row in rows_of(result.folder)]
    assert [at for at, state in enumerate(states) if state == "failed"] == [2]
    assert set(states) <= {"done", "failed", "unfinished"}  # files are saved in any order
    assert result.to_json()["n_unfinished"] == states.count("unfinished")


def test_too_many_errors_stop_the_run(job: Path) -> None:
    (job.parent / "table.csv").write_text("id,poison\np0,1\np2,1\np3,1\n")
    result = run(job, "errors.max_error_rate=0.34", policy="pull")
    assert result.status == "failed"
    failed = [item.index for item in result if item.status == "failed"]
    assert failed == [0, 2, 3]
    assert all(item.status in ("done", "failed", "unfinished") for item in result)
    assert run(job, "errors.max_error_rate=0.5", out="b").status == "failures"


def test_a_stage_that_is_broken_everywhere_says_why_and_leaves_a_folder(job: Path) -> None:
    assert run(job, "brighten.broken_on=['cpu:0']", devices="cpu*2", out="one").n_done == 6
    with pytest.raises(NoUsableDevice, match=r"no room on cpu:0") as caught:
        run(job, "brighten.broken_on=['cpu:0', 'cpu:1']", devices="cpu*2")
    assert "brighten" in caught.value.message
    assert [row["status"] for row in rows_of(job.parent / "run")] == ["unfinished"] * 6


def test_a_constructor_that_fails_at_first_is_called_again(tmp_path: Path) -> None:
    """What was missing comes before the third call; a fault of the job's own is told at once."""
    code = """
class Late:
    def __init__(self, context, n, error="OSError"):
        from evenload.errors import ConfigError
        with context.path("calls").open("a") as calls: calls.write("x")
        if len(context.path("calls").read_text()) <= n:
            raise {"OSError": OSError, "ConfigError": ConfigError}[error]("not there yet")
    def __call__(self, inputs, item): return {"n": 1}
"""
    job = write_job(tmp_path, code, "  - {name: late, target: 'stages.py:Late', params: {n: 2}}\n")
    calls = job.parent / "calls"
    assert (run(job).n_done, calls.read_text()) == (6, "xxx")
    for error, n in (("OSError", 3), ("ConfigError", 1)):
        calls.unlink()
        with pytest.raises(NoUsableDevice, match="not there yet"):
            run(job, "late.n=9", f"late.error={error}", out=error)
        assert len(calls.read_text()) == n


def test_who_was_in_a_batch_with_one_that_dies_has_as_many_tries_as_before(tmp_path: Path) -> None:
    """It dies once more by itself, which alone costs no item anything."""
    code = """
import os
class Once:
    def __init__(self, context): self.died = context.folder / "died"
    def __call__(self, inputs, item):
        if item.index == 1 or (item.index == 2 and not self.died.exists()):
            self.died.touch() if item.index == 2 else None
            os._exit(7)
        return {"n": item.index}
    def batch(self, inputs, items):
        if any(item.index == 1 for item in items): os._exit(7)
        return [{"n": item.index} for item in items]
"""
    job = write_job(tmp_path, code, "  - {name: once, target: 'stages.py:Once', batch: 6}\n")
    result = run(job, devices="cpu*1", backend="process")
    assert [item.status for item in result] == ["done", "failed", *["done"] * 4]
    assert result.items[1].error is not None
    assert result.items[1].error.type == "WorkerLost"


def test_a_run_is_gone_on_with_and_done_anew_only_if_asked(job: Path) -> None:
    first = run(job)
    before = made_by(first.folder)
    again = run(job)
    assert (again.status, again.n_restored, again.n_done) == ("done", 12, 6)
    assert made_by(again.folder) == before
    assert again.summary.n_done == 6
    assert run(job, fresh=True).n_restored == 0


def test_results_that_do_not_say_what_made_them_are_refused(job: Path) -> None:
    folder = run(job).folder
    facts = json.loads((folder / "journal/journal.json").read_text())
    del facts["checksum"]  # which that version did not write
    (folder / "journal/journal.json").write_text(json.dumps({**facts, "fingerprint": {"stages": "brighten"}}))
    with pytest.raises(ConfigError, match="of an earlier version") as caught:
        run(job)
    assert "--fresh" in str(caught.value)
    assert run(job, fresh=True).status == "done"


def test_stages_that_are_asked_for_are_done_again(job: Path) -> None:
    assert run(job).n_restored == 0
    assert run(job, fresh=["mean"]).n_restored == 6
    assert run(job, fresh=["brighten"]).n_restored == 6  # its pictures are the same, and so are their means
    with pytest.raises(UnknownName, match="unknown stage 'maen'"):
        run(job, fresh=["maen"])


def test_what_is_new_or_changed_or_damaged_is_done_and_nothing_else(job: Path) -> None:
    from evenload.pipeline.file_types import encode_artifact

    first = run(job)
    (first.folder / "outputs/brighten/p1.png").write_bytes(b"cut")
    (first.folder / "outputs/brighten/p2.png").unlink()
    pixels = np.full((8, 10, 3), 7, dtype=np.uint8)
    for name in ("p3", "p9"):
        (job.parent / "pictures" / f"{name}.png").write_bytes(encode_artifact(pixels, "png"))
    seen: list[Event] = []
    again = run(job, sinks=[seen.append])
    assert again.status == "done"
    assert [row["id"] for row in rows_of(again.folder)] == [*NAMES, "p9"]
    done = {f"{event.stage} {event.item}" for event in seen if isinstance(event, ItemFinished)}
    assert done == {*(f"brighten p{n}" for n in (1, 2, 3, 9)), "mean p3", "mean p9"}
    notes = [event.text for event in seen if isinstance(event, Note)]
    assert any("p1.png is not what was written" in text for text in notes)
    assert made_by(again.folder) == made_by(run(job, out="other").folder)


def test_failed_items_stay_failed_until_they_are_retried(job: Path) -> None:
    (job.parent / "table.csv").write_text("id,poison\np4,1\n")
    assert [item.id for item in run(job).failures] == ["p4"]
    assert [item.id for item in run(job).failures] == ["p4"]
    (job.parent / "bad").write_text("")
    result = run(job, retry_failed=True)
    assert [item.id for item in result.failures] == ["p4"]
    assert result.n_restored == 11


def test_what_was_told_otherwise_before_is_told_again(job: Path) -> None:
    """An item that failed, was retried, and whose run was killed after the journal and before the event."""
    (job.parent / "table.csv").write_text("id,poison\np2,\n")
    folder = run(job).folder
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    failed = ItemFailed(0.0, "mean", 2, "p2", "ValueError", "it was so", "cpu:0", "")
    with EventFile(folder / "events.jsonl") as file:
        file(failed)
    assert len((folder / "events.jsonl").read_text().splitlines()) == len(lines) + 1
    run(job)
    told = [event for event in read_events(folder) if getattr(event, "item", "") == "p2"]
    assert isinstance(told[-1], ItemFinished)
    run(job)
    again = [event for event in read_events(folder) if getattr(event, "item", "") == "p2"]
    assert len(again) == len(told)


def test_the_folder_holds_the_job_as_it_ran(job: Path) -> None:
    result = run(
        job, "job.seed=77", "report.html=true", "report.trace=true", report=job.parent / "other.html"
    )
    files = "config.yaml events.jsonl results.jsonl summary.json trace.json job.json plan.json"
    there = {path.name for path in result.folder.iterdir()}
    assert there == {*files.split(), "outputs", "inputs", "journal"}
    assert result.report == job.parent / "other.html"
    assert "brighten" in result.report.read_text()
    assert "seed: 77" in (result.folder / "config.yaml").read_text()
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["headline"] == result.headline
    assert (summary["schema"], summary["n_done"], summary["total"]) == (1, 6, 6)


def test_a_missing_package_is_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(MissingExtra, match="pydantic") as caught:
        Pipeline.from_yaml(job)
    assert "evenload[jobs]" in str(caught.value)


@pytest.mark.parametrize("backend", ["process", "inline"])
def test_odd_values_cost_nothing_but_themselves(job: Path, backend: str) -> None:
    (job.parent / "rows.jsonl").write_text(
        '{"id": "a", "x": NaN}\n{"id": "raises"}\n{"id": "long"}\n{"id": "text"}\n'
        '{"id": "b\\ud800", "y": [Infinity]}\n'
    )
    job.write_text(
        "version: 1\njob: {name: odd, inputs: {jsonl: rows.jsonl}}\n"
        "stages:\n  - {name: odd, target: 'stages.py:Odd'}\n"
        "report: {headline: 'stages.py:odd_headline'}\n"
    )
    result = run(job, backend=backend, devices="cpu*1")
    text = (result.folder / "results.jsonl").read_bytes().decode("utf-8")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [row["id"] for row in rows] == ["a", "raises", "long", "text", "b\ud800"]
    assert [row["status"] for row in rows] == ["done", "failed", "failed", "done", "done"]
    assert (rows[0]["inputs"], rows[4]["inputs"]) == ({"x": None}, {"y": [None]})
    assert [rows[n]["outputs"]["out"] for n in (0, 3)] == [None, "\udfff"]
    assert rows[1]["error"]["message"] == "half a pair: \ud800"
    assert "digits" in rows[2]["error"]["message"]
    summary = json.loads((result.folder / "summary.json").read_text(), parse_constant=pytest.fail)
    assert (summary["headline"]["nan"], summary["headline"]["text"]) == (None, "\ud800")
    assert (summary["n_done"], summary["faults"]) == (3, [])
    assert isinstance(list(read_events(result.folder))[-1], RunFinished)
    for name in ("report.html", "trace.json"):
        assert (result.folder / name).read_bytes().decode("utf-8")


def test_a_record_that_stops_early_is_told(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = EventFile.__call__

    def full(self: EventFile, event: Event) -> None:
        if isinstance(event, ItemFinished):
            self._file.close()
        write(self, event)

    monkeypatch.setattr(EventFile, "__call__", full)
    result = run(job, "report.html=true")
    assert (result.status, result.n_done) == ("done", 6)
    told = json.loads((result.folder / "summary.json").read_text())["faults"]
    assert told == result.faults == result.to_json()["faults"]
    assert any("events.jsonl stops early (ValueError" in text for text in told)
    page = (result.folder / "report.html").read_text()
    assert "events.jsonl stops early" in page


def test_devices_are_sampled_while_the_run_goes_on(tmp_path: Path) -> None:
    code = """
import time
class Wait:
    def __init__(self, context): self.enough = context.folder / "enough"
    def __call__(self, inputs, item):
        while not self.enough.exists(): time.sleep(0.01)
        return {"waited": 1}
"""
    job = write_job(tmp_path, code, "  - {name: waits, target: 'stages.py:Wait'}\n", 10, more="")
    samples: list[DeviceSample] = []

    def note(event: Event) -> None:
        if isinstance(event, DeviceSample):
            samples.append(event)
        if len(samples) > 6 and {one.device for one in samples} == {"cpu:0", "cpu:1"}:
            (job.parent / "enough").touch()

    result = run(job, devices="cpu*2", sample_s=0.02, sinks=[note])
    assert result.status == "done"
    events = list(read_events(result.folder))
    assert sum(isinstance(event, DeviceSample) for event in events) >= 6
    assert any(sample.memory_used_bytes for sample in samples)
    assert isinstance(events[-1], RunFinished)
    view = (result.folder / "report.html").read_text()
    shown = json.loads(view.partition(' id="view">')[2].partition("</script>")[0])
    assert any(shown["load"]["samples"]["cpu:0"]["memory_bytes"])
    assert not any(thread.name == "evenload-telemetry" for thread in threading.enumerate())


def test_signals_while_results_are_written_wait(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RunFolder.write_results

    def signalled(self: RunFolder, rows) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        write(self, rows)

    monkeypatch.setattr(RunFolder, "write_results", signalled)
    result = run(job)
    assert result.status == "done"
    assert len(rows_of(result.folder)) == 6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_nothing_is_claimed_that_is_not_in_the_journal_however_the_run_ends(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C while the workers are closed, with results on their way to the journal."""
    at_end, n_kept = threading.Event(), []
    keep, settle, close = Ledger.keep, GroupCommit.close, StageDriver.close

    def keep_late(ledger: Ledger, results: Iterable) -> None:
        assert not n_kept or at_end.wait(100)
        n_kept.append(len(results := list(results)))
        keep(ledger, results)

    def close_interrupted(driver: StageDriver) -> None:
        close(driver)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "keep", keep_late)
    monkeypatch.setattr(GroupCommit, "close", lambda commits: (at_end.set(), settle(commits)))
    monkeypatch.setattr(StageDriver, "close", close_interrupted)

    def interrupt(event: Event) -> None:
        if isinstance(event, Span) and (event.stage, event.index) == ("mean", 3):
            signal.raise_signal(signal.SIGINT)

    result = run(job, sinks=[interrupt])
    assert result.status == "interrupted"
    assert sum(row.status == "done" for row in result) >= 1
    monkeypatch.undo()
    again = run(job)
    assert again.n_restored == sum(n_kept) >= 2 * result.n_done


@pytest.mark.parametrize(("backend", "number"), [("process", signal.SIGINT), ("inline", signal.SIGTERM)])
def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path,
    backend: str,
    number: signal.Signals,
    until: Callable[..., None],
    popen: Callable[..., subprocess.Popen],
) -> None:
    job = write_job(
        tmp_path, STAGES, "  - {name: slow, target: 'stages.py:Slow', params: {seconds: 0.2}}\n", 500
    )
    command = [sys.executable, "-m", "evenload", "run", str(job), "-o", str(job.parent / "run"), "--json"]
    process = popen(
        [*command, "--devices", "cpu*2", "--backend", backend, "--policy", "pull"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    events = job.parent / "run" / "events.jsonl"

    def has_begun() -> bool:
        assert process.poll() is None, process.communicate(timeout=500)
        return events.is_file() and events.read_text().count("ItemFinished") >= 3

    until(has_begun, "three items are finished")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=550)
    assert process.returncode == 130, stderr
    said = json.loads(stdout)
    assert said["status"] == "interrupted"
    assert said["n_done"] >= 3
    assert said["n_done"] + said["n_unfinished"] == 500
    assert [row["id"] for row in rows_of(job.parent / "run")] == [f"i{number}" for number in range(500)]
