"""What real jobs do to worker processes: one bad item beside eleven healthy ones, and worse."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import evenload
from evenload.errors import NoUsableDevice, ResultNotSendable, TaskError, TaskTimeout, WorkerLost
from evenload.events import EventLog, Note, Span, WorkerExited, WorkerStarted
from evenload.executor import Executor

N, BAD = 12, 4
HEALTHY = [x for x in range(N) if x != BAD]


@pytest.fixture(scope="module")
def executor(threaded: str) -> Iterator[Executor]:
    with Executor("cpu*2", backend=threaded, echo=False) as executor:
        yield executor


def run(executor: Executor, misbehave: Callable[[int], Any], **options: Any) -> Any:
    """Map twelve items, one of which misbehaves; check the others and return what became of it."""

    def task(x: int) -> Any:
        if x == BAD:
            return misbehave(x)
        time.sleep(0.005)
        return x

    got = list(executor.map(task, range(N), on_error="return", **options))
    assert [got[x] for x in HEALTHY] == HEALTHY
    assert list(executor.map(abs, range(5))) == list(range(5)), "usable afterwards"
    return got[BAD]


class CannotBeRebuilt(Exception):
    def __init__(self, a: str, b: str):
        super().__init__(a)


def once(folder: Path, then: Callable[[], Any]) -> Callable[[int], int]:
    """Misbehave the first time only."""

    def misbehave(x: int, marker: str = str(folder / "marker")) -> int:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return x
        then()
        return -1

    return misbehave


# --- twelve faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["measured", "pull:6"])
def test_a_worker_killed_once_costs_nothing(executor: Executor, tmp_path: Path, policy: str) -> None:
    got = run(executor, once(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL)), policy=policy)
    assert got == BAD


@pytest.mark.parametrize("options", [{}, {"policy": "pull:6"}, {"repeatable": False}])
def test_an_item_that_crashes_every_worker_is_given_up(executor: Executor, options: dict) -> None:
    got = run(executor, lambda x: ctypes.string_at(0), **options)
    assert isinstance(got, WorkerLost)
    assert got.exit_code_of_worker == -signal.SIGSEGV
    assert "SIGSEGV" in got.message
    assert "Segmentation fault" in got.remote_traceback, "its last words are kept"
    assert ("unknown" in got.message) == (not options.get("repeatable", True))


def test_in_a_batch_the_crashing_item_alone_is_given_up(executor: Executor) -> None:
    def task(xs: list[int]) -> list[int]:
        if BAD in xs:
            os._exit(7)
        return xs

    got = list(executor.map(task, range(N), batch=4, on_error="return"))
    assert [got[x] for x in HEALTHY] == HEALTHY
    assert isinstance(got[BAD], WorkerLost)
    assert got[BAD].exit_code_of_worker == 7


def test_items_over_their_time_limit_are_ended_with_all_they_started(executor: Executor) -> None:
    """The limit is one that no healthy item comes near, however busy the machine is."""
    hangs: dict[int, Callable[[], Any]] = {
        BAD: lambda: time.sleep(1000),
        BAD + 1: lambda: ctypes.PyDLL(None).sleep(1000),  # never lets go of the interpreter's lock
        BAD + 2: lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), subprocess.run(["sleep", "1000"])),
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
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1000"]]


def test_a_hang_without_any_limit_leaves_a_worker_free(threaded: str) -> None:
    with Executor("cpu*3", backend=threaded, echo=False) as own:
        results = own.map(lambda x: time.sleep(1000) if x == BAD else x, range(N), ordered=False)
        assert sorted(next(results) for _ in HEALTHY) == HEALTHY
        assert own.submit(abs, -1).result(100) == 1
        results.close()


def test_an_exception_that_cannot_be_pickled(executor: Executor) -> None:
    def misbehave(x: int) -> None:
        error = ValueError("holds a generator")
        error.generator = (i for i in "ab")  # type: ignore[attr-defined]
        raise error

    got = run(executor, misbehave)
    assert type(got) is TaskError
    assert "holds a generator" in got.message


def test_an_exception_that_cannot_be_unpickled(executor: Executor) -> None:
    def misbehave(x: int) -> None:
        raise CannotBeRebuilt("first", "second")

    got = run(executor, misbehave)
    assert type(got) is TaskError
    assert "CannotBeRebuilt: first" in got.message


@pytest.mark.parametrize("policy", ["measured", "pull:6"])
def test_a_result_that_cannot_be_pickled(executor: Executor, policy: str) -> None:
    got = run(executor, lambda x: (i for i in "ab"), policy=policy)
    assert isinstance(got, ResultNotSendable)
    assert "generator" in got.message


class OnlyIn:
    """Unpickles in the process ``pid`` only, or (negative) in any other."""

    def __init__(self, pid: int):
        self.pid = pid

    def __reduce__(self) -> tuple:
        def rebuild(pid: int) -> "OnlyIn":
            import os

            if (pid > 0) == (os.getpid() != abs(pid)):
                raise LookupError("not here")
            return OnlyIn(pid)

        import cloudpickle

        return cloudpickle.loads, (cloudpickle.dumps(lambda: rebuild(self.pid)),)


class Rebuilds:
    """Unpickling it runs ``code``."""

    def __init__(self, code: str):
        self.code = code

    def __reduce__(self) -> tuple:
        return exec, (self.code,)


@pytest.mark.parametrize("policy", ["measured", "pull:6"])
def test_a_result_that_cannot_be_unpickled(executor: Executor, policy: str) -> None:
    got = run(executor, lambda x: Rebuilds("raise LookupError('not here')"), policy=policy)
    assert isinstance(got, ResultNotSendable)
    assert "LookupError" in got.message


@pytest.mark.parametrize("policy", ["measured", "pull:6"])
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize(
    "item", [Rebuilds("raise LookupError('not here')"), (i for i in "ab")], ids=["unpickled", "pickled"]
)
def test_an_item_that_cannot_be_sent(executor: Executor, policy: str, batch: int | None, item: Any) -> None:
    items: list[Any] = list(range(N))
    items[BAD] = item
    fn = (lambda xs: xs) if batch else (lambda x: x)
    got = list(executor.map(fn, items, policy=policy, batch=batch, on_error="return"))
    assert [got[x] for x in HEALTHY] == HEALTHY
    assert isinstance(got[BAD], TaskError)
    assert f"item {BAD} cannot be sent" in got[BAD].message


def test_an_item_that_crashes_the_worker_as_it_is_read(executor: Executor) -> None:
    items: list[Any] = list(range(N))
    items[BAD] = Rebuilds("import os; os._exit(9)")
    got = list(executor.map(lambda x: x, items, policy="pull:6", on_error="return"))
    assert [got[x] for x in HEALTHY] == HEALTHY
    assert isinstance(got[BAD], WorkerLost)


@pytest.mark.parametrize("leave", [lambda x: sys.exit(3), lambda x: exec("raise KeyboardInterrupt")])
def test_leaving_is_an_error_of_the_item(executor: Executor, leave: Any) -> None:
    assert isinstance(run(executor, leave).__cause__, SystemExit | KeyboardInterrupt)


def test_a_worker_that_closes_its_files_is_replaced(executor: Executor) -> None:
    assert isinstance(run(executor, lambda x: (os.closerange(0, 100), time.sleep(1000))), WorkerLost)


def test_results_of_tens_of_megabytes(executor: Executor) -> None:
    assert len(run(executor, lambda x: bytes(50_000_000))) == 50_000_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_result_of_three_gigabytes(executor: Executor) -> None:
    if psutil.virtual_memory().available < 14 * 2**30:
        pytest.skip("needs 14 GB of free memory")
    got = run(executor, lambda x: __import__("numpy").ones(3 * 2**30, dtype="u1"))
    assert got.nbytes == 3 * 2**30
    assert got[-1] == 1


# --- workers --------------------------------------------------------------------------------------


def test_a_worker_that_died_between_calls_is_replaced(executor: Executor) -> None:
    for pid in set(executor.map(lambda x: os.getpid(), range(20))):
        os.kill(pid, signal.SIGKILL)
    assert list(executor.map(abs, range(20))) == list(range(20))


def test_a_worker_busy_with_what_nobody_needs_is_replaced(threaded: str, tmp_path: Path) -> None:
    def slow_once(x: int, marker: str = str(tmp_path / "marker")) -> int:
        if x == 5:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return x
            time.sleep(1000)
        time.sleep(0.01)
        return x

    events: list[Any] = []
    with Executor("cpu*3", backend=threaded, events=EventLog(events.append), echo=False) as own:
        assert list(own.map(slow_once, range(6))) == list(range(6)), "a copy was faster"
        where = own.map(
            lambda x: (time.sleep(0.01), os.environ["EVENLOAD_DEVICE"])[1], iter(int, 1), policy="pull"
        )
        while {next(where) for _ in range(12)} != {"cpu:0", "cpu:1", "cpu:2"}:
            pass
    assert any("nobody needed" in e.reason for e in events if isinstance(e, WorkerExited))


def test_workers_have_their_environment_and_a_group_of_their_own(executor: Executor) -> None:
    def look(x: int) -> tuple:
        time.sleep(0.01)
        names = ("EVENLOAD_DEVICE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        sigint = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return (*map(os.environ.get, names), os.getpgrp() == os.getpid(), sigint)

    seen: set[tuple] = set()
    results = executor.map(look, itertools.count(), policy="pull")
    while len(seen) < 2:
        seen.add(next(results))
    results.close()
    assert seen == {("cpu:0", "1", "", True, True), ("cpu:1", "1", "", True, True)}


def test_what_workers_write_comes_with_their_name(threaded: str, capfd: pytest.CaptureFixture[str]) -> None:
    def talk(x: int) -> None:
        import logging

        print("printed")  # noqa: T201
        logging.getLogger("some.library").warning("logged")
        os.write(1, b"written without Python\n")
        print("an unfinished line", end="")  # noqa: T201

    events: list[Any] = []
    list(evenload.map(talk, [1], devices="cpu*1", backend=threaded, events=EventLog(events.append)))
    shown = capfd.readouterr().err
    for line in ("printed", "logged", "written without Python", "an unfinished line"):
        assert f"[cpu:0] {line}" in shown
        assert any(isinstance(e, Note) and e.source == "cpu:0" and line in e.text for e in events)


def test_a_flood_of_output_blocks_nobody(executor: Executor) -> None:
    assert run(executor, lambda x: sys.stdout.write(("x" * 1000 + "\n") * 2000) and x) == BAD
    assert run(executor, lambda x: os.write(1, b"y" * 1_000_000) and x) == BAD


@pytest.mark.usefixtures("patient")
def test_events_tell_of_deaths(threaded: str, tmp_path: Path) -> None:
    events: list[Any] = []
    with Executor("cpu*2", backend=threaded, events=EventLog(events.append), echo=False) as own:
        run(own, once(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert [e.reason for e in events if isinstance(e, WorkerExited)].count("was killed by SIGKILL") == 1
    assert [e.reason for e in events if isinstance(e, WorkerExited)].count("closed") == 2
    assert len([e for e in events if isinstance(e, WorkerStarted)]) >= 2
    assert len([e for e in events if isinstance(e, Span) and e.status == "lost"]) == 1


def test_devices_whose_workers_never_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, words in (("/bin/false", "exit code 1"), ("/does/not/exist", "could not be started")):
        monkeypatch.setattr(sys, "executable", program)
        with Executor("cpu*2", echo=False) as own, pytest.raises(NoUsableDevice) as caught:
            list(own.map(abs, range(3)))
        assert set(caught.value.causes) == {"cpu:0", "cpu:1"}
        assert all(words in why for why in caught.value.causes.values())


def test_the_last_words_of_workers_that_never_start_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pickle.py").write_text("raise RuntimeError('I am not the real one')")
    monkeypatch.syspath_prepend(tmp_path)
    with Executor("cpu*1", echo=False) as own, pytest.raises(NoUsableDevice) as caught:
        list(own.map(abs, range(3)))
    cause = caught.value.causes["cpu:0"]
    assert "times before it had a result, saying: RuntimeError: I am not the real one" in cause


def test_a_constructor_that_kills_its_worker_is_a_refusal(threaded: str) -> None:
    class Deadly:
        def __init__(self) -> None:
            os._exit(5)

        def __call__(self, x: int) -> int:
            return x

    with Executor("cpu*1", backend=threaded, echo=False) as own:
        with pytest.raises(NoUsableDevice, match=r"exit code 5.*building"):
            list(own.map(Deadly, range(3)))
        assert list(own.map(abs, range(3))) == list(range(3))


def test_a_device_that_disappears_costs_nothing_but_its_speed(tmp_path: Path) -> None:
    """Its driver has lost it: the worker dies, and those that replace it cannot open it any more."""

    class Model:
        def __init__(self, device: Any, lost: str = str(tmp_path / "lost")):
            self.device, self.lost = device.id, lost
            if self.device == "cpu:1" and os.path.exists(lost):
                raise RuntimeError("no such device")

        def __call__(self, x: int) -> int:
            time.sleep(0.005)
            if self.device == "cpu:1" and x > 20:
                with open(self.lost, "w"):
                    os.kill(os.getpid(), signal.SIGKILL)
            return x

    events: list[Any] = []

    def until_told() -> Iterator[int]:
        for x in itertools.count():
            yield x
            if any("cpu:1 takes no part" in e.text for e in tuple(events) if isinstance(e, Note)):
                return

    with Executor("cpu*3", events=EventLog(events.append), echo=False) as own:
        got = list(own.map(Model, until_told(), policy="pull", look_ahead=50))
        assert got == list(range(len(got)))
        warnings = [e.text for e in events if isinstance(e, Note) and e.level == "warning"]
        assert any("cpu:1 takes no part" in text and "no such device" in text for text in warnings)
        assert [e.reason for e in events if isinstance(e, WorkerExited)] == ["was killed by SIGKILL"]
        assert list(own.map(abs, range(10))) == list(range(10))


def test_nothing_is_left_behind() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    list(evenload.map(abs, range(3), devices="cpu*2"))
    before = open_files(), threading.active_count(), len(psutil.Process().children(recursive=True))
    for n in (3, 0):
        list(evenload.map(abs, iter(range(n)), devices="cpu*2"))
        evenload.map(abs, range(3), devices="cpu*2")
        with Executor("cpu*2"):
            pass
    assert (open_files(), threading.active_count(), len(psutil.Process().children(recursive=True))) == before


# --- the program itself ---------------------------------------------------------------------------


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    return path


def tagged(tag: str) -> list[psutil.Process]:
    """Living processes that carry ``tag`` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TAG") == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(path: Path, tag: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, path],
        env={**os.environ, "TAG": tag},
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_scripts_need_no_guard_and_may_define_what_they_send(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import dataclasses, evenload

        print("main runs")

        @dataclasses.dataclass
        class Point:
            x: int

        class Oops(Exception):
            pass

        def mirror(point):
            if point.x == 3:
                raise Oops("three")
            return Point(-point.x)

        got = list(evenload.map(mirror, [Point(1), Point(2), Point(3)], devices="cpu*2", on_error="return"))
        assert got[:2] == [Point(-1), Point(-2)], got
        assert isinstance(got[0], Point)
        assert type(got[2].__cause__) is Oops
        """,
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("main runs\n", "", 0)


def test_modules_beside_the_script_are_found_and_those_in_the_folder_shadow_nothing(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def triple(x): return 3 * x")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "pickle.py").write_text("raise SystemExit('the wrong pickle')")
    path = script(
        tmp_path, "import beside, evenload\nprint(list(evenload.map(beside.triple, [1], devices='cpu')))"
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=other)
    assert (done.stdout, done.stderr) == ("[3]\n", "")


HANGS = {
    "sleeping": "time.sleep(1000)",
    "busy": "exec('while True: pass')",
    "holding the lock": "ctypes.PyDLL(None).sleep(1000)",
    "with a child": "subprocess.run(['sleep', '1000'])",
}


@pytest.mark.parametrize("hang", HANGS)
def test_workers_leave_when_the_program_is_killed(tmp_path: Path, hang: str) -> None:
    path = script(
        tmp_path,
        f"""
        import ctypes, subprocess, time, evenload
        def task(x):
            print("READY", flush=True)
            {HANGS[hang]}
        list(evenload.map(task, range(2), devices="cpu*2"))
        """,
    )
    tag = f"killed-{os.getpid()}-{hang}"
    program = start(path, tag)
    assert program.stderr is not None
    while program.stderr.readline().count("READY") == 0:
        pass
    assert len(tagged(tag)) >= 2
    program.kill()
    program.communicate()
    deadline = time.monotonic() + 100
    while tagged(tag) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = tagged(tag)
    for process in left:
        process.kill()
    assert not left


def test_ctrl_c_ends_the_program_and_its_workers(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import signal, time, evenload
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def task(x):
            print("READY", flush=True)
            time.sleep(1000)
        list(evenload.map(task, range(2), devices="cpu*2"))
        """,
    )
    tag = f"interrupted-{os.getpid()}"
    program = start(path, tag)
    assert program.stderr is not None
    while program.stderr.readline().count("READY") == 0:
        pass
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=100)
    assert "KeyboardInterrupt" in errors
    assert program.returncode == -signal.SIGINT
    assert not tagged(tag)


def test_a_program_that_closes_nothing_ends_and_leaves_nothing(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, evenload
        from evenload.executor import Executor
        executor = Executor("cpu*2")
        executor.start()
        results = executor.map(abs, range(100))
        print(next(results))
        future = executor.submit(abs, -1)
        pid = os.fork()
        if pid == 0:
            raise SystemExit(0)  # a forked child must not stop its parent's workers as it leaves
        os.waitpid(pid, 0)
        print(future.result(), next(results))
        """,
    )
    tag = f"forgotten-{os.getpid()}"
    program = start(path, tag)
    output, errors = program.communicate(timeout=100)
    assert (output, errors, program.returncode) == ("0\n1 1\n", "", 0)
    assert not tagged(tag)
