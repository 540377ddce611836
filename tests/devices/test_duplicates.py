from evenload.devices import Device
from evenload.devices.pool import link_duplicates

RTX = "NVIDIA GeForce RTX 4090"


def cuda(index, name=RTX, pci="10de:2684"):
    return Device(f"cuda:{index}", "discrete", "cuda", name, pci_id=pci)


def wgpu(index, name=RTX, pci="10de:2684", kind="discrete", backend="vulkan"):
    return Device(f"wgpu:{index}", kind, backend, name, pci_id=pci)


def twins(*devices, hidden=()):
    return {device.id: device.same_as for device in link_duplicates(devices, hidden)}


def test_one_gpu_seen_twice_is_one():
    assert twins(cuda(0), wgpu(0)) == {"cuda:0": None, "wgpu:0": "cuda:0"}


def test_boards_of_a_kind_are_matched_one_to_one():
    assert twins(cuda(0), cuda(1), wgpu(0), wgpu(1), wgpu(2)) == {
        "cuda:0": None,
        "cuda:1": None,
        "wgpu:0": "cuda:0",
        "wgpu:1": "cuda:1",
        "wgpu:2": None,
    }


def test_without_a_pci_id_the_name_decides():
    assert twins(cuda(0), wgpu(0, f"{RTX}/PCIe/SSE2", None, "virtual", "opengl"))["wgpu:0"] == "cuda:0"
    mps = Device("mps:0", "integrated", "mps", "Apple M2 Pro")
    assert twins(mps, wgpu(0, "Apple M2 Pro", None, "integrated", "metal"))["wgpu:0"] == "mps:0"
    amd = Device("cuda:0", "discrete", "rocm", "AMD Radeon RX 7900 XTX")
    assert twins(amd, wgpu(0, "AMD Radeon RX 7900 XTX (RADV NAVI31)", "1002:744c"))["wgpu:0"] == "cuda:0"


def test_other_hardware_stays_its_own():
    intel = wgpu(0, "Intel(R) UHD Graphics 770", "8086:4680", "integrated")
    llvmpipe = wgpu(1, "llvmpipe (LLVM 15.0.6, 256 bits)", None, "cpu")
    assert set(twins(cuda(0), intel, llvmpipe).values()) == {None}


def test_a_gpu_that_a_mask_hides_does_not_come_back_through_wgpu():
    assert twins(cuda(0), wgpu(0), wgpu(1), hidden=["10de:2684"]) == {"cuda:0": None, "wgpu:0": "cuda:0"}
    assert twins(wgpu(0), hidden=["10de:2684"]) == {}
    assert twins(wgpu(0), hidden=["10de:9999"]) == {"wgpu:0": None}
