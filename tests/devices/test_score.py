import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.devices import Device, ScoreWeights, score
from evenload.errors import ConfigError

GIB = 2**30
H200 = Device("cuda:0", "discrete", "cuda", "NVIDIA H200", 141 * GIB, 132)
LAPTOP = Device("wgpu:0", "integrated", "vulkan", "Intel UHD", None, None)
CPU = Device("cpu:0", "cpu", "cpu", "AMD EPYC", 32 * GIB, 16)

devices = st.builds(
    Device,
    id=st.just("x:0"),
    kind=st.sampled_from(["discrete", "integrated", "virtual", "cpu"]),
    backend=st.sampled_from(["cuda", "rocm", "mps", "metal", "vulkan", "d3d12", "opengl", "cpu", "new"]),
    name=st.just("x"),
    memory_bytes=st.none() | st.integers(0, 10**13),
    compute_units=st.none() | st.integers(0, 10**4),
)


def test_the_factors_by_hand():
    assert score(H200) == 100.0
    # 40 x .5 + 20 x .8 + two factors that are not known, 20 x .25 each
    assert score(LAPTOP) == 46.0
    memory = math.log2(33) / math.log2(129)
    assert score(CPU) == round(40 * 0.2 + 20 * 0.5 + 20 * memory + 20 * 16 / 128, 1)


@given(devices)
def test_never_zero_never_above_100(device):
    assert 0 < score(device) <= 100


@given(devices, st.integers(0, 10**12), st.integers(0, 1000))
def test_more_memory_or_units_never_score_less(device, memory, units):
    known = replace(device, memory_bytes=(device.memory_bytes or 0) + 2**30, compute_units=1)
    larger = replace(known, memory_bytes=known.memory_bytes + memory, compute_units=1 + units)
    assert score(larger) >= score(known)


def test_weights_are_adjustable_and_need_not_sum_to_one():
    only_memory = ScoreWeights(kind=0, backend=0, memory=5, compute_units=0)
    assert score(H200, only_memory) == 100.0
    assert score(CPU, only_memory) == round(100 * math.log2(33) / math.log2(129), 1)
    assert score(CPU, ScoreWeights(4, 2, 2, 2)) == score(CPU)


@pytest.mark.parametrize("bad", [{"kind": -1}, {"memory": math.nan}, {"backend": math.inf}])
def test_weights_are_checked(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ScoreWeights(**bad)


def test_at_least_one_factor_must_count():
    with pytest.raises(ConfigError, match="all score weights are zero"):
        ScoreWeights(0, 0, 0, 0)
