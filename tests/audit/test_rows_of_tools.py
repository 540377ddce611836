"""Which rows of a trace are devices: a small trace as each tool writes it, whose busy time is known.

The layouts are those of the tools' own files and documentation; the shared traces of real accelerators, where
they are at hand, are looked at in ``test_real_accelerators``.
"""

import bz2
import gzip
import json
import lzma
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evenload.audit.traces import AuditOptions, audit_traces
from evenload.cli.audit import audit
from evenload.errors import FormatError

MS = 1000.0  # in microseconds
WINDOW = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "ts": 0, "dur": 1e6}


def rows(name: str, busy_ms: float, n: int = 100, **row: Any) -> list[dict[str, Any]]:
    """One span of ``busy_ms`` in each of ``n`` tens of milliseconds."""
    return [{"ph": "X", "name": name, "ts": at * 10 * MS, "dur": busy_ms * MS, **row} for at in range(n)]


def later(by_ms: float, spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "ts": one["ts"] + by_ms * MS} for one in spans]


def named(kind: str, name: str, pid: Any, tid: Any = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


JAX = [
    named("process_name", "/device:GPU:0", 1),
    named("process_name", "/host:CPU", 701),
    named("thread_name", "Stream #14(Compute)", 1, 14),
    named("thread_name", "Stream #15(MemcpyH2D)", 1, 15),
    named("thread_name", "XLA Modules", 1, 100),
    named("thread_name", "XLA Ops", 1, 101),
    named("thread_name", "python", 701, 1),
    *rows("fusion.1", 3, pid=1, tid=14),
    *later(5, rows("MemcpyH2D", 1, pid=1, tid=15)),
    *rows("jit_step", 9, pid=1, tid=100),
    *rows("fusion.1", 3, pid=1, tid=101),
    {"ph": "X", "pid": 701, "tid": 1, "ts": 0, "dur": 1e6, "name": "main"},
]
TPU = [
    named("process_name", "/device:TPU:0", 3),
    named("thread_name", "XLA Modules", 3, 1),
    named("thread_name", "XLA Ops", 3, 2),
    named("thread_name", "Steps", 3, 3),
    *rows("jit_step", 9, pid=3, tid=1),
    *rows("fusion.7", 4, pid=3, tid=2),
    *rows("1", 10, pid=3, tid=3),
]
MTIA = [
    WINDOW,
    named("process_name", "MTIA 17", 17),
    *rows("aten::add", 9.9, cat="cpu_op", pid=1, tid=1),
    *rows("pe_exe", 2, cat="mtia_ccp_events", pid=17, tid=7),
    *later(5, rows("dma_request", 1, cat="mtia_ccp_events", pid=17, tid=8)),
    *rows("event_wait", 9, cat="mtia_ccp_events", pid=17, tid=9),
]
OLD_TORCH = [
    WINDOW,
    *rows("gemm", 5, cat="Kernel", pid=0, tid=7),
    *later(6, rows("Memcpy HtoD", 1, cat="Memcpy", pid=0, tid=7)),
    *rows("aten::mm", 0.1, cat="Operator", pid=1, tid=1),
]
OLDEST_TORCH = [*rows("mm", 9, pid="CPU functions", tid=1), *rows("sgemm", 2, pid="CUDA functions", tid=0)]
OLDEST_CPU = rows("mm", 7, pid="CPU functions", tid=1)
ASCEND = [
    named("process_name", "Ascend Hardware", 5),
    named("process_name", "CANN", 6),
    named("thread_name", "Stream 10", 5, 10),
    named("thread_name", "Overlap Analysis", 5, 11),
    *rows("MatMulV2", 6, pid=5, tid=10),
    *rows("Computing", 9, pid=5, tid=11),
    *rows("AscendCL@aclnnMm", 8, pid=6, tid=1),
]
CUDA = [
    WINDOW,
    *rows("gemm", 4, cat="kernel", pid=0, tid=7),
    *rows("gemm", 4, cat="kernel", pid=0, tid=20),  # the same time on another stream
    *rows("nccl:all_reduce", 9, cat="gpu_user_annotation", pid=0, tid=7),
    *rows("Context Sync", 9, cat="cuda_sync", pid=0, tid=7),
]


@pytest.mark.parametrize(
    ("events", "devices", "work_ms", "exchange_ms"),
    [
        pytest.param(JAX, ["gpu:0"], 300, 100, id="jax on a gpu"),
        pytest.param(TPU, ["tpu:0"], 400, 0, id="jax on a tpu"),
        pytest.param(MTIA, ["mtia:17"], 200, 100, id="mtia"),
        pytest.param(OLD_TORCH, ["gpu:0"], 500, 100, id="torch 1.8"),
        pytest.param(OLDEST_TORCH, ["gpu:0"], 200, 0, id="torch 1.4"),
        pytest.param(OLDEST_CPU, ["process CPU functions"], 700, 0, id="torch 1.4 on a cpu"),
        pytest.param(ASCEND, ["npu:5"], 600, 0, id="ascend"),
        pytest.param(CUDA, ["gpu:0"], 400, 0, id="cuda"),
    ],
)
def test_only_devices_are_devices(events, devices, work_ms, exchange_ms, tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    found = audit_traces([tmp_path / "trace.json"])
    assert [one.name for one in found.devices] == devices
    assert found.work_ns == work_ms * 1e6
    assert found.lost_ns["exchange"] == exchange_ms * 1e6


def test_an_accelerator_that_is_not_known_is_refused(tmp_path):
    """Its rows are no work of the CPU, and the CPU's operators are no work of it."""
    events = [
        WINDOW,
        *rows("aten::mm", 9, cat="cpu_op", pid=1, tid=1),
        *rows("k", 2, cat="acme_npu", pid=0, tid=7),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "ACME"}], "traceEvents": events}))
    with pytest.raises(FormatError, match="'acme_npu'"):
        audit_traces([path])
    assert audit_traces([path], AuditOptions(rows="process")).work_ns == 900 * 1e6


def test_devices_of_several_files_have_their_files_names_and_speeds_beside_one_another(tmp_path):
    """Spans of one name in two files, half as fast in one of them."""
    for file, busy_ms in (("a.json", 2), ("b.json", 4)):
        events = rows("gemm", busy_ms, cat="kernel", pid=0, tid=7)
        (tmp_path / file).write_text(json.dumps({"traceEvents": events}))
    found = audit_traces([tmp_path / "a.json", tmp_path / "b.json"])
    assert [one.name for one in found.devices] == ["a.json: gpu:0", "b.json: gpu:0"]
    assert [one.speed for one in found.devices] == pytest.approx([2, 0.5])


HEAD = "timestamp, index, utilization.gpu [%]\n"


def samples(at_s: list[int], percent: int) -> str:
    start = datetime(2026, 1, 1)
    return "".join(f"{start + timedelta(seconds=at):%Y/%m/%d %H:%M:%S}.000, 0, {percent} %\n" for at in at_s)


def test_a_hole_between_samples_is_neither_work_nor_idle(tmp_path):
    path = tmp_path / "load.csv"
    path.write_text(HEAD + samples([*range(60), *range(36_000, 36_060)], 90))
    found = audit_traces([path])
    assert found.lost_ns["not recorded"] == (36_000 - 59 - 1) * 10**9
    assert found.work_ns == 120 * 9 * 10**8
    assert found.share == pytest.approx(0.9)
    assert found.largest == "within samples"
    assert any("not recorded" in fault for fault in found.faults)


def test_text_as_powershell_writes_it(tmp_path):
    plain, wide = tmp_path / "plain.csv", tmp_path / "wide.csv"
    text = HEAD + samples(list(range(5000)), 90)
    plain.write_text(text, "utf-8")
    wide.write_text(text, "utf-16")
    assert audit_traces([wide]) == audit_traces([plain])


def test_mig_instances_are_devices(tmp_path):
    path = tmp_path / "dmon.txt"
    path.write_text("#Entity   GRACT\nID\n" + "GPU-I 0     0.9\nGPU-I 1     0.1\n" * 20)
    found = audit_traces([path])
    assert [one.name for one in found.devices] == ["GPU-I 0", "GPU-I 1"]
    assert found.share == pytest.approx(0.5)


@pytest.mark.parametrize("column", ["pci.bus_id", "uuid"])
def test_gpus_by_bus_or_number(column, tmp_path):
    path = tmp_path / "load.csv"
    lines = [
        f"2026/01/01 00:00:{at:02d}.000, 0000:0{gpu}:00.0, {gpu * 10} %" for at in range(10) for gpu in (1, 2)
    ]
    path.write_text("\n".join([f"timestamp, {column}, utilization.gpu [%]", *lines]))
    assert [one.name for one in audit_traces([path]).devices] == ["0000:01:00.0", "0000:02:00.0"]


def packed(kind: str, content: bytes, folder: Path) -> Path:
    """A file of one kind of compression, made by the tool itself where Python has none."""
    path = folder / f"trace.json.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("folder/trace.json", content)
        return path
    if kind == "zst":
        content = pytest.importorskip("zstandard").ZstdCompressor().compress(content)
    else:
        content = {"gz": gzip, "bz2": bz2, "xz": lzma}[kind].compress(content)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "zip"])
def test_compressed_traces(kind, tmp_path):
    """Each is read as the plain file; where it is cut, what it has is read, or it is refused as no trace."""
    plain = tmp_path / "trace.json"
    plain.write_text(json.dumps({"traceEvents": rows("gemm", 4, n=1000, cat="kernel", pid=0, tid=7)}))
    path = packed(kind, plain.read_bytes(), tmp_path)
    assert audit_traces([path]) == audit_traces([plain])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        found = audit_traces([path])
    except FormatError:
        return
    assert any(" ends " in fault for fault in found.faults)


def test_a_trace_from_a_pipe(tmp_path):
    content = json.dumps({"traceEvents": rows("gemm", 4, cat="kernel", pid=0, tid=7)}).encode()
    for given in (content, gzip.compress(content)):
        done = CliRunner().invoke(audit, ["-", "--json"], input=given, standalone_mode=False)
        assert json.loads(done.stdout)["work_h"] * 3.6e12 == pytest.approx(100 * 4e6)


def test_an_archive_of_several_files_and_a_profile_without_times_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "traces.zip", "w") as archive:
        archive.writestr("a.json", "[]")
        archive.writestr("b.json", "[]")
    layers = [{"count": 10}, {"name": "conv1", "timeMs": 3.2, "averageMs": 0.32, "percentage": 100}]
    (tmp_path / "profile.json").write_text(json.dumps(layers))
    for file, said in (("traces.zip", "one trace"), ("profile.json", "trtexec")):
        with pytest.raises(FormatError, match=said):
            audit_traces([tmp_path / file])
