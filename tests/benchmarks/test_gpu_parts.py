"""Every part of ``benchmarks/gpu.py`` as it runs where no GPU is: tiny, so that no part breaks unseen."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked_workers import python_command
from loaded_programs import load

from evenload.devices.device import Device
from evenload.devices.environment import worker_environment
from evenload.devices.pool import DevicePool

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PARTS = re.findall(r"^    Measured\(\s*\"(\w+)\"", (BENCHMARKS / "gpu.py").read_text(), re.MULTILINE)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, cwd="/")


def test_parts_are_listed_in_order_and_each_has_its_file():
    said = run("--list").stdout
    assert [line.split()[0] for line in said.splitlines()] == PARTS
    for name in PARTS:
        assert (BENCHMARKS / "gpu_parts" / f"{name}.py").is_file()


LOADED = {  # names of parts, by the modules that all of them load: those are loaded once
    "torch": ("moe",),  # Triton comes with the others, and "moe" wants it in another way
    "torch._dynamo,transformers.modeling_utils": (
        "machine", "executor", "clients", "pipelines", "adapters", "training", "wgsl",
    ),
}  # fmt: skip


def test_each_part_is_named_once():
    assert sorted(name for names in LOADED.values() for name in names) == sorted(PARTS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("modules", LOADED)
def test_parts_pretend(modules, tmp_path):
    names = LOADED[modules]
    python = python_command() if "torch._dynamo" in modules else [sys.executable]
    program = [*python, str(Path(__file__).with_name("forked_parts.py")), modules]
    asked = ["--pretend", "--minutes", "60", "--out", str(tmp_path), "--only", ",".join(names)]
    done = subprocess.run([*program, *asked], capture_output=True, text=True, timeout=1100, cwd="/")
    assert (tmp_path / "log.txt").exists(), done.stderr
    said = done.stdout + done.stderr + (tmp_path / "log.txt").read_text()
    assert done.returncode == 0, said
    pages = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert sorted(pages) == sorted(names)
    for page in pages.values():
        assert page["state"] in ("ran", "not here"), said
        assert page["rows"] or page["state"] == "not here", said
        assert page["pretended"] == bool(page["rows"])
    assert len(list(tmp_path.rglob("*"))) <= 8  # with two reports, all that some machines give back


def test_a_gpu_that_is_shared_is_one_gpu_in_each_worker(monkeypatch):
    """What parts give to an executor, which needs a GPU to go on."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # else workers of later tests would import benchmarks by it
    part = load("benchmarks/gpu_parts/part.py")
    gpu = Device("cuda:0", "discrete", "cuda", "a GPU", memory_bytes=8 << 30, uuid="GPU-1234")
    monkeypatch.setattr(DevicePool, "find", classmethod(lambda cls, _spec: cls([gpu])))
    devices = part.sharing(SimpleNamespace(pretend=False), 4)
    pool = DevicePool(devices, n_cores=8).select(devices)
    assert [device.memory_bytes for device in pool] == [2 << 30] * 4
    masks = {worker_environment(device, pool, os.environ)["CUDA_VISIBLE_DEVICES"] for device in pool}
    assert masks == {"GPU-1234"}
