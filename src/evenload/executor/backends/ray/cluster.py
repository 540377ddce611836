"""A Ray cluster: joining it, the devices of its machines, and an actor for a device."""

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec, families
from evenload.errors import ConfigError, NoUsableDevice
from evenload.executor.backends import WorkerOptions
from evenload.executor.backends.ray.actor import WorkerActor
from evenload.executor.backends.ray.nodes import Node, choose_on, list_devices, name_nodes

__all__ = ["Cluster"]

PROBE_S = 120.0  # for a machine to list its devices; its first process has to start
CLAIM_S = 60.0  # for an actor to start on a GPU that Ray lists as free
RELEASE_S = 2.0  # for Ray to list a GPU as free after its last user has ended
THREADS_OF_ACTOR = 8


class RayConnection:
    """The connection of this process to Ray. Its last user ends it, if evenload has started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._is_ours = False

    def join(self, ray: Any, address: str | None) -> None:
        with self._lock:
            if not ray.is_initialized():
                try:
                    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
                except (ConnectionError, ValueError, RuntimeError) as error:
                    where = address or os.environ.get("RAY_ADDRESS") or "this machine"
                    raise ConfigError(
                        f"no Ray cluster at {where}: {error}",
                        hint="`ray status` there says whether it runs; `ray start --head` starts one",
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


_CONNECTION = RayConnection()  # ray itself is one per process


class Cluster:
    """A cluster that the constructor joins and ``leave`` leaves.

    Raises ConfigError if there is none at ``address``.
    """

    def __init__(
        self,
        address: str | None,
        runtime_env: Mapping[str, Any] | None,
        reserve: bool,
        min_free_bytes: int,
        options: WorkerOptions,
    ):
        import ray

        self._ray: Any = ray
        self._runtime_env = dict(runtime_env) if runtime_env else None
        self._reserve = reserve
        self._min_free_bytes = min_free_bytes
        self._options = options
        self._is_joined = True
        self._claims: dict[str, Any] = {}  # actors that already hold a GPU, by device
        _CONNECTION.join(ray, address)
        self._nodes = self._find_nodes()

    def leave(self) -> None:
        if self._is_joined:
            self._is_joined = False
            for actor in self._claims.values():
                self._ray.kill(actor)
            _CONNECTION.leave(self._ray)

    def devices(self, spec: Spec) -> DevicePool:
        """Select the devices of the cluster that ``spec`` means; see ``nodes.choose_on``."""
        self._ask_nodes()
        wanted = families(spec) if not (isinstance(spec, str) and "/" in spec) else None
        if self._reserve and (wanted is None or wanted != {"cpu"}):
            self._claim_gpus()
        pool = choose_on(list(self._nodes.values()), spec, self._min_free_bytes)
        for device in set(self._claims) - set(pool.ids):
            self._ray.kill(self._claims.pop(device))
        return pool

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
        if not self._reserve:
            return 0, 0
        return (device.threads or 1, 0) if device.family == "cpu" else (0, 1)

    def _start_actor(self, node: str, n_cpus: float, n_gpus: int) -> Any:
        if node not in self._nodes:
            raise NoUsableDevice(
                f"{node!r} is no machine of this cluster", hint=f"its machines: {', '.join(self._nodes)}"
            )
        options = {
            "num_cpus": n_cpus,
            "num_gpus": n_gpus,
            "max_restarts": 0,
            "max_concurrency": THREADS_OF_ACTOR,
            "scheduling_strategy": self._on(self._nodes[node]),
            "runtime_env": self._runtime_env,
        }
        path = [entry or os.getcwd() for entry in sys.path]
        return self._ray.remote(WorkerActor).options(**options).remote(path, os.getcwd(), self._options)

    def _on(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.ray_id, soft=False)

    def _find_nodes(self) -> dict[str, Node]:
        """Return the machines that are alive, by their name in device ids: "" for this one."""
        here = self._ray.get_runtime_context().get_node_id()
        alive = [entry for entry in self._ray.nodes() if entry["Alive"]]
        return {node.name: node for node in name_nodes(alive, here)}

    def _ask_nodes(self) -> None:
        """Have each machine list its devices, all at the same time."""
        probe = self._ray.remote(list_devices)
        asked = {
            name: probe.options(
                num_cpus=0, max_retries=0, scheduling_strategy=self._on(node), runtime_env=self._runtime_env
            ).remote()
            for name, node in self._nodes.items()
        }
        self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=PROBE_S)
        for name, answer in asked.items():
            node = self._nodes[name]
            try:
                self._nodes[name] = replace(node, found=self._ray.get(answer, timeout=0))
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
                self._nodes[name] = replace(node, no_answer=reason)

    def _n_free_gpus(self, n_most: int) -> int:
        """Return how many GPUs are free. Ray's count is late: it may still have users that just ended."""
        until = time.monotonic() + RELEASE_S
        while True:
            n_free = int(self._ray.available_resources().get("GPU", 0))
            if n_free >= n_most or time.monotonic() >= until:
                return n_free
            time.sleep(0.1)

    def _claim_gpus(self) -> None:
        """Start an actor on each GPU that Ray lists as free, to learn which they are, and keep them."""
        held: dict[Any, tuple[str, Any]] = {}
        wanted = {name: int(node.n_gpus) for name, node in self._nodes.items() if node.accelerators}
        n_free = self._n_free_gpus(sum(wanted.values()))
        for name, n in wanted.items() if n_free else ():
            for _ in range(n):
                actor = self._start_actor(name, 0, 1)
                held[actor.hello.remote()] = (name, actor)
        n_likely = min(len(held), n_free)
        ready = self._ray.wait(list(held), num_returns=n_likely, timeout=CLAIM_S)[0] if n_likely else []
        given: dict[str, set[str]] = {name: set() for name in self._nodes}
        for answer, (name, actor) in held.items():
            device = None
            if answer in ready:
                device = self._nodes[name].accelerator_of(self._ray.get(answer)["gpus"])
            if device is None:
                self._ray.kill(actor)
                continue
            self._claims[device.id] = actor
            given[name].add(device.id)
        for name, node in self._nodes.items():
            self._nodes[name] = replace(node, given=frozenset(given[name]))
