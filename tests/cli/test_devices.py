import json
import signal
import subprocess
import sys
from functools import partial

import click
import pytest

from evenload.cli import devices as module
from evenload.devices import Device, DevicePool, ProbeReport, Reading
from evenload.devices import pool as pool_module

GIB = 2**30
GPU = Device("cuda:0", "discrete", "cuda", "NVIDIA H200", 141 * GIB, 132, uuid="GPU-a", pci_id="10de:2335")
TWIN = Device("wgpu:0", "discrete", "vulkan", "NVIDIA H200", pci_id="10de:2335", same_as="cuda:0")
CPU = Device("cpu:0", "cpu", "cpu", "AMD EPYC", 32 * GIB, 16, threads=16)
MASKED = ProbeReport("cuda", (GPU,), notes=("CUDA_VISIBLE_DEVICES='0' hides 1 of 2 GPUs",))
BROKEN = ProbeReport("wgpu", status="failed", reason="ChildFailed: signal 11", hint="look")


class Drivers:
    """Stands at the drivers' boundary: a GPU that is busy with a stranger's work, a CPU at half load."""

    def read(self, device):
        if device.family == "cuda":
            return Reading(0.93, 12 * GIB, 141 * GIB, 64.0, 2)
        return Reading(0.5, 8 * GIB, 32 * GIB) if device.family == "cpu" else Reading()

    def close(self):
        pass


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU, seen twice, and a CPU; no settings but those a test makes."""
    for name in ("EVENLOAD_DEVICES", "EVENLOAD_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool_module, "Readings", Drivers)
    monkeypatch.setattr(module, "CPU_READING_S", 0)

    def has(*devices, reports=()):
        monkeypatch.setattr(module.DevicePool, "discover", lambda: DevicePool(devices, reports=reports))

    has(GPU, TWIN, CPU, reports=[MASKED, BROKEN])
    return has


@pytest.fixture
def run(command):
    return partial(command, "devices")


TABLE = """\
   id      kind      backend  name                         memory     units  score  load   temp  others
*  cuda:0  discrete  cuda     NVIDIA H200     12.0 GiB of 141 GiB   132 SMs  100.0   93%  64 °C       2
   wgpu:0  discrete  vulkan   same as cuda:0                    –         –   66.0     –
   cpu:0   cpu       cpu      AMD EPYC        8.0 GiB of 32.0 GiB  16 cores   34.9   50%

* devices = all (default): cuda:0
"""


def test_the_table(machine, run):
    code, out, err = run()
    assert (code, out) == (0, TABLE)
    assert err.splitlines() == [
        "note: CUDA_VISIBLE_DEVICES='0' hides 1 of 2 GPUs",
        "warning: wgpu: ChildFailed: signal 11",
    ]


def test_json_is_one_object_with_everything(machine, run):
    code, out, err = run("--json")
    page = json.loads(out)
    assert (code, err, page["schema"]) == (0, "", 1)
    assert page["selection"] == {"spec": "all", "source": "default", "ids": ["cuda:0"]}
    gpu, twin, cpu = page["devices"]
    told = ("utilization", "temperature_c", "foreign_processes", "memory_bytes", "memory_used_bytes", "score")
    assert [gpu[name] for name in told] == [0.93, 64.0, 2, 141 * GIB, 12 * GIB, 100.0]
    assert (twin["same_as"], cpu["threads"]) == ("cuda:0", 16)
    assert [(p["name"], p["status"]) for p in page["probes"]] == [("cuda", "ok"), ("wgpu", "failed")]


def test_the_flag_lists_what_it_means(machine, run):
    page = json.loads(run("--devices", "cuda:0,cpu*2", "--json")[1])
    shares = [(d["id"], d["threads"]) for d in page["devices"]]
    assert shares == [("cuda:0", None), ("cpu:0", 8), ("cpu:1", 7)]
    assert page["selection"]["source"] == "--devices"
    out = run("--devices", "cpu*2")[1]
    assert [line.split()[0] for line in out.splitlines()] == ["id", "cpu:0", "cpu:1"]
    assert "16.0 GiB" in out
    assert "of" not in out, "the driver tells the whole machine's memory, a slot has half"


def test_what_cannot_be_met_is_an_error_and_with_a_setting_what_there_is_is_listed(machine, run, monkeypatch):
    code, out, err = run("--devices", "mps")
    assert (code, out, "no mps device" in err) == (3, "", True)
    assert [run("--devices", spec)[0] for spec in ("cudda", "")] == [2, 2]
    monkeypatch.setenv("EVENLOAD_DEVICES", "mps")
    code, out, err = run()
    assert (code, "cuda:0" in out, "error: no mps device" in err) == (3, True, True)
    assert "devices = mps (EVENLOAD_DEVICES): cannot be used" in out
    code, out, _ = run("--json")
    selection = json.loads(out)["selection"]
    assert (code, selection["ids"], "no mps device" in selection["error"]) == (3, [], True)


def test_colour_only_where_it_is_wanted(machine, run):
    assert "\x1b[" not in run()[1]
    colored = run("--color", "always")[1]
    assert "\x1b[32m" in colored
    assert click.unstyle(colored) == run()[1]


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
def test_watching_prints_a_line_of_json_again_and_again_until_ctrl_c(popen):
    arguments = [sys.executable, "-m", "evenload", "devices", "--watch", "--json", "--interval", "0.05"]
    process = popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pages = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=550)
    assert (process.returncode, err) == (0, "")
    assert all(page["schema"] == 1 for page in pages)
    loads = [d["utilization"] for page in pages for d in page["devices"] if d["id"] == "cpu:0"]
    assert any(load is not None for load in loads)


def test_on_a_terminal_the_table_is_drawn_over_itself(machine, run, monkeypatch):
    naps = iter([None, None])

    def sleep(seconds):
        if next(naps, "end") == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = run("--watch", "--color", "never")
    assert code == 0
    first, second = out.split("\x1b[6F\x1b[J")
    assert first == second
    assert first.count("\n") == 6


JOB = """
import sys, time
from evenload.executor import Executor
from evenload.executor.loop.control import Control
with Executor("cpu*3") as executor, Control(sys.argv[1], executor):
    print("listens", flush=True)
    time.sleep(1000)
"""


def test_devices_of_a_running_job_are_drained_and_added(run, tmp_path, popen):
    job = popen([sys.executable, "-c", JOB, tmp_path / "run"], stdout=subprocess.PIPE)
    try:
        assert job.stdout.readline() == b"listens\n"
        folder = ("--run", str(tmp_path / "run"))
        assert run("drain", "cpu:0,cpu:2", *folder)[:2] == (0, "cpu:1\n")
        code, out, _ = run("add", "cpu:0", *folder, "--json")
        assert (code, json.loads(out)) == (0, {"schema": 1, "devices": ["cpu:1", "cpu:0"]})
        code, out, err = run("drain", "cpu:1", "cpu:0", "--now", *folder)
        assert (code, out) == (2, "")
        assert "nobody would work without cpu:1, cpu:0" in err
    finally:
        job.kill()
        job.communicate(timeout=500)
    code, _, err = run("drain", "cpu:0", *folder)
    assert code == 2
    assert "has ended" in err
    assert "no job runs in" in run("add", "cpu:0", "--run", str(tmp_path / "other"))[2]
