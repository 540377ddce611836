"""The Triton kernels: in Triton's interpreter against the CPU's answers, and compiled for CUDA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")


def run_script(name, **environment):
    """In a process of its own: Triton reads TRITON_INTERPRET when a kernel is decorated."""
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(here.with_name(name))],
        env=os.environ | environment | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_equal_their_twins_in_the_interpreter():
    assert "all equal" in run_script("interpret_kernels.py", TRITON_INTERPRET="1")


def test_kernels_compile_for_cuda_without_a_gpu():
    assert "5 kernels" in run_script("compile_kernels.py", TRITON_DEFAULT_FP_FUSION="1")


@pytest.mark.gpu
def test_on_a_gpu_and_in_a_cuda_graph():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    from evenload.moe import Planner, create_redundant_mapping

    planner = Planner(create_redundant_mapping(32, 48), 48, 32)
    twin = Planner(create_redundant_mapping(32, 48), 48, 32)
    ids = torch.randint(-1, 32, (2048, 2), device="cuda")
    seen = ids.clone()
    planner.run(seen)  # compiles, before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        slots = planner.run(seen)
    for _ in range(3):
        ids = torch.randint(-1, 32, (2048, 2), device="cuda")
        seen.copy_(ids)
        graph.replay()
        host = slots.cpu()
        assert torch.equal(host == -1, ids.cpu() == -1)
        assert torch.equal(planner.phy2log[host[host >= 0]], ids.cpu()[host >= 0])
        twin.run(ids.cpu())
        assert planner.loads.max() == twin.loads.max()
        assert planner.certificate().peak == planner.loads.max()
    planner.check()
