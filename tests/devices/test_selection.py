import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.devices import Device, DevicePool, ProbeReport, split_cpu
from evenload.devices.selection import NATIVE, families
from evenload.errors import ConfigError, EvenloadError, NoUsableDevice, UnknownName

GIB = 2**30
CPU = Device("cpu:0", "cpu", "cpu", "AMD EPYC", 32 * GIB, 16, threads=16)
SLOW = Device("cuda:0", "discrete", "cuda", "GTX 1060", 6 * GIB, 10, uuid="GPU-slow")
FAST = Device("cuda:1", "discrete", "cuda", "H200", 141 * GIB, 132, uuid="GPU-fast")
TWIN = Device("wgpu:0", "discrete", "vulkan", "H200", same_as="cuda:1")
SOFTWARE = Device("wgpu:1", "cpu", "vulkan", "llvmpipe")

WORKSTATION = DevicePool([SLOW, FAST, TWIN, SOFTWARE, CPU])
LAPTOP = DevicePool([SOFTWARE, CPU])


@pytest.mark.parametrize(
    ("spec", "ids"),
    [
        ("all", "cuda:0 cuda:1"),
        ("gpu", "cuda:0 cuda:1"),
        ("cuda", "cuda:0 cuda:1"),
        ("cuda:1,0", "cuda:1 cuda:0"),
        ("cuda:0, cuda:1", "cuda:0 cuda:1"),
        (" CUDA:1 ", "cuda:1"),
        ("wgpu", "wgpu:0 wgpu:1"),
        ("wgpu:1", "wgpu:1"),
        ("cpu", "cpu:0"),
        ("cpu:0", "cpu:0"),
        ("cpu*3", "cpu:0 cpu:1 cpu:2"),
        ("all,cpu*2", "cuda:0 cuda:1 cpu:0 cpu:1"),
        ("cpu*2,cuda:1", "cpu:0 cpu:1 cuda:1"),
        (1, "cuda:1"),
        ("2", "cuda:1 cuda:0"),
        (["cuda:0", "cpu*2"], "cuda:0 cpu:0 cpu:1"),
        (["cuda:0,1"], "cuda:0 cuda:1"),
        ([FAST], "cuda:1"),
        (SLOW, "cuda:0"),
    ],
)
def test_specs_on_a_machine_with_gpus(spec, ids):
    assert " ".join(WORKSTATION.select(spec).ids) == ids


def test_without_accelerators_all_is_the_cpu_in_slots():
    assert LAPTOP.select("all").ids == tuple(f"cpu:{i}" for i in range(8)), "16 cores, at most 8 slots"
    assert LAPTOP.select(3).ids == ("cpu:0", "cpu:1", "cpu:2")
    one_core = DevicePool([Device("cpu:0", "cpu", "cpu", "x", threads=1)])
    assert one_core.select("all").ids == ("cpu:0",)


def test_all_is_what_frameworks_reach_and_gpu_is_what_only_kernels_reach_too():
    intel = Device("wgpu:0", "integrated", "vulkan", "Intel UHD 770")
    pool = DevicePool([intel, CPU])
    assert pool.select("all").ids == tuple(f"cpu:{i}" for i in range(8))
    assert pool.select("gpu").ids == ("wgpu:0",)
    assert pool.select("gpu,cpu").ids == ("wgpu:0", "cpu:0")
    assert pool.select(1).ids == ("cpu:0",)


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("cpu*4", {"cpu"}),
        ("cuda:0,1", {"cuda", "cpu"}),
        ("all", {*NATIVE, "cpu"}),
        ("all,cpu*2", {*NATIVE, "cpu"}),
        (2, {*NATIVE, "cpu"}),
        ("2", {*NATIVE, "cpu"}),
        ([FAST, "cpu"], {"cuda", "cpu"}),
        ("gpu", None),
        ("wgpu:0", None),
        ("cdua", None),
    ],
)
def test_only_what_a_spec_has_to_do_with_is_asked_for(spec, asked):
    assert families(spec) == asked


def test_slots_share_threads_and_memory():
    slots = tuple(LAPTOP.select("cpu*3"))
    assert [slot.threads for slot in slots] == [6, 5, 5]
    assert [slot.compute_units for slot in slots] == [6, 5, 5]
    assert {slot.memory_bytes for slot in slots} == {32 * GIB // 3}
    assert [slot.threads for slot in LAPTOP.select("cpu*20")] == [1] * 20, (
        "more slots than cores: one thread each"
    )


def test_selecting_again_from_a_selection():
    four = LAPTOP.select("cpu*4")
    assert four.select("all").ids == four.ids
    assert four.select("cpu").ids == four.ids
    assert four.select("cpu:2").ids == ("cpu:2",)
    assert len(four.select(2)) == 2
    assert [d.threads for d in four.select("cpu*2")] == [8, 8]
    assert WORKSTATION.select("cuda:0").select("all").ids == ("cuda:0",)


@pytest.mark.parametrize(
    "spec", ["", " ", ",", [], [""], "cuda:", "cuda:x", "cuda:-1", "cpu*", "cpu**2", "1,2", "cpu*0"]
)
def test_malformed_specs_say_what_to_write(spec):
    with pytest.raises(ConfigError) as caught:
        WORKSTATION.select(spec)
    assert caught.value.hint


@pytest.mark.parametrize("spec", [0, -1, True, None, [0], [None], 3.5])
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(ConfigError):
        WORKSTATION.select(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cuda:0,cuda:0", "cuda:0 is named twice"),
        ("all,cuda:1", "cuda:1 is named twice"),
        ("cpu,cpu*2", "the CPU is named twice"),
        ("cpu:0,cpu*2", "cpu:0 is named twice"),
        ("cuda*2", "only the CPU is split"),
        ("cpu:0*2", "only the CPU is split"),
        (3, "3 devices asked for, 2 here"),
    ],
)
def test_contradictions_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message.replace("*", r"\*")):
        WORKSTATION.select(spec)


def test_unknown_names_propose_the_nearest():
    with pytest.raises(UnknownName) as caught:
        WORKSTATION.select("cdua:0")
    assert "did you mean 'cuda:0'?" in caught.value.hint
    with pytest.raises(UnknownName, match="cuda:7"):
        WORKSTATION.select("cuda:7")
    with pytest.raises(UnknownName) as caught:
        LAPTOP.select("cpu:3")
    assert caught.value.hint == "cpu*4 makes that many CPU slots, cpu:0 to cpu:3"


@pytest.mark.parametrize("spec", ["cuda", "cuda:0", "mps", "gpu"])
def test_hardware_that_is_not_there_is_explained_by_its_probe(spec):
    absent = ProbeReport(
        "cuda", status="missing", reason="nvidia-ml-py is not installed", hint="pip install it"
    )
    mac = ProbeReport("mps", status="absent", reason="not a Mac")
    pool = DevicePool([SOFTWARE, CPU], reports=[absent, mac])
    with pytest.raises(NoUsableDevice) as caught:
        pool.select(spec)
    causes = {"cuda": {"cuda"}, "cuda:0": {"cuda"}, "mps": {"mps"}, "gpu": {"cuda", "mps"}}[spec]
    assert set(caught.value.causes) == causes
    assert ("pip install it" in caught.value.hint) == ("cuda" in causes)
    assert caught.value.exit_code == 3


def test_a_pool_without_a_cpu_cannot_make_slots():
    with pytest.raises(NoUsableDevice, match="CPU is not among"):
        DevicePool([SLOW]).select("cpu*2")


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 8))
def test_every_slot_has_a_thread_and_none_is_lost(cores, n_slots, n_reserved):
    cpu = Device("cpu:0", "cpu", "cpu", "x", threads=cores)
    threads = [slot.threads or 0 for slot in split_cpu(cpu, n_slots, n_reserved=n_reserved)]
    assert len(threads) == n_slots
    assert min(threads) >= 1
    assert sum(threads) == max(n_slots, max(1, cores - n_reserved))
    assert max(threads) - min(threads) <= 1


words = st.sampled_from(
    ["all", "gpu", "cpu", "cuda", "wgpu", "cuda:0", "cuda:1", "cpu*2", "1", "cpu:0", "x", ""]
)


@given(st.lists(words, max_size=4))
def test_any_combination_selects_devices_once_or_explains_itself(parts):
    for pool in (WORKSTATION, LAPTOP):
        try:
            ids, hint = pool.select(",".join(parts)).ids, None
        except EvenloadError as error:
            ids, hint = (), error.hint
        assert bool(ids) != bool(hint)
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("spec", ["cpu*99999", "99999", "cpu*1025", "all,cpu*1025"])
def test_more_slots_than_any_machine_has_cores_are_refused(spec):
    with pytest.raises(ConfigError, match="would start as many processes") as refused:
        LAPTOP.select(spec)
    assert "cpu*16" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "spec", ["9" * 5000, "cpu*" + "9" * 5000, "cpu:" + "9" * 5000, "\u00b2", "cuda:\u0663"]
)
def test_numbers_that_python_does_not_read_are_refused_like_others(spec):
    with pytest.raises(ConfigError):
        LAPTOP.select(spec)


def test_all_and_cpu_slots_mean_the_same_on_every_machine():
    assert WORKSTATION.select("all,cpu*2").ids == ("cuda:0", "cuda:1", "cpu:0", "cpu:1")
    assert LAPTOP.select("all,cpu*2").ids == LAPTOP.select("cpu*2,all").ids == ("cpu:0", "cpu:1")


def test_the_most_slots_that_are_allowed():
    assert len(set(LAPTOP.select("cpu*1024").ids)) == 1024
