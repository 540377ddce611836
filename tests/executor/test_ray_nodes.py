"""What a spec means in a cluster: pure."""

import pytest

from evenload.devices import Device
from evenload.errors import ConfigError, NoUsableDevice, UnknownName
from evenload.executor.backends.ray.nodes import Node, NodeDevices, choose_on, machines_in, name_nodes

GB = 10**9


def gpu(index: int, uuid: str) -> Device:
    return Device(f"cuda:{index}", "discrete", "cuda", "H200", 140 * GB, 132, uuid=uuid)


def cpu(cores: int) -> Device:
    return Device("cpu:0", "cpu", "cpu", "CPU", 64 * GB, cores, threads=cores)


def node(name: str, *devices: Device, free: dict[str, int] | None = None, n_cpus: float = 8, **facts) -> Node:
    return Node(name, f"id-{name}", n_cpus, 8.0, NodeDevices(devices, (), free or {}, None), **facts)


HERE = node("", gpu(0, "a"), gpu(1, "b"), cpu(8), free={"cuda:0": 20 * GB, "cuda:1": 130 * GB})
THERE = node("east", gpu(0, "c"), cpu(16), free={"cuda:0": 60 * GB})
PLAIN = node("west", cpu(4))


@pytest.mark.parametrize(
    ("spec", "ids"),
    [
        ("all", ["cuda:0", "cuda:1", "east/cuda:0"]),
        ("cuda", ["cuda:0", "cuda:1", "east/cuda:0"]),
        ("cuda:1", ["cuda:1"]),
        ("cuda:0,1", ["cuda:0", "cuda:1"]),
        ("east/cuda:0", ["east/cuda:0"]),
        (["east/cuda:0", "cuda:1"], ["cuda:1", "east/cuda:0"]),
        ("cpu*2", ["cpu:0", "cpu:1", "east/cpu:0", "east/cpu:1", "west/cpu:0", "west/cpu:1"]),
        ("west/cpu*3", ["west/cpu:0", "west/cpu:1", "west/cpu:2"]),
        ("east/all,west/cpu", ["east/cuda:0", "west/cpu:0"]),
        (2, ["cuda:1", "east/cuda:0"]),
        ("3", ["cuda:1", "east/cuda:0", "cuda:0"]),
    ],
)
def test_specs_reach_over_machines(spec, ids) -> None:
    assert list(choose_on([HERE, THERE, PLAIN], spec).ids) == ids


def test_without_accelerators_cpu_slots_are_spread() -> None:
    assert list(choose_on([node("", cpu(2)), PLAIN], "all").ids) == [
        "cpu:0", "cpu:1", "west/cpu:0", "west/cpu:1", "west/cpu:2", "west/cpu:3",
    ]  # fmt: skip
    assert list(choose_on([node("", cpu(2)), PLAIN], 3).ids) == ["cpu:0", "cpu:1", "west/cpu:0"]


def test_slots_have_the_cores_that_ray_may_hand_out() -> None:
    pool = choose_on([node("", cpu(8), n_cpus=4)], "cpu*2")
    assert [device.threads for device in pool] == [2, 2]
    with pytest.raises(NoUsableDevice):
        choose_on([node("", cpu(8), n_cpus=0)], "cpu")


def test_gpus_without_memory_or_claim_are_left_out() -> None:
    assert list(choose_on([HERE, THERE], "all", 50 * GB).ids) == ["cuda:1", "east/cuda:0"]
    claimed = node("", gpu(0, "a"), gpu(1, "b"), given=frozenset({"cuda:1"}))
    assert list(choose_on([claimed], "all").ids) == ["cuda:1"]
    far = node("east", gpu(0, "a"), gpu(1, "b"), given=frozenset({"east/cuda:0"}))
    assert list(choose_on([PLAIN, far], "cuda").ids) == ["east/cuda:0"]


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("north/cuda:0", UnknownName, "machine 'north'"),
        ("west/cuda", NoUsableDevice, "west"),
        ("cudo", UnknownName, "cudo"),
        (9, ConfigError, "9 devices asked for, 3 in the cluster"),
        ("", ConfigError, "empty"),
        ([3], ConfigError, "no name"),
        ("cuda:0,cuda:0", ConfigError, "twice"),
    ],
)
def test_nonsense_is_refused(spec, error, words) -> None:
    with pytest.raises(error, match=words):
        choose_on([HERE, THERE, PLAIN], spec)


def test_machines_that_do_not_answer_are_told() -> None:
    silent = Node("east", "id", 4, 0, None, "No module named 'evenload'")
    assert list(choose_on([PLAIN, silent], "west/cpu").ids) == ["west/cpu:0"]
    with pytest.raises(NoUsableDevice, match="No module named") as caught:
        choose_on([silent], "all")
    assert list(caught.value.causes) == ["east"]


def test_rays_gpu_numbers_mean_what_the_machine_shows_ray() -> None:
    machine = node("", gpu(0, "GPU-a"), gpu(1, "GPU-b"))
    masked = Node("", "id", 8, 2, NodeDevices(machine.found.devices, (), {}, "4,6"))
    assert machine.accelerator_of(["1"]) == gpu(1, "GPU-b")
    assert machine.accelerator_of(["GPU-a"]) == gpu(0, "GPU-a")
    assert masked.accelerator_of(["6"]) == gpu(1, "GPU-b")
    assert machine.accelerator_of([]) is None


def test_names_stay_with_their_machines_while_others_come_and_go() -> None:
    def entry(ray_id: str) -> dict:
        return {"NodeID": ray_id, "NodeName": "west", "Resources": {"CPU": 1.0}}

    here = {"NodeID": "0", "NodeName": "head", "Resources": {}}
    first = name_nodes([here, entry("a"), entry("b")], "0")
    assert {node.ray_id: node.name for node in first} == {"0": "", "a": "west", "b": "west-2"}
    later = name_nodes([here, entry("b"), entry("c")], "0", first)
    assert {node.ray_id: node.name for node in later} == {"0": "", "b": "west-2", "c": "west"}
    assert next(node for node in later if node.ray_id == "b") is first[2], "what is known of it is kept"


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("west/cpu*1", {"west"}),
        ("west/cuda:0,1, east/cpu", {"west", "east"}),
        (["west/cuda", gpu(0, "a")], {"west", ""}),
        ("west/cuda:0,cpu", None),
        ("all", None),
        (2, None),
        (None, None),
        ([], None),
    ],
)
def test_only_machines_that_a_spec_concerns_are_asked(spec, names) -> None:
    assert machines_in(spec) == names
