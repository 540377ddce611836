"""Traces that the real tools write: torch's profiler on the CPU, Ray on two nodes, Dask, and evenload.

Their times are what they happen to be; what must hold whatever they are is checked.
"""

import gzip
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from evenload.audit.traces import AuditOptions, audit_traces
from evenload.errors import ConfigError, FormatError
from evenload.events import EventFile, EventLog
from evenload.executor import Executor
from evenload.report.source import open_run
from evenload.report.tally import summarise

RECORDED = Path(__file__).parents[2] / "examples" / "audit" / "ray-timeline.gz"


def whole(found: Any) -> bool:
    return found.work_ns + sum(found.lost_ns.values()) == found.wall_ns * len(found.devices)


@pytest.fixture(scope="module")
def torch_trace(tmp_path_factory):
    """Three steps of a small model, each after a wait that nothing shortens."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    path = tmp_path_factory.mktemp("torch") / "trace.json.gz"
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(3):
                threading.Event().wait(0.05)
                model(torch.ones(16, 64)).sum().backward()
                optimizer.step()
        profiler.export_chrome_trace(str(path))
    return path


def test_torch_profiler_on_a_cpu(torch_trace):
    found = audit_traces([torch_trace])
    assert found.source == "torch profiler, CPU"
    assert len(found.devices) == 1
    assert found.n_spans > 30
    assert whole(found)
    assert not found.faults
    # Also the wait before the first span: the profiler tells when it began to record.
    assert found.lost_ns["no device works"] >= 0.99 * 3 * 50_000_000
    assert found.gaps[0].device == ""
    assert found.gaps[0].start_s == 0


def test_ranks_of_one_run(torch_trace, tmp_path):
    """Two files of ranks whose clocks differ: the same trace, a day later."""
    content = json.loads(gzip.decompress(torch_trace.read_bytes()))
    paths = []
    for rank in (0, 1):
        content["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 2}
        content["baseTimeNanoseconds"] = 1_790_857_026_000_000_000 + rank * 86_400_000_000_000
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(content))
    apart = audit_traces(paths)
    assert any("--align" in fault for fault in apart.faults)
    found = audit_traces(paths, AuditOptions(aligned=True))
    assert [one.name.split()[:2] for one in found.devices] == [["rank", "0"], ["rank", "1"]]
    assert found.wall_ns == audit_traces([torch_trace]).wall_ns
    assert found.share == pytest.approx(audit_traces([torch_trace]).share)
    assert found.lost_ns["serial"] == 0
    assert not found.faults


def test_windows_of_one_process_are_no_devices_beside_one_another(torch_trace, tmp_path):
    """A schedule of torch's profiler writes one file for each time that it records."""
    content = json.loads(gzip.decompress(torch_trace.read_bytes()))
    content["baseTimeNanoseconds"] += 3_600_000_000_000
    later = tmp_path / "later.json"
    later.write_text(json.dumps(content))
    with pytest.raises(FormatError, match="at different times"):
        audit_traces([torch_trace, later])
    with pytest.raises(ConfigError, match="given twice"):
        audit_traces([later, tmp_path / ".." / tmp_path.name / "later.json"])


def test_a_profile_without_work_has_no_device(torch_trace, tmp_path):
    """What torch writes when it recorded nothing: the profiler's own span is no work."""
    content = json.loads(gzip.decompress(torch_trace.read_bytes()))
    content["traceEvents"] = [one for one in content["traceEvents"] if one.get("cat") == "Trace"]
    assert content["traceEvents"]
    (tmp_path / "empty.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match="no device did anything"):
        audit_traces([tmp_path / "empty.json"])


DASK = """
import json, sys
from distributed import Client, LocalCluster, get_task_stream

def edit(picture):
    return sum(range(10_000 * (picture + 1)))

options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
with LocalCluster(**options) as cluster, Client(cluster) as client:
    workers = list(client.scheduler_info()["workers"])
    with get_task_stream(client) as stream:
        edited = [client.submit(edit, at, workers=[workers[at % 2]]) for at in range(6)]
        client.submit(sum, edited).result()
    with open(sys.argv[1], "w") as file:
        json.dump(stream.data, file, default=str)
"""


def test_dask_task_stream(tmp_path):
    pytest.importorskip("distributed")
    path = tmp_path / "dask.json"
    words = [sys.executable, "-c", DASK, str(path)]
    subprocess.run(words, check=True, capture_output=True, timeout=500, cwd=tmp_path)
    found = audit_traces([path])
    assert found.source == "Dask task stream"
    assert len(found.devices) == 2
    assert found.n_spans >= 7
    assert whole(found)
    assert found.work_ns > 0
    assert not found.faults


def test_the_recorded_timeline_of_two_ray_nodes():
    """The file of the how-to: what ``examples/audit/record_ray.py`` recorded."""
    found = audit_traces([RECORDED])
    assert found.source == "Ray timeline"
    assert len(found.devices) == 4
    assert whole(found)
    assert not found.faults
    # A collage of 0.6 s, alone, at the end; before, edits of 24 pictures in rounds.
    last = found.gaps[-1]
    assert last.stop_s - last.start_s == pytest.approx(0.6, rel=0.02)
    assert last.span.endswith("collage")
    assert found.work_ns / 1e9 == pytest.approx(24 * 0.05 + 3 * 0.03 * 28 + 0.6, rel=0.05)
    assert found.bound_s <= min(one.wall_s for one in found.what_ifs) <= found.wall_s


@pytest.mark.slow
def test_a_timeline_of_two_ray_nodes(ray_head, until, tmp_path):
    ray = pytest.importorskip("ray")
    node = ray_head.add_node(num_cpus=2, resources={"other": 2})
    try:

        @ray.remote
        def edit(picture: int) -> int:
            return picture

        tasks = [edit.remote(at) for at in range(4)]
        tasks += [edit.options(resources={"other": 1}).remote(at) for at in range(4)]
        ray.get(tasks, timeout=200)

        def n_reported() -> int:
            return sum(one["cat"] == "task:execute" for one in ray.timeline())

        until(lambda: n_reported() >= 8, "workers report their tasks")
        ray.timeline(str(tmp_path / "ray.json"))
    finally:
        ray_head.remove_node(node)
    found = audit_traces([tmp_path / "ray.json"])
    assert found.source == "Ray timeline"
    assert len(found.devices) >= 2
    assert whole(found)
    assert not found.faults


def test_a_run_of_evenload(tmp_path):
    """Its audit has the spans of its own report."""
    sink = EventFile(tmp_path / "events.jsonl")
    log = EventLog(sink)
    with Executor("cpu*2", backend="inline", events=log, echo=False) as executor:
        assert list(executor.map(abs, range(-20, 0))) == list(range(20, 0, -1))
    sink.close()
    found = audit_traces([tmp_path / "events.jsonl"])
    assert found.source == "evenload run"
    assert whole(found)
    n_chunks = summarise(open_run(tmp_path / "events.jsonl")).n_chunks
    assert found.n_spans >= n_chunks > 0
