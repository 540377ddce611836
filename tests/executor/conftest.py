"""The back ends that one and the same suite runs on."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import psutil
import pytest

from evenload.executor import Executor
from evenload.executor.loop import engine as engine_module
from evenload.executor.supervisor import supervisor as supervisor_module

LIMIT_S = 200.0
"""How long one turn of an engine may take, on a machine that does other things besides."""


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


@pytest.fixture(scope="module", autouse=True)
def workers_start_quickly(request: pytest.FixtureRequest) -> None:
    """Most of what a short run takes is its fork server's start, which tests of ``worker`` are about."""
    if request.path.parent.name != "worker":
        request.getfixturevalue("quick_servers")


TwoWorkers = Callable[[str], AbstractContextManager[Executor]]


@pytest.fixture(scope="module")
def two_workers(request: pytest.FixtureRequest) -> TwoWorkers:
    """``with two_workers(backend) as executor`` for tests that neither end nor count them."""

    def make(backend: str) -> AbstractContextManager[Executor]:
        if backend == "ray":
            return nullcontext(request.getfixturevalue("ray_executor"))
        return Executor("cpu*2", backend=backend, echo=False)

    return make


@pytest.fixture(scope="module")
def executor(backend: str, two_workers: TwoWorkers) -> Iterator[Executor]:
    with two_workers(backend) as executor:
        yield executor


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are told to leave are waited for: they may need long to get their turn."""
    monkeypatch.setattr(engine_module, "GRACE_S", 100.0)
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


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take turns in the middle of everything."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)
