"""What real tasks do to worker processes: one bad item beside eleven healthy ones, and worse."""

import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
from bad_item import BAD, HEALTHY, N, run

from evenload.devices import current_device
from evenload.errors import ConfigError, ResultNotSendable, TaskError, TaskTimeout, WorkerLost
from evenload.events import EventLog, Note
from evenload.executor import Executor

# What misbehaves is of this module, which workers cannot import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def executor(threaded: str) -> Iterator[Executor]:
    with Executor("cpu*2", backend=threaded, echo=False) as executor:
        yield executor


class CannotBeRebuilt(Exception):
    def __init__(self, a: str, b: str):
        super().__init__(a)


# --- twelve faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"policy": "pull:6"}, {"repeatable": False}])
def test_an_item_that_crashes_every_worker_is_given_up(executor: Executor, options: dict) -> None:
    got = run(executor, lambda x: ctypes.string_at(0), **options)
    assert isinstance(got, WorkerLost)
    assert got.exit_code_of_worker == -signal.SIGSEGV
    assert "SIGSEGV" in got.message
    assert "Segmentation fault" in got.remote_traceback, "its last words are kept"
    assert ("unknown" in got.message) == (not options.get("repeatable", True))


def test_items_over_their_time_limit_are_ended_with_all_they_started(
    executor: Executor, until: Callable[..., None]
) -> None:
    """The limit is one that no healthy item comes near, however busy the machine is."""
    started = ["sleep", f"{1000 + random.random():.9f}"]  # other tests of this machine start others
    hangs: dict[int, Callable[[], Any]] = {
        BAD: lambda: time.sleep(1000),
        BAD + 1: lambda: ctypes.PyDLL(None).sleep(1000),  # never lets go of the interpreter's lock
        BAD + 2: lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), subprocess.run(started)),
    }

    def task(x: int) -> int:
        hangs.get(x, lambda: None)()
        return x

    got = list(executor.map(task, range(N), policy="pull", timeout_s=4.0, on_error="return"))
    assert [x for x in got if isinstance(x, int)] == [x for x in range(N) if x not in hangs]
    for x in hangs:
        assert isinstance(got[x], TaskTimeout)
        assert "longer than 4 s" in got[x].message
    assert list(executor.map(abs, range(5))) == list(range(5)), "usable afterwards"
    until(
        lambda: not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == started],
        "it ended",
    )


def test_a_hang_without_any_limit_leaves_a_worker_free(threaded: str) -> None:
    """Of two, the second may be at a copy of the item, which is taken back when there is other work."""
    with Executor("cpu*2", backend=threaded, echo=False) as own:
        results = own.map(lambda x: time.sleep(1000) if x == BAD else x, range(N), ordered=False)
        assert sorted(next(results) for _ in HEALTHY) == HEALTHY
        assert own.submit(abs, -1).result(100) == 1
        results.close()


@pytest.mark.parametrize("n_items", [6, 400])
def test_what_a_stopped_worker_holds_is_done_by_the_other(tmp_path: Path, n_items: int) -> None:
    def task(x: int) -> int:
        if x == n_items - 2:
            with contextlib.suppress(FileExistsError):
                (tmp_path / "stopped").mkdir()
                os.kill(os.getpid(), signal.SIGSTOP)
        return -x

    with Executor("cpu*2", echo=False) as own:
        results = own.map(task, range(n_items))
        assert list(results) == [-x for x in range(n_items)]
        assert (tmp_path / "stopped").exists()
        assert results.summary.duplicates
        assert not results.summary.retries
        assert list(own.map(abs, [-1, -2, -3, -4])) == [1, 2, 3, 4], "usable afterwards"


class Rebuilds:
    """Unpickling it runs ``code``."""

    def __init__(self, code: str):
        self.code = code

    def __reduce__(self) -> tuple:
        return exec, (self.code,)


def raise_with_a_generator(x: int) -> None:
    error = ValueError("holds a generator")
    error.generator = (i for i in "ab")  # type: ignore[attr-defined]
    raise error


def raise_what_cannot_be_rebuilt(x: int) -> None:
    raise CannotBeRebuilt("first", "second")


@pytest.mark.parametrize(
    ("misbehave", "kind", "said"),
    [
        (raise_with_a_generator, TaskError, "holds a generator"),
        (raise_what_cannot_be_rebuilt, TaskError, "CannotBeRebuilt: first"),
        (lambda x: (i for i in "ab"), ResultNotSendable, "generator"),
        (lambda x: Rebuilds("raise LookupError('not here')"), ResultNotSendable, "LookupError"),
    ],
    ids=["an error pickled", "an error unpickled", "a result pickled", "a result unpickled"],
)
def test_what_cannot_travel_back_is_its_items_error(
    executor: Executor, misbehave: Any, kind: type, said: str
) -> None:
    for policy in ("measured", "pull:6"):
        got = run(executor, misbehave, policy=policy)
        assert type(got) is kind
        assert said in got.message


@pytest.mark.parametrize(
    "item", [Rebuilds("raise LookupError('not here')"), (i for i in "ab")], ids=["unpickled", "pickled"]
)
def test_an_item_that_cannot_be_sent(executor: Executor, item: Any) -> None:
    items: list[Any] = [*range(BAD), item, *range(BAD + 1, N)]
    for policy in ("measured", "pull:6"):
        for batch in (None, 4):
            options: Any = {"policy": policy, "batch": batch, "on_error": "return"}
            got = list(executor.map(lambda x: x, items, **options))
            assert [got[x] for x in HEALTHY] == HEALTHY
            assert isinstance(got[BAD], TaskError)
            assert f"item {BAD} cannot be sent" in got[BAD].message


@pytest.mark.parametrize("batch", [None, 4])
def test_an_item_that_crashes_the_worker_as_it_is_read(executor: Executor, batch: int | None) -> None:
    items: list[Any] = [*range(BAD), Rebuilds("import os; os._exit(9)"), *range(BAD + 1, N)]
    got = list(executor.map(lambda x: x, items, policy="pull:6", batch=batch, on_error="return"))
    assert [got[x] for x in HEALTHY] == HEALTHY
    assert isinstance(got[BAD], WorkerLost)


@pytest.mark.parametrize("leave", [lambda x: sys.exit(3), lambda x: exec("raise KeyboardInterrupt")])
def test_leaving_is_an_error_of_the_item(executor: Executor, leave: Any) -> None:
    assert isinstance(run(executor, leave).__cause__, SystemExit | KeyboardInterrupt)


def test_items_that_move_their_process_s_clock_move_no_figure(executor: Executor) -> None:
    moved_s = {4: -1e9, 10: 1e9, 16: float("nan"), 22: float("-inf")}

    def task(x: int) -> int:
        if x in moved_s:
            now = time.monotonic()
            time.monotonic = lambda: now + moved_s[x]  # as a test that freezes the time
        return x

    run = executor.map(task, range(24), fresh=3)
    assert list(run) == list(range(24))
    assert all(0 <= share.busy_s <= run.summary.wall_s for share in run.summary.devices.values())
    assert list(executor.map(abs, range(N))) == list(range(N))


# --- what a worker has built is alive, and what it talks to is dead --------------------------------


class TalksToServer:
    """A model behind a server of its own, which the first item ends: from then on it fails everything."""

    def __init__(self, device: Any):
        self._device = device.id
        self._server = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __call__(self, item: tuple[int, str]) -> int:
        number, mark = item
        if not os.path.exists(mark):
            open(mark, "w").close()
            self._server.kill()
            self._server.wait(100)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(b"%d\n" % number)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.kill()
        self._server.communicate(timeout=100)


@pytest.mark.parametrize("devices", ["cpu*1", "cpu*2"])
def test_what_is_dead_behind_a_living_object_is_built_anew(
    backend: str, devices: str, tmp_path: Path
) -> None:
    """The oracle is the server, which answers with what it was told: every item's own number."""
    items = [(number, str(tmp_path / "mark")) for number in range(12)]
    with Executor(devices, backend=backend, echo=False) as executor:
        assert list(executor.map(TalksToServer, items, retries=3)) == list(range(12))


def test_a_device_that_fails_all_that_others_do_is_left() -> None:
    """Inline, devices take turns, so what comes when does not depend on the machine."""

    def task(item: int) -> str:
        time.sleep(0.02)  # so that the pause before a second try ends before the items do
        device = current_device()
        assert device is not None
        if device.id == "cpu:1":
            raise RuntimeError("the driver is gone")
        return device.id

    events: list[Any] = []
    with Executor("cpu*2", backend="inline", echo=False, events=EventLog(events.append)) as executor:
        assert list(executor.map(task, range(40), retries=1)) == ["cpu:0"] * 40
    notes = [one.text for one in events if isinstance(one, Note)]
    assert [text for text in notes if "cpu:1 takes no part in map: it fails what other devices do" in text]


# --- a limit of memory -----------------------------------------------------------------------------

HUNGRY = "import time; kept = bytearray(400_000_000); time.sleep(1000)"


@pytest.mark.parametrize(
    ("threaded", "who"),
    [("process", "itself"), ("process", "a process that it starts"), ("ray", "a process that it starts")],
    indirect=["threaded"],
)
def test_an_item_over_the_limit_of_memory_ends_alone_and_says_how_much_it_used(
    threaded: str, who: str
) -> None:
    """The oracle is the item, which keeps twice the limit, and waits to be ended."""

    def task(item: int) -> int:
        if item != 3:
            return item
        if who == "itself":
            exec(HUNGRY)
        return subprocess.run([sys.executable, "-c", HUNGRY], check=False).returncode

    with Executor("cpu*2", backend=threaded, echo=False, memory_limit="200 MB") as executor:
        got = list(executor.map(task, range(6), on_error="return"))
        assert [one for at, one in enumerate(got) if at != 3] == [0, 1, 2, 4, 5]
        assert isinstance(got[3], WorkerLost)
        assert re.search(
            r"item 3 .* used (2\d\d|3\d\d|4\d\d) MB, more than its memory_limit of 200 MB", str(got[3])
        )
        assert "raise memory_limit" in str(got[3])
        assert list(executor.map(abs, [-1])) == [1], "the executor goes on"


def test_items_that_leak_are_all_done_within_the_limit() -> None:
    """No item needs much; what they leave behind would be twice the limit."""
    kept: list[bytearray] = []

    def leak(item: int) -> int:
        kept.append(bytearray(50_000_000))
        time.sleep(0.12)  # so that the limit is looked at while the item runs
        return item

    with Executor("cpu*1", echo=False, memory_limit="220 MB") as executor:
        results = executor.map(leak, range(10))
        assert list(results) == list(range(10))
        assert results.summary is not None
        assert results.summary.workers_lost >= 1


def test_a_limit_of_memory_is_refused_where_there_is_no_worker() -> None:
    with pytest.raises(ConfigError, match="inline"):
        Executor("cpu*1", backend="inline", memory_limit="1 GB")
