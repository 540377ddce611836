"""The devices of a run, here or on a cluster, and what is said of a cluster that is not there."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenload.cli import main
from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, SpecError
from evenload.executor import Ray
from evenload.executor.backends import FreeMemory
from evenload.executor.backends.inline import InlineBackend
from evenload.executor.backends.ray.cluster import _signals_kept
from evenload.pipeline.job.job_file import parse_spec
from evenload.pipeline.job.spec import BackendSection
from evenload.pipeline.planning.job_plan import pool_devices
from evenload.pipeline.planning.placement_options import best_layouts
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights
from evenload.pipeline.run.machines.fleet import RunFleet, backend_of

JOB = "version: 1\njob: {name: x, inputs: {jsonl: rows.jsonl}}\nstages: [{name: a, target: 'a.py:A'}]\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("class A:\n    def __call__(self, inputs, item): return {}\n")
    (tmp_path / "rows.jsonl").write_text('{"id": "a"}\n')
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


class TwoMachines(InlineBackend):
    """A backend whose devices are those of this machine and of another."""

    def devices(self, spec: object) -> DevicePool:
        return DevicePool(
            [
                Device("cuda:0", "discrete", "cuda", "H200", 100),
                Device("west/cuda:0", "discrete", "cuda", "H200", 100),
                Device("west/cuda:1", "discrete", "cuda", "H200", 100),
                Device("west/cpu:0", "cpu", "cpu", "CPU", threads=2),
                Device("west/cpu:1", "cpu", "cpu", "CPU", threads=2),
            ]
        )

    def watch(self, changed: object) -> None: ...

    def lost(self, devices: object) -> tuple[str, ...]:
        return ()

    def arrivals(self, spec: object) -> tuple[Device, ...]:
        return ()

    def free_memory(self) -> FreeMemory:
        return FreeMemory({"cuda:0": 10, "west/cuda:0": 20}, {"": 1000, "west": 400})


class Settings:
    """The settings of that backend."""

    def make(self, options: object) -> TwoMachines:
        return TwoMachines()

    def beside(self) -> "Settings":
        return self


def test_memory_is_what_each_machine_says() -> None:
    with RunFleet("all", Settings()) as fleet:
        assert fleet.machines is not None
        free = fleet.free_bytes()
        assert free == {"cuda:0": 10, "west/cuda:0": 20, "west/cpu:0": 200, "west/cpu:1": 200}
        assert fleet.host_bytes() == 500, "100 for each of west's four, and as much for ours"
        found = {device.id: device.free_bytes for device in pool_devices(fleet.pool, free)}
        assert found == free | {"west/cuda:1": 100}
    with RunFleet("cpu*2", "inline") as here:
        assert (here.machines, here.free_bytes()) == (None, {})
        assert here.host_bytes()


def test_a_model_is_spread_over_devices_of_one_machine() -> None:
    ids = ("a/cuda:0", "b/cuda:0", "a/cuda:1", "b/cuda:1", "c/cuda:0")
    devices = tuple(PlanDevice(one, free_bytes=60) for one in ids)
    stage = PlanStage("s", 1.0, weights=Weights(10, 10, 9))
    layouts = best_layouts(stage, Problem((stage,), devices, 4), groups_only=True)
    groups = [option.devices for layout in layouts for option in layout if len(option.devices) > 1]
    assert set(groups) == {("a/cuda:0", "a/cuda:1"), ("b/cuda:0", "b/cuda:1")}


def test_the_command_line_wins_and_the_settings_of_ray_stay() -> None:
    section = BackendSection(name="ray", address="10.0.0.1:6379", follow=True, reserve=False)
    expected = Ray("10.0.0.1:6379", reserve=False), True
    assert backend_of(section, None) == expected
    assert backend_of(section, "ray") == expected
    assert backend_of(section, "inline") == ("inline", False)
    assert backend_of(BackendSection(), "ray") == (Ray(), False)
    assert backend_of(BackendSection(), None) == ("process", False)
    mine = Settings()
    assert backend_of(section, mine) == (mine, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("backend: rai", "'rai' is not known; did you mean 'ray'"),
        ("backend: {name: process, follow: true}", "backend.follow (line 4): has no effect with process"),
        ("backend: {name: ray, address: 'ray://x:1'}", "is a Ray Client"),
        ("backend: {name: ray, nodes: 3}", "unknown key"),
    ],
)
def test_settings_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(f"{JOB}{text}\n", Path(), with_inputs=False)
    assert words in str(caught.value)


def test_what_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ConfigError, match="no machine ever joins"), RunFleet("all", "process", follows=True):
        pass


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine at which nothing listens; nobody else gets it meanwhile."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def test_an_address_where_nothing_is_is_an_error_of_one_line(
    job: Path, closed_port: int, evenload: list[str]
) -> None:
    """In a process of its own, as this one may be connected to a cluster of other tests."""
    backend = f"backend={{name: ray, address: '127.0.0.1:{closed_port}'}}"
    command = [*evenload, "run", str(job), "--set", backend]
    said = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (said.returncode, said.stdout) == (2, "")
    assert f"no Ray cluster at '127.0.0.1:{closed_port}'" in said.stderr
    assert "ray status" in said.stderr
    assert not (job.parent / "runs").exists(), "no run folder is left"


def test_without_ray_the_line_to_install_it_is_said(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as caught:
        main(["run", str(job), "--backend", "ray"])
    assert caught.value.code == 3
    assert "evenload[ray]" in capsys.readouterr().err


def test_joining_a_cluster_leaves_the_programs_signal_handlers() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with _signals_kept():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
