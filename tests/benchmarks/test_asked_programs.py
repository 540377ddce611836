"""Scripts, benchmarks and examples that are asked for help, or with words that none of them knows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from loaded_programs import load

from evenload.native import machine

BASELINES_HERE = machine.baselines_here()
ROOT = Path(__file__).parents[2]
PART = ROOT / "benchmarks" / "gpu_parts" / "part.py"  # reads the arguments of all parts
PASSED_ON = "examples/restore/demo.py"  # unknown options are those of: evenload run


def programs() -> list[str]:
    files = (path for top in ("scripts", "benchmarks", "examples") for path in (ROOT / top).rglob("*.py"))
    return [str(path) for path in files if "\nif __name__ ==" in path.read_text("utf-8")]


def test_every_program_says_how_it_is_used_and_refuses_unknown_options():
    asked = [path for path in programs() if not path.endswith(PASSED_ON)]
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("asked_programs.py")), str(PART)]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, timeout=500, check=True)
    said = json.loads(done.stdout)
    assert len(asked) > 70
    for path in asked:
        helped, refused = said[path]
        assert helped["code"] == 0, (path, helped["errors"])
        assert "usage:" in helped["out"], path
        assert refused["code"] == 2, (path, refused["errors"])
        assert "usage:" in refused["errors"], path
        assert any(word in refused["errors"] for word in ("--no-such-option", "are required: ")), path
        assert "Traceback" not in helped["errors"] + refused["errors"], path


@pytest.fixture
def levels(monkeypatch) -> ModuleType:
    """The script that tests all levels, on a processor that has the extensions of SHA alone."""
    module = load("scripts/test_levels.py")
    monkeypatch.setattr(module.machine, "baselines_here", lambda: ["x86-64-v4", "x86-64-v3"])
    monkeypatch.setattr(module.machine, "host_features", lambda: {"sha", "avx2"})
    return module


@pytest.mark.parametrize(
    "words",
    [
        ["x86-64-v5"],
        ["x86-64-v3", "x86-64-v3+avx512ifma"],
        ["x86-64-v3+avx2"],
        ["sha"],
        [""],
        ["-k", "x"],
        ["nonsense" * 99],
    ],
)
def test_levels_that_cannot_be_are_refused_before_any_suite_starts(words, levels, monkeypatch, capsys):
    monkeypatch.setattr(levels.subprocess, "run", None)
    with pytest.raises(SystemExit) as ended:
        levels.main([*words, "--", "-q"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert words[-1][:60] in said or words[0] in said
    assert len(said) < 600
    if not words[0].startswith("-"):
        assert "write any of x86-64-v4, x86-64-v4+sha, x86-64-v3, x86-64-v3+sha; or nothing" in said


SAID_BY_LIBRARIES = """
import json, sys
from numpy._core._multiarray_umath import __cpu_features__
import torch
from threadpoolctl import threadpool_info
blas = [one["architecture"] for one in threadpool_info() if one["internal_api"] == "openblas"]
found = {"torch": torch.backends.cpu.get_cpu_capability(), "numpy": __cpu_features__["X86_V4"], "blas": blas}
json.dump(found, sys.stdout)
"""


def test_a_level_reaches_the_libraries_that_choose_kernels_themselves(levels):
    """The oracle is what each library says that it chose; oneDNN's LSTM tells in test_objective.py."""
    if "x86-64-v3" not in BASELINES_HERE:
        pytest.skip("this processor has no AVX2, or is no x86-64")
    own = levels.environment_of("x86-64-v3")
    done = subprocess.run(
        [sys.executable, "-c", SAID_BY_LIBRARIES], env={**os.environ, **own}, capture_output=True, text=True,
        timeout=500, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["torch"] == "AVX2"
    assert said["numpy"] is False
    assert {one for one in said["blas"] if one} <= {"Haswell"}
