"""A Ray cluster: joining it, the devices of its machines, and an actor for a device."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec, families
from evenload.errors import ConfigError, NoUsableDevice, UnknownName, quoted, reason_of
from evenload.executor.backends import FreeMemory, WorkerOptions
from evenload.executor.backends.ray.actor import WorkerActor
from evenload.executor.backends.ray.address import check_answers, find_address
from evenload.executor.backends.ray.nodes import Node, choose_on, list_devices, machines_in, name_nodes

JOIN_S = 10.0  # for a cluster to answer at its address
PROBE_S = 120.0  # for a machine to list its devices; its first process has to start
CLAIM_S = 60.0  # for an actor to start on a GPU that Ray lists as free
RELEASE_S = 2.0  # for Ray to list a GPU as free after its last user has ended
THREADS_OF_ACTOR = 8
LOOK_S = 1.0  # between two looks at Ray's list of machines: Ray itself tells nobody
LEAVE_S = 5.0  # for the thread that looks to end; it may wait for a cluster that does not answer


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of a user of a cluster; ``Ray`` says what each of them means."""

    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    reserve: bool = True
    min_free_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigError(
                f"address={quoted(self.address)} is a Ray Client, which carries no large arrays",
                hint="run the program on a machine of the cluster, or through `ray job submit`",
            )


class RayConnection:
    """The connection of this process to Ray. Its last user ends it, if evenload has started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._is_ours = False

    def join(self, ray: Any, address: str | None) -> None:
        with self._lock:
            if not ray.is_initialized():
                found = find_address(address, ray._private.utils.get_ray_address_file(None))
                if found is not None:
                    check_answers(found, JOIN_S)  # Ray itself would try for minutes, without a word
                try:
                    with _signals_kept():
                        _init(ray, address, n_tries=1 if found else 2)
                except Exception as error:
                    where = f"at {found.text}, from {found.source}" if found else "on this machine"
                    raise ConfigError(
                        f"no Ray cluster {where}: {reason_of(error)}",
                        hint=found.remedy if found else "`ray start --head` starts one",
                    ) from error
                self._is_ours, self._n_users = True, 0
            elif address not in (None, "auto", ray.get_runtime_context().gcs_address):
                connected = ray.get_runtime_context().gcs_address
                raise ConfigError(
                    f"this process is connected to Ray at {connected}, not {address}",
                    hint="use one cluster per process, or ray.shutdown() first",
                )
            self._n_users += 1

    def leave(self, ray: Any) -> None:
        with self._lock:
            self._n_users -= 1
            if self._is_ours and not self._n_users:
                self._is_ours = False
                ray.shutdown()


def _init(ray: Any, address: str | None, n_tries: int) -> None:
    """Connect to a cluster, or start one: Ray gives a node 30 s to start, which a busy machine exceeds."""
    for n_left in reversed(range(n_tries)):
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:
            if not n_left or "timed out during startup" not in str(error):
                raise


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Put the program's handlers back: Ray's own for SIGTERM aborts it, whatever it has still to write."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # not one of C
                signal.signal(number, handler)


_CONNECTION = RayConnection()  # ray itself is one per process


class Cluster:
    """A cluster that the constructor joins and ``leave`` leaves.

    Raises ConfigError if there is none at the address.
    """

    def __init__(self, settings: ClusterSettings, options: WorkerOptions):
        import ray

        self._ray: Any = ray
        self._settings, self._options = settings, options
        self._runtime_env = dict(settings.runtime_env) if settings.runtime_env else None
        self._is_joined = True
        self._claims: dict[str, Any] = {}  # actors that already hold a GPU, by device
        self._homes: dict[str, str] = {}  # Ray's ids of the machines of devices that were selected
        self._nodes: dict[str, Node] = {}
        self._met: set[str] = set()  # Ray's ids of machines whose devices were selected from, or left
        self._lock = threading.RLock()  # of the nodes: devices are asked for by any thread
        _CONNECTION.join(ray, settings.address)
        self.refresh()

    def leave(self) -> None:
        if self._is_joined:
            self._is_joined = False
            for actor in self._claims.values():
                self._ray.kill(actor)
            _CONNECTION.leave(self._ray)

    def refresh(self) -> frozenset[str]:
        """Look which machines are there; returns Ray's ids of them. Raises RuntimeError after ``leave``."""
        if not (self._is_joined and self._ray.is_initialized()):
            raise RuntimeError("the cluster was left")
        here = self._ray.get_runtime_context().get_node_id()
        alive = [entry for entry in self._ray.nodes() if entry["Alive"]]
        with self._lock:
            self._nodes = {node.name: node for node in name_nodes(alive, here, self._nodes.values())}
        return frozenset(entry["NodeID"] for entry in alive)

    def devices(self, spec: Spec) -> DevicePool:
        """Select the devices of the cluster that ``spec`` means; see ``nodes.choose_on``."""
        self.refresh()
        with self._lock:
            named = machines_in(spec)
            asked = [name for name in self._nodes if named is None or name in named]
            self._met |= {node.ray_id for node in self._nodes.values()}
        return self._select(spec, asked)

    def arrivals(self, spec: Spec) -> tuple[Device, ...]:
        """Select what ``spec`` means of the machines that have come since it was last asked for devices."""
        self.refresh()
        with self._lock:
            new = {name for name, node in self._nodes.items() if node.ray_id not in self._met}
            self._met |= {self._nodes[name].ray_id for name in new}
        if not new:
            return ()
        try:
            return tuple(device for device in self._select(spec, new) if device.node in new)
        except (NoUsableDevice, UnknownName):  # what is meant is not among them
            return ()

    def lost(self, devices: Iterable[Device]) -> tuple[str, ...]:
        """Return the ids of those whose machine is there no more."""
        alive = self.refresh()
        with self._lock:
            ids = {device.id: self._homes.get(device.id) for device in devices if device.node}
            known = {node.name for node in self._nodes.values()}
        gone = {device for device, home in ids.items() if home is not None and home not in alive}
        gone |= {
            device for device, home in ids.items() if home is None and device.rpartition("/")[0] not in known
        }
        return tuple(sorted(gone))

    def free_memory(self) -> FreeMemory:
        """Return what the machines said of their memory when they last listed their devices."""
        with self._lock:
            asked = {name: node.found for name, node in self._nodes.items() if node.found is not None}
        devices = {
            f"{name}/{device}" if name else device: n_bytes
            for name, found in asked.items()
            for device, n_bytes in found.free_bytes.items()
        }
        return FreeMemory(devices, {name: found.host_bytes for name, found in asked.items()})

    def _select(self, spec: Spec, asked: Collection[str]) -> DevicePool:
        """Select, after the machines ``asked`` have listed their devices anew."""
        self._ask_nodes(asked)
        wanted = families(spec) if machines_in(spec) is None else None
        claimed_before = set(self._claims)
        if self._settings.reserve and (wanted is None or wanted != {"cpu"}):
            self._claim_gpus(asked)
        with self._lock:
            nodes = dict(self._nodes)
        try:
            pool = choose_on(list(nodes.values()), spec, self._settings.min_free_bytes)
        except BaseException:
            self._give_back(set(self._claims) - claimed_before)
            raise
        self._give_back(set(self._claims) - claimed_before - set(pool.ids))
        self._homes |= {device.id: nodes[device.node].ray_id for device in pool if device.node in nodes}
        return pool

    def _give_back(self, devices: Iterable[str]) -> None:
        for device in devices:
            self._ray.kill(self._claims.pop(device))

    def actor(self, device: Device) -> Any:
        """Make an actor for ``device`` on its machine. It may take a while to start; see ``needs``."""
        claimed = self._claims.pop(device.id, None)
        return claimed if claimed is not None else self._start_actor(device.node, *self._share(device))

    def needs(self, device: Device) -> str:
        """Say in words which resources Ray has to find for the actor of ``device``."""
        n_cpus, n_gpus = self._share(device)
        return (
            f"{n_cpus:g} CPUs and {n_gpus} GPUs on {device.node or 'this machine'}, of those that Ray counts"
        )

    # --- inside -----------------------------------------------------------------------------------

    def _share(self, device: Device) -> tuple[float, int]:
        if not self._settings.reserve:
            return 0, 0
        return (device.threads or 1, 0) if device.family == "cpu" else (0, 1)

    def _start_actor(self, node: str, n_cpus: float, n_gpus: int) -> Any:
        found = self._nodes.get(node)
        if found is None:
            known = ", ".join(name or "this one" for name in self._nodes)
            raise NoUsableDevice(
                f"{quoted(node)} is no machine of this cluster, or no more", hint=f"its machines: {known}"
            )
        options = {
            "num_cpus": n_cpus,
            "num_gpus": n_gpus,
            "max_restarts": 0,
            "max_concurrency": THREADS_OF_ACTOR,
            "scheduling_strategy": self._on(found),
            "runtime_env": self._runtime_env,
        }
        path = [entry or os.getcwd() for entry in sys.path]
        return self._ray.remote(WorkerActor).options(**options).remote(path, os.getcwd(), self._options)

    def _on(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.ray_id, soft=False)

    def _learn(self, name: str, ray_id: str, **facts: Any) -> None:
        """Note ``facts`` of a machine, unless it has left meanwhile."""
        with self._lock:
            node = self._nodes.get(name)
            if node is not None and node.ray_id == ray_id:
                self._nodes[name] = replace(node, **facts)

    def _ask_nodes(self, names: Collection[str]) -> None:
        """Have these machines list their devices, all at the same time."""
        nodes = {name: node for name, node in self._nodes.items() if name in names}
        probe = self._ray.remote(list_devices)
        asked = {
            name: probe.options(
                num_cpus=0, max_retries=0, scheduling_strategy=self._on(node), runtime_env=self._runtime_env
            ).remote()
            for name, node in nodes.items()
        }
        if asked:
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=PROBE_S)
        for name, answer in asked.items():
            try:
                self._learn(name, nodes[name].ray_id, found=self._ray.get(answer, timeout=0))
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
                self._learn(name, nodes[name].ray_id, no_answer=reason)

    def _n_free_gpus(self, n_most: int) -> int:
        """Return how many GPUs are free. Ray's count is late: it may still have users that just ended."""
        until = time.monotonic() + RELEASE_S
        while True:
            n_free = int(self._ray.available_resources().get("GPU", 0))
            if n_free >= n_most or time.monotonic() >= until:
                return n_free
            time.sleep(0.1)

    def _claim_gpus(self, names: Collection[str]) -> None:
        """Start an actor on each GPU that Ray lists as free, to learn which they are, and keep them."""
        held: dict[Any, tuple[str, Any]] = {}
        nodes = {name: node for name, node in self._nodes.items() if name in names}
        wanted = {name: int(node.n_gpus) for name, node in nodes.items() if node.accelerators}
        n_free = self._n_free_gpus(sum(wanted.values()))
        for name, n in wanted.items() if n_free else ():
            for _ in range(n):
                actor = self._start_actor(name, 0, 1)
                held[actor.hello.remote()] = (name, actor)
        n_likely = min(len(held), n_free)
        ready = self._ray.wait(list(held), num_returns=n_likely, timeout=CLAIM_S)[0] if n_likely else []
        given: dict[str, set[str]] = {name: set() for name in nodes}
        for answer, (name, actor) in held.items():
            device = None
            if answer in ready:
                device = nodes[name].accelerator_of(self._ray.get(answer)["gpus"])
            if device is None:
                self._ray.kill(actor)
                continue
            self._claims[device.id] = actor
            given[name].add(device.id)
        for name, node in nodes.items():
            self._learn(name, node.ray_id, given=frozenset(given[name]))


class NodeWatch:
    """A watch over the machines of a cluster, until ``close``.

    look     returns Ray's ids of the machines that are alive
    changed  called in the watch's own thread when these are others than before
    """

    def __init__(self, look: Callable[[], frozenset[str]], changed: Callable[[], None]):
        self._look, self._changed = look, changed
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="evenload-machines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(LEAVE_S)

    def _watch(self) -> None:
        seen: frozenset[str] | None = None
        while not self._is_over.wait(0.0 if seen is None else LOOK_S):
            try:
                alive = self._look()
                if seen is not None and alive != seen and not self._is_over.is_set():
                    self._changed()
                seen = alive
            except Exception:
                # The cluster does not answer, or the executor is closing: the next look shows what is so.
                seen = seen or frozenset()
