"""For all tests: nothing is remembered from one to the next, no machine is too slow, no process is left."""

import atexit
import compileall
import gc
import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.runner import runtestprotocol
from examples_count import examples
from forked_workers import (  # noqa: F401
    forked_servers,
    python_that_has_read,
    quick_servers,
    start_servers_anew,
)
from hypothesis import HealthCheck, settings
from longest_first import longest_first, needs_cluster

os.environ["EVENLOAD_WARM_START"] = "0"  # before any program of a test inherits it
# Ray makes it 15: beside other tests its workers hardly get a turn.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name)
# Torch's threads that have nothing to do would turn in a circle, on cores that another test needs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background with Ctrl-C ignored, and programs of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take long on a machine that does other things besides.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),  # where a property says no number
)
settings.load_profile("any machine")

MARK = "EVENLOAD_TEST_RUN"
"""In the environment of everything that a run of the tests starts: the process id of the runner."""

STARTUP = Path(__file__).parent / "startup"
"""On the path of every program of the tests; see the file in it."""

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))

LEAVING_S = 60.0
"""How long processes of the last tests may take to leave, on a machine that does other things besides."""


WRITES_NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False
"""The files of the tests are kept compiled, whatever the environment says: each worker reads all."""


class Database(sqlite3.Connection):
    """A database that warns when it was not closed, as it does since Python 3.13."""

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):
            assert self.in_transaction is not None
            warnings.warn(f"unclosed database {self!r}", ResourceWarning, stacklevel=1)


if sys.version_info < (3, 13):
    sqlite3.connect = partial(sqlite3.connect, factory=Database)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[MARK] = str(os.getpid())
        package = importlib.util.find_spec("evenload")
        if package is not None and package.origin:  # else each process of a test would compile it again
            compileall.compile_dir(Path(package.origin).parent, quiet=2)
    else:
        start_servers_anew()


FORKED = ExitStack()
"""The process that workers of this runner are forked from."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if sys.platform == "linux" and len(specs) > 1:
        python = python_that_has_read(FORKED, [*map(str, config.invocation_params.args)])
        for at, spec in enumerate(specs):
            specs[at] = type(spec)(f"{spec}//python={python}")
            specs[at].id = spec.id


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from modules and tests, which stay to the end: a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000, 10, 30)  # torch and others, imported later, are looked through less often
        atexit.register(gc.unfreeze)  # libraries count at the end what they think was lost


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if n_workers > 1:
        items[:] = longest_first(items, n_workers)
    else:
        items.sort(key=needs_cluster, reverse=True)


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = WRITES_NO_BYTECODE


TOLD_S = 0.1
"""A phase that passed is told of if it took so long: ``--durations`` lists it."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have workers tell how a test went, not also that it began and ended: a third of a short test's time."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration >= TOLD_S:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: Any, nextitem: Any) -> Iterator[None]:
    """Stop the Ray cluster when the next test is of another module, and does not need it."""
    yield
    if nextitem is None or (nextitem.path != item.path and not needs_cluster(nextitem)):
        CLUSTER.stop()


def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run when a worker of the runner dies: the test that it was at is named, and fails."""
    if error:
        session = node.config.pluginmanager.getplugin("dsession")
        session.shouldstop = session.shouldstop or f"worker {node.gateway.id} died: {error}"
        for process in left_behind():  # the other workers would first do all that they were given
            process.kill()


def left_behind() -> Iterator[psutil.Process]:
    """Living processes that this run of the tests started, other than the runner."""
    for process in psutil.process_iter():
        try:
            is_ours = process.pid != os.getpid() and process.environ().get(MARK) == str(os.getpid())
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.Error, OSError):
            continue


LIMIT_S = 200.0
"""How long something that a test waits for may take, on a machine that does other things besides."""


@pytest.fixture
def until() -> Iterator[Callable[[Callable[[], object], str], None]]:
    """``until(condition, why)`` waits; it fails after a generous limit, or when a thread raised."""
    raised: list[BaseException] = []
    usual = threading.excepthook

    def note(args: threading.ExceptHookArgs) -> None:
        if isinstance(args.exc_value, Exception):
            raised.append(args.exc_value)
        usual(args)

    def wait(condition: Callable[[], object], why: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            if raised:
                raise AssertionError(f"a thread ended while the test waited: {why}") from raised[0]
            assert time.monotonic() < end, f"not so within {LIMIT_S:.0f} s: {why}"
            time.sleep(0.01)

    threading.excepthook = note
    yield wait
    threading.excepthook = usual


@pytest.fixture
def line_of() -> Callable[[Any, str], str]:
    """``line_of(stream, word)`` reads on to the line with ``word``; it fails if the program ends before."""

    def read(stream: Any, word: str) -> str:
        said = []
        for line in stream:
            if word in line:
                return line
            said.append(line)
        raise AssertionError(f"the program ended and did not write {word!r}: {''.join(said)}")

    return read


@pytest.fixture
def popen() -> Iterator[Callable[..., subprocess.Popen]]:
    """``subprocess.Popen`` for tests: what still runs when the test ends is killed, with its children."""
    programs: list[subprocess.Popen] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen:
        programs.append(subprocess.Popen(*arguments, **options))
        return programs[-1]

    yield start
    for program in programs:
        if program.poll() is None:
            with suppress(psutil.Error):
                for child in psutil.Process(program.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        child.kill()
            program.kill()
            program.wait(timeout=500)
        for pipe in (program.stdin, program.stdout, program.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a process of a test is still there, and name it; the runner's workers have left."""
    if hasattr(session.config, "workerinput"):
        return
    FORKED.close()
    until = time.monotonic() + LEAVING_S
    while any(True for _ in left_behind()) and time.monotonic() < until:
        time.sleep(0.1)
    for process in left_behind():
        try:
            print(f"\nLEFT BEHIND by a test: {process.pid} {' '.join(process.cmdline())[:300]}")  # noqa: T201
            process.kill()
        except psutil.Error:
            continue
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def started_cluster(options: dict[str, Any]) -> Any:
    """A Ray cluster. Its processes give up after 30 s, whatever else the machine does: others do then."""
    from ray.cluster_utils import Cluster

    before = set(psutil.Process().children(recursive=True))
    for tries_left in (2, 1, 0):
        try:
            return Cluster(initialize_head=True, head_node_args=options)
        except Exception:
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.Error):
                    process.kill()
            if not tries_left:
                raise
    return None


class SharedCluster:
    """The Ray cluster of this process, from the first test that needs it to the last one."""

    def __init__(self) -> None:
        self._life, self._head, self._executor = ExitStack(), None, None

    def head(self) -> Any:
        """Return the cluster; start it if there is none."""
        if self._head is None:
            self._head = self._life.enter_context(cluster_of_this_machine())
        return self._head

    def executor(self) -> Any:
        """Return two workers on it. They are not in Ray's books, where tests look for what is free."""
        from evenload.executor import Executor, Ray

        self.head()
        if self._executor is None:
            own = Executor("cpu*2", backend=Ray(reserve=False), echo=False)
            self._executor = self._life.enter_context(own)
        return self._executor

    def stop(self) -> None:
        self._head = self._executor = None
        self._life.close()


CLUSTER = SharedCluster()


@pytest.fixture(scope="module")
def ray_head() -> Any:
    """A Ray cluster of this machine alone, which this process is connected to. Others may join it."""
    return CLUSTER.head()


@pytest.fixture(scope="module")
def ray_executor(ray_head: Any) -> Any:
    """Two workers on the cluster, for all tests that end none: each is behind a process that imports Ray."""
    return CLUSTER.executor()


@contextmanager
def cluster_of_this_machine() -> Iterator[Any]:
    import ray

    from evenload.executor.backends.ray import backend as ray_backend

    folder = tempfile.mkdtemp(prefix="el", dir="/tmp")
    patch = pytest.MonkeyPatch()
    patch.setattr(ray_backend, "START_S", 200.0)  # actors start slowly where others work beside them
    patch.setattr(ray_backend, "KILL_S", 100.0)
    patch.setenv("RAY_TMPDIR", folder)  # a temp_dir leaves the address in /tmp/ray
    patch.setenv("RAY_DASHBOARD_STARTUP_TIMEOUT_S", "200")
    _make_ray_patient(patch)
    options: dict[str, Any] = {
        "num_cpus": 16,
        "num_gpus": 2,  # in Ray's books, whatever there is
        "include_dashboard": False,
        "object_store_memory": 512 * 2**20,
        "no_monitor": True,  # of the autoscaler, and of the logs: no test reads what they write
        "include_log_monitor": False,
    }
    with warnings.catch_warnings(), own_signals():
        cluster = started_cluster(options)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_signals() -> Iterator[None]:
    """Put back this process's handlers: those that Ray sets would be met by tests that know nothing of it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _make_ray_patient(patch: pytest.MonkeyPatch) -> None:
    """Let nodes take as long to start as anything else: Ray gives each 30 s, and has no setting for that."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    get_node, wait_for_node = services.get_node, Cluster._wait_for_node

    def get_node_in_time(*asked: Any) -> Any:
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                return get_node(*asked)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def wait_for_node_in_time(cluster: Any, node: Any) -> None:
        wait_for_node(cluster, node, LIMIT_S)

    patch.setattr(services, "get_node", get_node_in_time)
    patch.setattr(Cluster, "_wait_for_node", wait_for_node_in_time)


@pytest.fixture(scope="module")
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
        with own_signals():
            self.nodes[name] = self._cluster.add_node(num_cpus=n_cpus, node_name=name, **memory)

    def kill(self, name: str) -> None:
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)
