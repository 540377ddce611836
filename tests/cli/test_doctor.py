import json
import os
from functools import partial

import pytest

from evenload.cli import doctor as module
from evenload.devices import Device, ProbeReport
from evenload.devices.probes.torch_build import TorchBuild

CPU = Device("cpu:0", "cpu", "cpu", "AMD EPYC", compute_units=16, threads=16)
GPU = Device("cuda:0", "discrete", "cuda", "NVIDIA H200")


@pytest.fixture
def run(command, monkeypatch, tmp_path):
    """Runs doctor in a folder of its own, with settings from nowhere else."""
    for name in [name for name in os.environ if name.startswith("EVENLOAD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return partial(command, "doctor")


@pytest.fixture
def probed(monkeypatch):
    """``probed(report, ...)``: the probes say this."""

    def say(*reports, torch=None):
        monkeypatch.setattr(module, "run_probes", lambda probes: reports)
        monkeypatch.setattr(module, "torch_build", lambda: torch or TorchBuild())

    return say


def test_the_real_machine(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, out, err = run()
    assert (code, err) == (0, "")
    for title in ("devices", "extras", "settings", "to do"):
        assert f"\n{title}\n" in out
    assert "cpu:0" in out
    page = json.loads(run("--json")[1])
    assert page["schema"] == 1
    assert {probe["name"] for probe in page["probes"]} == {"cuda", "mps", "wgpu", "cpu"}
    assert {"name": "policy", "value": "measured", "source": "default"} in page["settings"]


def test_what_failed_and_what_is_missing_is_to_do(run, probed):
    broken = ProbeReport("wgpu", status="failed", reason="OSError: x", hint="look", traceback="Trace\n  line")
    missing = ProbeReport("cuda", status="missing", reason="not installed", hint="pip install it")
    probed(missing, broken)
    code, out, _ = run()
    assert code == 0
    todo = out.partition("to do\n")[2]
    assert "  cuda: not installed; pip install it\n" in todo
    assert "  wgpu: OSError: x; look\n" in todo
    assert "Trace" not in out
    assert "  Trace\n    line\n" in run("-v")[1]


def test_a_torch_without_cuda_beside_a_gpu_is_told(run, probed):
    probed(ProbeReport("cuda", (GPU,)), torch=TorchBuild("2.13.0+cpu"))
    assert "torch is built without CUDA" in run()[1]
    probed(ProbeReport("cuda", (GPU,)), torch=TorchBuild("2.13.0", cuda="12.8"))
    assert "torch is built without CUDA" not in run()[1]


def test_every_setting_is_told_with_its_source(run, probed, monkeypatch, tmp_path):
    probed(ProbeReport("cpu", (CPU,)))
    (tmp_path / "evenload.toml").write_text('policy = "pull"')
    (tmp_path / "config" / "evenload").mkdir(parents=True)
    (tmp_path / "config" / "evenload" / "evenload.toml").write_text("progress = false")
    monkeypatch.setenv("EVENLOAD_DEVICES", "cpu*2")
    out = run("--color", "never")[1]
    settings = filter(None, out.partition("settings\n")[2].splitlines())
    told = {line.split()[0]: line.split(maxsplit=2)[1:] for line in settings}
    assert told["devices"] == ["cpu*2", "EVENLOAD_DEVICES"]
    assert told["policy"] == ["pull", "evenload.toml"]
    assert told["progress"][0] == "False"
    assert told["progress"][1].endswith("config/evenload/evenload.toml")
    assert told["color"] == ["never", "--color"]
    assert told["backend"] == ["process", "default"]
    assert "evenload.toml: read" in out


def test_a_broken_settings_file_does_not_hide_the_rest(run, probed, tmp_path):
    probed(ProbeReport("cuda", (GPU,)))
    (tmp_path / "evenload.toml").write_text("devcies = 1")
    code, out, _ = run()
    assert code == 2
    assert "cuda:0 NVIDIA H200" in out
    assert "did you mean 'devices'?" in out
    code, out, _ = run("--json")
    page = json.loads(out)
    assert (code, page["settings"]) == (2, None)
    assert "devcies" in page["settings_error"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("policy", "mesured", "unknown policy 'mesured'; did you mean 'measured'?"),
        ("policy", "pull:many", "'many' is not a number"),
        ("backend", "proces", "unknown backend 'proces'; did you mean 'process'?"),
        ("devices", "cpu*99999", "99999 CPU slots would start as many processes"),
        ("devices", "cpux", "unknown device 'cpux'"),
    ],
)
def test_a_setting_that_every_command_would_refuse_is_to_do(run, probed, monkeypatch, name, value, told):
    probed(ProbeReport("cpu", (CPU,)))
    monkeypatch.setenv(f"EVENLOAD_{name.upper()}", value)
    code, out, err = run()
    assert (code, err) == (2, "")
    todo = out.partition("to do\n")[2]
    assert todo.startswith(f"  {name} = {value!r} (EVENLOAD_{name.upper()}): ")
    assert told in todo
    code, out, _ = run("--json")
    assert code == 2
    assert list(json.loads(out)["settings_faults"]) == [name]


def test_good_settings_leave_nothing_to_do_but_what_is_not_here(run, probed, tmp_path, monkeypatch):
    probed(ProbeReport("cpu", (CPU,)))
    (tmp_path / "evenload.toml").write_text('policy = "pull:4"\nbackend = "inline"\ndevices = "cpu*2"')
    code, out, err = run()
    assert (code, err, out.partition("to do\n")[2]) == (0, "", "  nothing: all that can work does\n")
    monkeypatch.setenv("EVENLOAD_DEVICES", "cuda")
    monkeypatch.setenv("EVENLOAD_DEVCIES", "all")
    code, out, _ = run()
    assert (code, "EVENLOAD_DEVCIES is set and means nothing" in out) == (0, True)
    assert "devices = 'cuda' (EVENLOAD_DEVICES): no cuda device" in out.partition("to do\n")[2]


def test_extras_are_read_from_the_packages_own_metadata(monkeypatch):
    requirements = [
        "numpy>=1.26",
        "rich>=13.7; extra == 'rich'",
        "no-such-thing>=2; extra == 'new'",
        "numpy>=99; extra == 'new'",
        "evenload[jobs]; extra == 'all'",
        "rich>=13.7; extra == 'all'",
    ]
    monkeypatch.setattr(module.metadata, "requires", lambda name: requirements)
    rich, new = module.installed_extras()
    assert (rich.name, new.name) == ("rich", "new")
    assert new.install == "pip install 'evenload[new]'"
    assert not new.is_usable
    assert str(new.packages[0]) == "no-such-thing (not installed)"
    assert str(new.packages[1]).endswith("(needs 99)")


@pytest.mark.parametrize(
    ("found", "needed", "is_usable"),
    [
        ("2.13.0+cpu", "2.4", True),
        ("10.0", "9.5", True),
        ("1.9.9", "1.10", False),
        ("1.0", "", True),
        (None, "", False),
    ],
)
def test_versions_are_compared_by_their_numbers(found, needed, is_usable):
    assert module.Package("x", found, needed).is_usable == is_usable
