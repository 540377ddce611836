"""What is Ray's own: actors that die, drivers that are killed, two machines, books of resources."""

import itertools
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, NoUsableDevice, WorkerLost
from evenload.events import EventLog, WorkerExited
from evenload.executor import Executor, Ray
from evenload.executor.backends import make_backend
from evenload.executor.backends.ray import backend as ray_backend
from evenload.executor.backends.ray import cluster as ray_cluster_module
from evenload.executor.backends.ray.actor import ExchangeReply
from evenload.executor.backends.ray.backend import ActorChannel, Clock, RayBackend
from evenload.executor.backends.ray.nodes import NodeDevices
from evenload.executor.task.answer import Answer


def check_an_actor_that_dies(executor: Executor, marker: Path, *, repeatable: bool) -> None:
    def fn(x: int, marker: str = str(marker)) -> int:
        if x == 4 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getppid(), signal.SIGKILL)  # the actor
            time.sleep(100)
        return x

    got = list(executor.map(fn, range(12), repeatable=repeatable, on_error="return", policy="pull"))
    assert [x for x in got if x != 4 and isinstance(x, int)] == [x for x in range(12) if x != 4]
    if repeatable:
        assert got[4] == 4, repr(got[4])
    else:
        assert isinstance(got[4], WorkerLost)
        assert "unknown" in got[4].message
        assert "Ray actor" in got[4].message
        assert got[4].exit_code_of_worker is None
    assert list(executor.map(abs, range(5))) == list(range(5))


def test_an_actor_that_dies_is_replaced(ray_cluster: str, tmp_path: Path) -> None:
    events: list[Any] = []
    with Executor("cpu*2", backend="ray", echo=False, events=EventLog(events.append)) as executor:
        check_an_actor_that_dies(executor, tmp_path / "first", repeatable=True)
        check_an_actor_that_dies(executor, tmp_path / "second", repeatable=False)
    reasons = [event.reason for event in events if isinstance(event, WorkerExited)]
    assert sum("lost with its Ray actor" in reason for reason in reasons) == 2


def test_large_arrays_go_through_the_object_store_and_may_be_written_to(ray_executor: Executor) -> None:
    def fn(array: np.ndarray) -> np.ndarray:
        array += 1
        return array

    sent = [np.full(500_000, x, dtype=float) for x in range(6)]
    for x, got in enumerate(ray_executor.map(fn, sent)):
        assert (got == x + 1).all()
        got += 1
    assert all((array == x).all() for x, array in enumerate(sent)), "ours are our own"


def check_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, start_s, words in (
        (1000, 100.0, "not schedulable"),
        (10, 0.5, "got no actor from Ray in 0.5 s"),
    ):
        monkeypatch.setattr(ray_backend, "START_S", start_s)
        pool = DevicePool([Device("cpu:0", "cpu", "cpu", "CPU", threads=threads)])
        with Executor(pool, backend="ray", echo=False) as executor, pytest.raises(NoUsableDevice) as caught:
            list(executor.map(abs, range(3)))
        assert words in caught.value.causes["cpu:0"]
        assert f"It needs {threads} CPUs and 0 GPUs on this machine" in caught.value.causes["cpu:0"]


def test_what_the_cluster_cannot_give_is_named(ray_cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = Device("cpu:0", "cpu", "cpu", "CPU", threads=10)
    with Executor(DevicePool([most]), backend="ray", echo=False) as holder:
        assert list(holder.map(abs, [-1])) == [1]
        with Executor(DevicePool([most]), backend=Ray(reserve=False), echo=False) as beside:
            assert list(beside.map(abs, [-1])) == [1], "books or not"
        check_what_is_missing(monkeypatch)


def test_gpus_are_those_that_ray_gives(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch, until: Callable
) -> None:
    """The books are real; the GPUs are made up, and nothing is run on them that would notice."""
    import ray

    def two_gpus() -> NodeDevices:
        gpus = tuple(
            Device(f"cuda:{n}", "discrete", "cuda", "GPU", 10**10, uuid=f"GPU-{n}") for n in range(2)
        )
        cpu = Device("cpu:0", "cpu", "cpu", "CPU", threads=2)
        return NodeDevices((*gpus, cpu), (), {"cuda:0": 3 * 10**9, "cuda:1": 9 * 10**9})

    monkeypatch.setattr(ray_cluster_module, "list_devices", two_gpus)

    def environment(x: int) -> tuple:
        time.sleep(0.02)
        return tuple(map(os.environ.get, ("EVENLOAD_DEVICE", "CUDA_VISIBLE_DEVICES")))

    with Executor("cuda", backend="ray", echo=False) as executor:
        seen: set[tuple] = set()
        results = executor.map(environment, itertools.count(), policy="pull", ordered=False)
        while len(seen) < 2:
            seen.add(next(results))
        results.close()
        assert seen == {("cuda:0", "GPU-0"), ("cuda:1", "GPU-1")}
        until(lambda: ray.available_resources().get("GPU", 0) == 0, "taken in Ray's books")
        with pytest.raises(NoUsableDevice, match="Ray has given it to others"):
            Executor("cuda", backend="ray")
        with Executor(1, backend=Ray(reserve=False, min_free_bytes=4 * 10**9), echo=False) as beside:
            assert beside.devices.ids == ("cuda:1",), "the one with free memory"
    with Executor(1, backend="ray", echo=False) as executor:
        assert executor.devices.ids == ("cuda:1",)
        assert list(executor.map(abs, [-1])) == [1]
        until(lambda: ray.available_resources().get("GPU") == 1, "the other was given back")


def test_actors_and_workers_are_gone_after_closing(ray_cluster: str) -> None:
    with Executor("cpu*2", backend="ray", echo=False) as executor:
        pids = executor.map(lambda x: (time.sleep(0.02), os.getpid())[1], range(20), policy="pull")
        workers = [psutil.Process(pid) for pid in set(pids)]
        guards = [worker.parent() for worker in workers]
    assert all(guards)
    _, left = psutil.wait_procs([*workers, *guards], timeout=100)
    assert not left


def test_addresses_that_cannot_be_used_are_refused(ray_cluster: str) -> None:
    with pytest.raises(ConfigError, match="Ray Client"):
        Ray(address="ray://head:10001")
    with pytest.raises(ConfigError, match="one cluster per process"):
        Executor("cpu", backend=Ray(address="192.0.2.77:6379"))
    with pytest.raises(ConfigError, match="neither a name nor a backend"):
        make_backend(5)  # type: ignore[arg-type]
    with Executor("cpu", backend=Ray(address=ray_cluster), echo=False) as executor:
        assert list(executor.map(abs, [-2])) == [2]


# --- programs -------------------------------------------------------------------------------------


def start(popen: Callable, tmp_path: Path, body: str, *arguments: str) -> subprocess.Popen:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    return popen(
        [sys.executable, path, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )


def test_workers_leave_when_the_driver_is_killed(
    ray_cluster: str, tmp_path: Path, popen: Callable, line_of: Callable
) -> None:
    """Also those that hold the interpreter's lock; the cluster itself stays."""
    program = start(
        popen,
        tmp_path,
        """
        import ctypes, os, sys, evenload
        from evenload.executor import Ray
        def task(x):
            print("READY", os.getpid(), flush=True)
            ctypes.PyDLL(None).sleep(1000)
        list(evenload.map(task, range(2), devices="cpu*2", backend=Ray(address=sys.argv[1])))
        """,
        ray_cluster,
    )
    assert program.stderr is not None
    pids = [int(line_of(program.stderr, "READY").split()[-1]) for _ in range(2)]
    workers = [psutil.Process(pid) for pid in pids]
    program.kill()
    program.communicate(timeout=500)
    _, left = psutil.wait_procs(workers, timeout=100)
    for process in left:
        process.kill()
    assert not left


def finish(program: subprocess.Popen, timeout_s: float) -> tuple[str, str]:
    """What it has written; ended if it takes too long."""
    try:
        return program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        return program.communicate(timeout=500)


@pytest.mark.slow
def test_a_cluster_of_our_own_ends_with_its_last_executor(tmp_path: Path, popen: Callable) -> None:
    program = start(
        popen,
        tmp_path,
        """
        import evenload, psutil, ray
        from evenload.executor import Executor, Ray
        with Executor("cpu*1", backend="ray") as one:
            with Executor("cpu*1", backend=Ray(reserve=False)) as other:
                print(list(other.map(abs, [-1])), list(one.map(abs, [-2])))
            print(list(one.map(abs, [-3])), ray.is_initialized())
        print(ray.is_initialized())
        _, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=100)
        print(left)
        """,
    )
    output, errors = finish(program, 250)
    assert output.split("\n") == ["[1] [2]", "[3] True", "False", "[]", ""], errors


TWO_NODES = """
    import os, sys, time
    from ray.cluster_utils import Cluster
    import numpy as np, evenload
    from evenload.executor import Executor, Ray
    node = {"include_dashboard": False, "object_store_memory": 150 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 2, "node_name": "head"})
    east = cluster.add_node(num_cpus=3, node_name="east", **node)

    def where(x):
        time.sleep(0.05)
        return evenload.current_device().id, os.environ["EVENLOAD_DEVICE"]

    def summed(rank):
        import torch, torch.distributed as dist
        total = torch.ones(1) * (rank.number + 1)
        dist.all_reduce(total)
        return rank.device.id, total.item()

    def slow(x):
        time.sleep(0.05)
        return x

    with Executor("cpu*1", backend=Ray(address=cluster.address), echo=False) as executor:
        assert executor.devices.ids == ("cpu:0", "east/cpu:0"), executor.devices
        begun = executor.map(where, range(400), policy="pull")
        assert {next(begun) for _ in range(300)} == {(d, d) for d in executor.devices.ids}
        begun.close()
        got = executor.map(lambda a: a + 1, [np.zeros(300_000)] * 8, policy="pull")
        assert all((a == 1).all() for a in got)
        assert executor.gang(summed) == [("cpu:0", 3.0), ("east/cpu:0", 3.0)]
        results = executor.map(slow, range(300), policy="pull:3")
        first = [next(results) for _ in range(20)]
        cluster.remove_node(east, allow_graceful=False)
        assert first + list(results) == list(range(300))
        summary = results.summary
        assert list(executor.map(abs, range(-3, 0))) == [3, 2, 1]
    with Executor("all", backend=Ray(address=cluster.address), echo=False) as executor:
        assert {device.node for device in executor.devices} == {""}, "the lost machine is none any more"
    print("OK", summary.failed)
    cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_nodes_share_the_work_and_one_may_die(tmp_path: Path, popen: Callable) -> None:
    program = start(popen, tmp_path, TWO_NODES)
    output, errors = finish(program, 1100)
    assert output.splitlines()[-1:] == ["OK 0"], errors[-4000:]


def test_nothing_is_due_of_an_actor_that_was_lost_as_it_started() -> None:
    """Once its time passed, nobody waited for anything any more: a core was busy with asking for news."""
    backend = RayBackend()
    channel = ActorChannel(Device("cpu:0", "cpu", "cpu", "CPU"), Mock(), queue.SimpleQueue(), 0.0)
    backend._channels["cpu:0"] = channel
    assert backend._patience(None) == 0.0
    channel.is_lost = True
    assert backend._patience(None) is None


# --- clocks ---------------------------------------------------------------------------------------


def test_a_clock_is_narrowed_down_by_turns_and_believed_anew_when_it_drifts() -> None:
    clock = Clock()
    assert clock.behind_s == 0
    clock.hear(100.0, ExchangeReply(0, [], 40.5, 41.0), 102.0)  # ours is ahead by 59.5 to 61
    assert clock.behind_s == pytest.approx(60.25)
    clock.hear(200.0, ExchangeReply(1, [], 140.1, 150.0), 210.2)  # by 59.9 to 60.2
    assert clock.behind_s == pytest.approx(60.05)
    clock.hear(300.0, ExchangeReply(2, [], 235.0, 240.0), 305.2)  # by 65 to 65.2: it has drifted
    assert clock.behind_s == pytest.approx(65.1)
    answer = Answer([], {}, 200.0, 210.0, 10.0)
    clock.translate(answer, 265.2, 275.0)
    assert (answer.start_s, answer.stop_s) == (265.2, 275.0), "between sending and hearing"
    clock.is_ours = True
    assert clock.behind_s == 0
