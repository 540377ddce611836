"""The Triton kernels: in Triton's interpreter against the CPU's answers, and compiled for CUDA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")


def run_script(name, **environment):
    """In a process of its own: Triton reads TRITON_INTERPRET when a kernel is decorated."""
    script = Path(__file__).with_name(name)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_equal_their_twins_in_the_interpreter():
    assert "all equal" in run_script("interpret_kernels.py", TRITON_INTERPRET="1")


def test_kernels_compile_for_cuda_without_a_gpu():
    assert "4 kernels" in run_script("compile_kernels.py", TRITON_DEFAULT_FP_FUSION="1")
