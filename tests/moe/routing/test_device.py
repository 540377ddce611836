"""The Triton kernels: in Triton's interpreter against the CPU's answers, and compiled for CUDA."""

import pytest

from evenload.errors import ConfigError
from evenload.moe import DeviceCloner

pytest.importorskip("triton", reason="Triton is not installed")


def test_kernels_equal_their_twins_in_the_interpreter(interpreted):
    assert "all equal" in interpreted("routing/interpret_kernels.py", TRITON_INTERPRET="1")


@pytest.mark.parametrize("n_random", ["2", pytest.param("12", marks=pytest.mark.slow)])
def test_clones_equal_their_twin_in_the_interpreter(interpreted, n_random):
    script = "cloning/interpret_clone_kernel.py"
    assert "all equal" in interpreted(script, "1", n_random, TRITON_INTERPRET="1")


def test_a_cloner_on_a_cpu_is_refused_without_the_interpreter():
    with pytest.raises(ConfigError, match="CPU"):
        DeviceCloner([0, 1], 1, device="cpu")


def test_kernels_compile_for_cuda_without_a_gpu(interpreted):
    assert "5 kernels" in interpreted("routing/compile_kernels.py", TRITON_DEFAULT_FP_FUSION="1")


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
