"""Selecting devices of a cluster. Pure, except for ``list_devices``, which runs on each machine.

spec  = count | term ("," term)*      a term as in ``devices.selection``, or "machine/term" for one machine
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenload.balance import partition
from evenload.devices import Device, DevicePool, ProbeReport
from evenload.devices.selection import NATIVE, Spec, as_number, entries_of
from evenload.errors import ConfigError, EvenloadError, NoUsableDevice, UnknownName


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one machine.

    free_bytes  free memory by device id, where the driver tells
    mask        the GPUs that Ray sees there, as its environment names them
    host_bytes  memory of the machine itself that is free
    """

    devices: tuple[Device, ...]
    reports: tuple[ProbeReport, ...]
    free_bytes: Mapping[str, int]
    mask: str | None = None
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster.

    name     as in device ids; "" for the one that this program runs on
    n_cpus, n_gpus  what Ray may hand out there
    found    its devices; ``no_answer`` says why they are not known
    given    the GPUs that Ray has reserved for us; None: nothing is reserved
    """

    name: str
    ray_id: str
    n_cpus: float = 0.0
    n_gpus: float = 0.0
    found: NodeDevices | None = None
    no_answer: str = "it was not asked"
    given: frozenset[str] | None = None

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The accelerators that Ray manages, with this machine's name in their ids."""
        if self.found is None:
            return ()
        return tuple(self.named(device) for device in self.found.devices if device.family in NATIVE)

    def named(self, device: Device) -> Device:
        return replace(device, id=f"{self.name}/{device.id}") if self.name else device

    def accelerator_of(self, gpu_ids: Sequence[str]) -> Device | None:
        """Return the device that Ray means: by UUID, or by its index among those visible to Ray."""
        if not gpu_ids or self.found is None:
            return None
        for device in self.accelerators:
            if device.uuid == gpu_ids[0]:
                return device
        shown = [entry.strip() for entry in (self.found.mask or "").split(",") if entry.strip()]
        index = shown.index(gpu_ids[0]) if gpu_ids[0] in shown else int(gpu_ids[0])
        return next((device for device in self.accelerators if device.index == index), None)


def list_devices() -> NodeDevices:
    """List this machine's devices and their free memory."""
    import os

    import psutil

    with DevicePool.discover() as pool:
        free_bytes = {}
        for device in pool:
            reading = pool.load(device.id).reading
            if reading.memory_total_bytes is not None and reading.memory_used_bytes is not None:
                free_bytes[device.id] = reading.memory_total_bytes - reading.memory_used_bytes
        mask, host_bytes = os.environ.get("CUDA_VISIBLE_DEVICES"), int(psutil.virtual_memory().available)
        return NodeDevices(tuple(pool), pool.reports, free_bytes, mask, host_bytes)


def name_nodes(alive: Sequence[Mapping[str, Any]], here: str, known: Iterable[Node] = ()) -> list[Node]:
    """Make nodes from Ray's list: this machine first, with unique names.

    known  nodes that were named before: those that are still there stay as they are
    """
    ids = {entry["NodeID"] for entry in alive}
    nodes = [node for node in known if node.ray_id in ids]
    named = {node.ray_id for node in nodes}
    taken = {node.name for node in nodes}
    for entry in sorted(
        alive, key=lambda entry: (entry["NodeID"] != here, entry["NodeName"], entry["NodeID"])
    ):
        if entry["NodeID"] in named:
            continue
        name, n = entry["NodeName"].replace("/", "-"), 1
        while name in taken:
            n += 1
            name = f"{entry['NodeName']}-{n}"
        if entry["NodeID"] == here:
            name = ""
        taken.add(name)
        has = entry["Resources"]
        nodes.append(Node(name, entry["NodeID"], has.get("CPU", 0.0), has.get("GPU", 0.0)))
    return nodes


def machines_in(spec: Spec) -> frozenset[str] | None:
    """Return the machines that ``spec`` names; None if a part of it is meant for all, or it is no spec."""
    entries = [spec] if isinstance(spec, str | Device) else spec if isinstance(spec, Sequence) else []
    names: set[str] = set()
    for entry in entries:
        for term in entry.split(",") if isinstance(entry, str) else (entry,):
            if isinstance(term, Device):
                names.add(term.node)
            elif isinstance(term, str) and "/" in term:
                names.add(term.strip().rpartition("/")[0])
            elif not (isinstance(term, str) and term.strip().isdigit() and names):
                return None
    return frozenset(names) or None


def choose_on(nodes: Sequence[Node], spec: Spec, min_free_bytes: int = 0) -> DevicePool:
    """Select the devices of a cluster that ``spec`` means.

    A term without a machine's name is meant for each machine ("cuda": all GPUs; "cpu*2": two slots on each),
    but one with a number is this machine's own, as everywhere ("cuda:0"). "all" is every accelerator of
    the cluster or, where there is none, the CPU slots of each machine. A number n is the n accelerators with
    the most free memory or, where there is none, n CPU slots spread over the machines.
    Raises as ``DevicePool.select``; the causes are told by machine.
    """
    pools = {node.name: _usable(node, min_free_bytes) for node in nodes if node.found is not None}
    pools = _each_once(pools)
    if not pools:
        raise NoUsableDevice(
            "no machine of the cluster says what it has",
            causes={node.name or "this machine": node.no_answer for node in nodes},
            hint="evenload must be installed on each machine, for the same Python",
        )
    n_wanted = as_number(spec)
    if n_wanted is not None:
        return _most_free(nodes, pools, n_wanted)
    chosen: list[Device] = []
    causes: dict[str, str] = {}
    refusal: EvenloadError | None = None
    for name, part in _parts(spec, pools).items():
        try:
            chosen += [_named(name, device) for device in pools[name].select(part)]
        except (NoUsableDevice, UnknownName) as error:
            refusal = refusal or error
            causes[name or "this machine"] = error.message
    if not chosen:
        assert refusal is not None
        if isinstance(refusal, UnknownName):
            raise refusal
        raise NoUsableDevice("no machine of the cluster has such a device", causes=causes, hint=refusal.hint)
    return _pool(chosen, pools)


def _usable(node: Node, min_free_bytes: int) -> DevicePool:
    """Return the machine's devices that Ray allows and that have free memory, under their ids there."""
    assert node.found is not None
    kept: list[Device] = []
    reasons: list[ProbeReport] = list(node.found.reports)
    for device in node.found.devices:
        free = node.found.free_bytes.get(device.id)
        if device.family == "cpu":
            cores = min(device.threads or 1, int(node.n_cpus))
            if cores:
                kept.append(replace(device, threads=cores, compute_units=cores))
        elif device.family in NATIVE and node.given is not None and node.named(device).id not in node.given:
            reasons.append(_left_out(device, "Ray has given it to others, or does not count it"))
        elif free is not None and free < min_free_bytes:
            reasons.append(_left_out(device, f"only {free / 1e9:.1f} GB of its memory are free"))
        else:
            kept.append(device)
    return DevicePool(kept, reports=reasons)


def _left_out(device: Device, why: str) -> ProbeReport:
    return ProbeReport(device.family, reason=f"{device.id}: {why}")


def _each_once(pools: Mapping[str, DevicePool]) -> dict[str, DevicePool]:
    """Keep each GPU once, with the first of several Ray nodes on one machine."""
    seen: set[str] = set()
    once = {}
    for name, pool in pools.items():
        once[name] = DevicePool([d for d in pool if d.uuid not in seen], reports=pool.reports)
        seen |= {device.uuid for device in pool if device.uuid is not None}
    return once


def _parts(spec: Spec, pools: Mapping[str, DevicePool]) -> dict[str, list[str | Device]]:
    """Split ``spec`` into the parts for each machine, by name."""
    has_accelerators = {name for name, pool in pools.items() if any(d.family in NATIVE for d in pool)}
    parts: dict[str, list[str | Device]] = {}
    last = ""
    for term in entries_of(spec, "node2/cuda:0"):
        if isinstance(term, Device):
            own = replace(term, id=term.id.rpartition("/")[2])
            parts.setdefault(_known(term.node, pools), []).append(own)
        elif "/" in term:
            name, _, inner = term.rpartition("/")
            last = _known(name, pools)
            parts.setdefault(last, []).append(inner)
        elif term.isdigit():  # goes on with the numbers of the term before it
            parts.setdefault(last, []).append(term)
        elif ":" in term:
            last = ""
            parts.setdefault("", []).append(term)
        else:
            last = ""
            for name in has_accelerators if term.lower() == "all" and has_accelerators else pools:
                parts.setdefault(name, []).append(term)
    return {name: parts[name] for name in pools if name in parts}


def _known(name: str, pools: Mapping[str, DevicePool]) -> str:
    if name not in pools:
        raise UnknownName("machine", name, [name for name in pools if name])
    return name


def _most_free(nodes: Sequence[Node], pools: Mapping[str, DevicePool], n: int) -> DevicePool:
    free = {
        node.named(device).id: node.found.free_bytes.get(device.id, device.memory_bytes or 0)
        for node in nodes
        if node.found is not None
        for device in node.found.devices
    }
    found = [
        _named(name, device) for name, pool in pools.items() for device in pool if device.family in NATIVE
    ]
    if found:
        if n > len(found):
            ids = ", ".join(device.id for device in found)
            raise ConfigError(f"{n} devices asked for, {len(found)} in the cluster: {ids}", hint="use 'all'")
        return _pool(sorted(found, key=lambda device: -free[device.id])[:n], pools)
    cores = {name: pool.n_cores for name, pool in pools.items() if "cpu:0" in pool}
    if n < 1 or not cores:
        raise ConfigError(f"{n} devices cannot do anything", hint="ask for at least 1, or for 'all'")
    shares = partition.equal(n, len(cores))
    chosen: list[Device] = []
    for name, share in zip(cores, shares, strict=True):
        chosen += [_named(name, device) for device in pools[name].select(f"cpu*{share}")] if share else []
    return _pool(chosen, pools)


def _named(name: str, device: Device) -> Device:
    return replace(device, id=f"{name}/{device.id}") if name else device


def _pool(devices: Sequence[Device], pools: Mapping[str, DevicePool]) -> DevicePool:
    reports = [report for pool in pools.values() for report in pool.reports]
    return DevicePool(devices, reports=reports, n_cores=sum(pool.n_cores for pool in pools.values())).select(
        devices
    )
