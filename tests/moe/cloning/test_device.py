"""The clone kernel in Triton's interpreter against a plain twin; ``routing/test_device.py`` compiles it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.moe import DeviceCloner

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="torch is not installed")


def run(*arguments, **environment):
    """In a process of its own: Triton reads TRITON_INTERPRET when a kernel is decorated."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("n_random", ["3", pytest.param("12", marks=pytest.mark.slow)])
def test_the_kernel_equals_its_twin_in_the_interpreter(n_random):
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    script = here.with_name("interpret_clone_kernel.py")
    assert "all equal" in run(str(script), "1", n_random, TRITON_INTERPRET="1", PYTHONPATH=paths)


def test_a_cpu_is_refused_without_the_interpreter():
    with pytest.raises(ConfigError, match="CPU"):
        DeviceCloner([0, 1], 1, device="cpu")
