"""The back ends that one and the same suite runs on."""

import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from evenload.executor import Executor
from evenload.executor.backends.ray import backend as ray_backend
from evenload.executor.loop import engine_thread as engine_thread_module
from evenload.executor.supervisor import supervisor as supervisor_module

LIMIT_S = 200.0
"""How long one turn of an engine may take, on a machine that does other things besides."""


@pytest.fixture(scope="session")
def ray_head() -> Iterator[Any]:
    """A Ray cluster of this machine alone, which this process is connected to. Others may join it."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="el", dir="/tmp")
    patch = pytest.MonkeyPatch()
    patch.setattr(ray_backend, "START_S", 200.0)  # actors start slowly where others work beside them
    patch.setattr(ray_backend, "KILL_S", 100.0)
    patch.setenv("RAY_DASHBOARD_STARTUP_TIMEOUT_S", "200")
    options: dict[str, Any] = {
        "num_cpus": 16,
        "num_gpus": 2,  # in Ray's books, whatever there is
        "include_dashboard": False,
        "object_store_memory": 512 * 2**20,
        "temp_dir": folder,
    }
    with warnings.catch_warnings():
        try:
            cluster = Cluster(initialize_head=True, head_node_args=options)
        except Exception:  # its processes have 30 s to start: more cannot be asked for
            cluster = Cluster(initialize_head=True, head_node_args=options)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster(ray_head: Any) -> str:
    """The address of a Ray cluster of this machine, which this process is connected to."""
    return ray_head.address


@pytest.fixture
def machines(ray_head: Any, until: Callable[..., None]) -> Iterator["Machines"]:
    """More machines (Ray nodes, here) that join the cluster and are killed; none is left after the test."""
    import ray

    joined = Machines(ray_head)
    yield joined
    for name in tuple(joined.nodes):
        joined.kill(name)
    until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1, "the cluster is this machine alone")


class Machines:
    """Machines beside the cluster's first, by name."""

    def __init__(self, cluster: Any):
        self.nodes: dict[str, Any] = {}
        self._cluster = cluster

    def join(self, name: str, n_cpus: int = 2) -> None:
        memory = {"object_store_memory": 80 * 2**20}
        self.nodes[name] = self._cluster.add_node(num_cpus=n_cpus, node_name=name, **memory)

    def kill(self, name: str) -> None:
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)


@pytest.fixture(scope="module", params=["inline", "process", "ray"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each back end."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture(scope="module", params=["process", "ray"])
def threaded(request: pytest.FixtureRequest) -> str:
    """Each back end with workers of their own, which may crash."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture(scope="module")
def executor(backend: str) -> Iterator[Executor]:
    with Executor("cpu*2", backend=backend, echo=False) as executor:
        yield executor


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are told to leave are waited for: they may need long to get their turn."""
    monkeypatch.setattr(engine_thread_module, "GRACE_S", 100.0)
    monkeypatch.setattr(supervisor_module, "LEAVE_S", 100.0)


@pytest.fixture
def come_to_rest(until: Callable[..., None]) -> Callable[[Executor, Callable[[], int]], int]:
    """``come_to_rest(executor, count)`` waits until ``count()`` stays as it is, and returns it.

    It stays if the engine has had thirty turns, one after another, to read, deal and send more."""

    def wait(executor: Executor, count: Callable[[], int]) -> int:
        seen: list[int] = []

        def rests() -> bool:
            has_turned = threading.Event()
            executor._engine.call(has_turned.set)
            if executor._is_threaded:
                assert has_turned.wait(LIMIT_S)
            else:
                executor._engine.step(0.0)
            seen.append(count())
            return len(seen) > 30 and len(set(seen[-30:])) == 1

        until(rests, "no more is done")
        return seen[-1]

    return wait


@pytest.fixture
def left_behind() -> Callable[[], list[psutil.Process]]:
    """The processes that came since the test began. A browser or a cluster of other tests may run on."""
    before = {process.pid for process in psutil.Process().children()}
    return lambda: [process for process in psutil.Process().children() if process.pid not in before]
