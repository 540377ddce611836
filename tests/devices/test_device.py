import dataclasses

import pytest

from evenload.devices import Device


def test_the_id_says_family_and_index():
    device = Device("cuda:12", "discrete", "cuda", "NVIDIA H200")
    assert (device.family, device.index, device.is_accelerator) == ("cuda", 12, True)


def test_a_cpu_is_no_accelerator_whatever_its_backend():
    assert not Device("wgpu:0", "cpu", "vulkan", "llvmpipe").is_accelerator


def test_facts_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Device("cpu:0", "cpu", "cpu", "x").name = "y"
