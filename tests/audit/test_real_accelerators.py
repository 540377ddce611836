"""Public traces of real accelerators, where they are at hand: set TRACES to their folder, or put it beside.

Oracle: HolisticTraceAnalysis, which shares nothing with us, on the same file. ``make test-hta`` installs it
in an environment of its own.
"""

import gzip
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from evenload.audit.audit import AuditParts
from evenload.audit.traces import audit_traces, read_traces

TRACES = Path(os.environ.get("TRACES") or Path(__file__).parents[3] / "shared" / "data" / "traces")
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces of real accelerators in {TRACES}")

SAME = (
    "a-two-ranks-0",
    "a-two-ranks-1",
    "h100-bert-small",
    "h100-qwen1.5-0.5b",
    "mi210-gpu-only",
    "mi250-minitoy",
    "mi300-bert-small",
    "mi300-qwen1.5-0.5b",
    "sglang-qwen3-8b-decode",
    "vllm-decode-graph",
)
# HTA counts every row that names a stream: waits for a stream, and marks of the program.
OTHER_ROWS = {"alexnet": {"cuda_sync"}, "b200-eager": {"gpu_user_annotation"}}


def path_of(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


def busy_us(path: Path, categories: set[str]) -> tuple[float, float]:
    """Busy and idle microseconds of the GPU's rows, span by span: plain."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    own = [one for one in events if one.get("ph") == "X" and one.get("cat") in categories]
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in own)
    busy, reach = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, reach))
        reach = max(reach, stop)
    return busy, reach - spans[0][0] - busy


@pytest.mark.parametrize("name", [*SAME, *OTHER_ROWS])
def test_busy_and_idle_time(name):
    """As a plain loop over the file's own rows says."""
    parts = AuditParts(read_traces([path_of(name)]))
    (one,) = parts.occupancy
    busy, idle = busy_us(path_of(name), {"kernel", "gpu_memcpy", "gpu_memset"})
    assert one.busy.total_ns / 1e3 == pytest.approx(busy, abs=1)
    assert (one.busy.stop_ns[-1] - one.busy.start_ns[0]) / 1e3 - busy == pytest.approx(idle, abs=1)
    found = audit_traces([path_of(name)])
    assert found.work_ns + sum(found.lost_ns.values()) == found.wall_ns
    assert len(found.devices) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_idle_time_is_that_of_another_tool(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    analysis = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    with gzip.open(path_of(name)) as file:
        content = json.load(file)
    content.setdefault("distributedInfo", {})["rank"] = 0
    copy = tmp_path / "rank0.json.gz"
    with gzip.open(copy, "wt") as file:
        json.dump(content, file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        theirs: Any = analysis.TraceAnalysis(
            trace_files={0: str(copy)}, trace_dir=str(tmp_path), include_last_profiler_step=True
        ).get_temporal_breakdown(visualize=False)
    (one,) = AuditParts(read_traces([path_of(name)])).occupancy
    idle_ns = int(one.busy.stop_ns[-1] - one.busy.start_ns[0]) - one.busy.total_ns
    assert idle_ns / 1e3 == pytest.approx(float(theirs["idle_time(us)"][0]), abs=1)


def test_two_ranks_of_128():
    """What they exchange are sends and receives with ranks whose traces are not here: nobody is blamed."""
    found = audit_traces([path_of("a-two-ranks-0"), path_of("a-two-ranks-1")])
    assert found.lost_ns["late ranks"] == 0
    assert found.lost_ns["exchange"] > 0
    assert not found.culprits


def test_an_accelerator_that_is_no_gpu():
    found = audit_traces([path_of("mtia-inference")])
    assert [one.name for one in found.devices] == ["mtia:17"]
    assert 0.9 < found.share < 0.95
