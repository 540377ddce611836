"""Figures of a run in W&B, MLflow and TensorBoard. Oracle: each is read back with the tracker's own reader
and compared with the map's own summary, which the executor keeps without events."""

import json
import struct
import threading
import time

import pytest

import evenload
from evenload._optional import is_installed
from evenload.integrations import trackers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def needs(module):
    return pytest.mark.skipif(not is_installed(module), reason=f"{module} is not installed")


def work(x):
    time.sleep(0.01)
    if x == 7:
        raise ValueError("seven")
    return x


def tracked(log):
    """Run 40 items, one of which fails; the summary that the map itself has kept of it."""
    # A late item that is copied counts for both devices in the figures, and for the first one in the summary.
    results = evenload.map(work, range(40), devices="cpu*2", on_error="return", events=log, repeatable=False)
    assert len(list(results)) == 40
    assert log.sink_errors == []
    assert (results.summary.done, results.summary.failed) == (39, 1)
    return results.summary


def agree(read, summary):
    """What was read is what the summary says; seconds of the whole as far as two clocks tell."""
    told = {"evenload/n_done": 39, "evenload/n_failed": 1}
    told |= {f"evenload/n_items/{name}": share.items for name, share in summary.devices.items()}
    assert {name: read[name] for name in told} == told
    assert read["evenload/bound_s"] == pytest.approx(summary.bound_s, rel=1e-4)
    assert read["evenload/imbalance"] == pytest.approx(summary.imbalance, rel=1e-4)
    assert 0 < read["evenload/work_s"] <= read["evenload/wall_s"]


@needs("tensorboard")
@pytest.mark.parametrize("is_mine", [False, True])
def test_tensorboard_has_the_figures_of_the_run(tmp_path, is_mine):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    folder = str(tmp_path / "board")
    writer = SummaryWriter(folder) if is_mine else None
    summary = tracked(trackers.to_tensorboard(writer or folder, every_s=0.0))
    if writer:
        writer.add_scalar("mine", 1.0)  # it is open still
        writer.close()
    reader = EventAccumulator(folder)
    reader.Reload()
    names = [name for name in reader.Tags()["scalars"] if name != "mine"]
    agree({name: reader.Scalars(name)[-1].value for name in names}, summary)
    assert [one.step for one in reader.Scalars("evenload/n_done")][-1] == 39
    assert ("mine" in reader.Tags()["scalars"]) == is_mine


@needs("mlflow")
@pytest.mark.parametrize("is_mine", [False, True])
def test_mlflow_has_the_figures_of_the_run(tmp_path, monkeypatch, is_mine):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    client = mlflow.MlflowClient()
    mine = client.create_run("0").info.run_id if is_mine else None
    summary = tracked(trackers.to_mlflow(mine))
    (run,) = client.search_runs(["0"])
    agree(run.data.metrics, summary)
    assert client.get_metric_history(run.info.run_id, "evenload/n_done")[-1].step == 39
    assert run.data.tags["evenload.status"] == "failures"
    assert run.info.status == ("RUNNING" if is_mine else "FAILED")
    assert mlflow.active_run() is None


def wandb_records(file):
    """The records of an offline run's file: wandb's own messages, in the blocks of a LevelDB log."""
    from wandb.proto.wandb_internal_pb2 import Record

    written, at, message = file.read_bytes(), 7, b""
    while at + 7 <= len(written):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, n, kind = struct.unpack_from("<IHB", written, at)
        message += written[at + 7 : at + 7 + n]
        at += 7 + n
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(message)
            message = b""


@needs("wandb")
@pytest.mark.parametrize("is_mine", [False, True])
def test_wandb_has_the_figures_of_the_run(tmp_path, monkeypatch, is_mine):
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    import wandb

    mine = wandb.init(project="edits") if is_mine else None
    summary = tracked(trackers.to_wandb(mine) if mine else trackers.to_wandb(project="edits"))
    if mine:
        agree(dict(mine.summary), summary)  # by wandb's own reader, which an open run has
        mine.finish()
    assert wandb.run is None
    wandb.teardown()  # its service, which would outlive the test
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = list(wandb_records(file))
    items = [item for record in records for item in record.history.item]
    read = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
    agree(read, summary)
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0 if is_mine else 1]


@pytest.mark.parametrize("at", ["write", "finish"])
@pytest.mark.filterwarnings("ignore:figures of the run")
def test_a_tracker_that_fails_does_no_harm(at, monkeypatch):
    """Oracle: the results of the same map without events."""

    def fails(*_):
        raise OSError("the tracker is not there")

    steps = {"write": lambda *_: None, "finish": lambda _: None, at: fails}
    log = trackers.EventLog(trackers._Figures(**steps, every_s=0.0))
    assert list(evenload.map(abs, range(-50, 0), devices="cpu*2", backend="inline", events=log)) == list(
        map(abs, range(-50, 0))
    )
    assert [str(error) for error in log.sink_errors] == ["the tracker is not there"]


@pytest.mark.filterwarnings("ignore:figures of the run")
def test_a_tracker_that_hangs_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(trackers, "LONGEST_END_S", 0.01)
    forever = threading.Event()
    log = trackers.EventLog(trackers._Figures(lambda *_: forever.wait(500), lambda _: None, every_s=0.0))
    assert list(evenload.map(abs, [-1, -2], devices="cpu*1", backend="inline", events=log)) == [1, 2]
    assert [str(error) for error in log.sink_errors] == ["the tracker took no figures for 0 s"]
    forever.set()
