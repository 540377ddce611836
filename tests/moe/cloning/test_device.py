"""The clone kernel for devices, in Triton's interpreter against a plain twin, and compiled for CUDA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.moe import DeviceCloner

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="torch is not installed")

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from evenload.moe.cloning.kernels.device_clone import clone_kernel
numbers = ("E", "G", "N", "n_domains", "cap", "fewest", "millionths")
sizes = {"BLOCK_E": 256, "BLOCK_G": 64}
kind = {name: "i32" if name in numbers else "*i64" for name in clone_kernel.arg_names}
constants = {(clone_kernel.arg_names.index(name),): value for name, value in sizes.items()}
source = ASTSource(fn=clone_kernel, signature=kind | dict.fromkeys(sizes, "constexpr"), constexprs=constants)
assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
print("compiled")
"""


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


def test_the_kernel_compiles_for_cuda_without_a_gpu(tmp_path):
    file = tmp_path / "compile_clone_kernel.py"
    file.write_text(COMPILE)
    assert "compiled" in run(str(file), TRITON_DEFAULT_FP_FUSION="1")
