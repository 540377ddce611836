"""``evenload.futures.Executor`` keeps what ``concurrent.futures`` promises."""

import asyncio
import concurrent.futures
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from integrations.jobs import Begin, TellsWhenFreed

import evenload
from evenload.errors import ConfigError, TaskError
from evenload.futures import Executor

LIMIT_S = 500


def fails(x):
    raise KeyError(x)


def cannot_come_back(x):
    return threading.Lock()


def dies(_=None):
    os.kill(os.getpid(), signal.SIGKILL)


def after(path, x=None):
    """Wait for a file."""
    while not Path(path).exists():
        threading.Event().wait(0.005)
    return x


def cannot_begin():
    raise ValueError("no licence")


@pytest.fixture(scope="module")
def executor():
    with Executor(max_workers=2, echo=False) as executor:
        yield executor


def test_it_is_one_and_gives_futures_of_the_standard_library(executor):
    assert isinstance(executor, concurrent.futures.Executor)
    futures = [executor.submit(pow, 2, n) for n in range(30)]
    assert all(isinstance(one, concurrent.futures.Future) for one in futures)
    assert {one.result(LIMIT_S) for one in concurrent.futures.as_completed(futures)} == {
        2**n for n in range(30)
    }
    assert concurrent.futures.wait(futures, LIMIT_S).not_done == set()
    assert executor.submit(lambda a, *, self, fn: (a, self, fn), 1, self=2, fn=3).result(LIMIT_S) == (1, 2, 3)


def test_a_job_fails_with_what_it_raised_and_the_cause_tells_where(executor):
    error = executor.submit(fails, "x").exception(LIMIT_S)
    assert type(error) is KeyError
    assert error.args == ("x",)
    assert isinstance(error.__cause__, TaskError)
    assert error.__cause__.device in executor.devices.ids
    assert "raise KeyError(x)" in str(error.__cause__)


def test_what_cannot_be_pickled_fails_its_job_alone(executor):
    from pickle import PicklingError

    assert isinstance(executor.submit(cannot_come_back, 1).exception(LIMIT_S), PicklingError)
    assert isinstance(executor.submit(id, threading.Lock()).exception(LIMIT_S), PicklingError)
    assert executor.submit(abs, -1).result(LIMIT_S) == 1


def test_a_dead_worker_loses_its_job_alone_and_the_job_is_run_once(executor, tmp_path):
    def once():
        with open(tmp_path / "runs", "a") as file:
            file.write("x")
        dies()

    error = executor.submit(once).exception(LIMIT_S)
    assert isinstance(error, concurrent.futures.process.BrokenProcessPool)
    assert isinstance(error, evenload.errors.WorkerLost)
    assert (tmp_path / "runs").read_text() == "x"
    assert executor.submit(abs, -1).result(LIMIT_S) == 1


@pytest.mark.parametrize(("chunksize", "buffersize"), [(1, None), (3, 1), (3, 4), (100, None)])
def test_map(executor, chunksize, buffersize):
    options = {"chunksize": chunksize, "buffersize": buffersize}
    assert list(executor.map(pow, range(10), range(3, 20), **options)) == list(
        map(pow, range(10), range(3, 20))
    )
    assert list(executor.map(pow, [], [], **options)) == []


@pytest.mark.parametrize(("buffersize", "n_read"), [(1, 1), (3, 3), (None, 9)])
def test_map_reads_no_further_than_its_buffer(executor, buffersize, n_read):
    read = []
    items = (read.append(n) or n for n in range(9))
    results = executor.map(abs, items, buffersize=buffersize)
    assert len(read) == n_read
    assert next(results) == 0
    assert len(read) == min(9, n_read + 1)
    assert list(results) == list(range(1, 9))


def test_map_raises_in_its_turn_and_cancels_the_rest(executor, tmp_path):
    results = executor.map(divmod, [1, 1, 1], [1, 0, 1])
    assert next(results) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        next(results)
    gate = tmp_path / "gate"
    waiting = executor.map(after, [gate] * 20, range(20), timeout=0)
    with pytest.raises(TimeoutError):
        next(waiting)
    gate.touch()
    later = executor.map(after, [gate] * 20, range(20))
    assert list(later) == list(range(20))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"max_workers": 0}, ValueError, "max_workers must be greater than 0"),
        ({"max_workers": -1}, ValueError, "max_workers must be greater than 0"),
        ({"max_workers": "two"}, ValueError, "max_workers.*\n.*from 1 to"),
        ({"initializer": 3}, TypeError, "callable"),
        ({"max_workers": 2, "backend": "ray"}, ConfigError, "name them"),
        ({"devices": "quantum"}, ConfigError, "quantum"),
    ],
)
def test_arguments_that_are_refused(given, error, said):
    with pytest.raises(error, match=said):
        Executor(**given)


@pytest.mark.parametrize(
    "given", [{"chunksize": 0}, {"chunksize": -1}, {"buffersize": 0}, {"buffersize": -3}]
)
def test_sizes_of_maps_that_are_refused(executor, given):
    with pytest.raises(ValueError, match="size must be"):
        executor.map(abs, [1], **given)
    with pytest.raises(TypeError, match="buffersize"):
        executor.map(abs, [1], buffersize="2")


def test_a_coroutine_waits_for_it(executor):
    async def both():
        loop = asyncio.get_running_loop()
        good = [loop.run_in_executor(executor, pow, 2, n) for n in range(5)]
        with pytest.raises(KeyError):
            await loop.run_in_executor(executor, fails, 1)
        return await asyncio.gather(*good)

    assert asyncio.run(both()) == [1, 2, 4, 8, 16]


def test_a_future_is_cancelled_before_it_begins_and_only_then(executor, tmp_path, until):
    gate = tmp_path / "gate"
    busy = [executor.submit(after, gate) for _ in executor.devices]
    until(lambda: all(one.running() for one in busy), "the jobs run")
    behind = [executor.submit(abs, n) for n in range(20)]
    assert behind[-1].cancel()
    assert not busy[0].cancel()
    called = []
    behind[-2].add_done_callback(lambda one: called.append(one.result()))
    gate.touch()
    assert concurrent.futures.wait(behind, LIMIT_S).not_done == set()
    until(lambda: called == [18], "the callback is called")


def test_the_initializer_is_called_in_each_worker_and_its_marks_stay():
    with Executor(max_workers=2, initializer=Begin.with_value, initargs=("so",), echo=False) as executor:
        assert set(executor.map(Begin.seen, range(20))) == {("so", "so")}
    assert Begin.value is None


def test_an_initializer_that_raises_breaks_the_executor():
    with Executor(max_workers=2, initializer=cannot_begin, echo=False) as executor:
        error = executor.submit(abs, 1).exception(LIMIT_S)
        assert isinstance(error, concurrent.futures.BrokenExecutor)
        assert "no licence" in str(error)
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(abs, 1)


def test_shutdown_waits_and_takes_no_more(tmp_path):
    executor = Executor(max_workers=1, echo=False)
    futures = [executor.submit(abs, n) for n in range(5)]
    executor.map(Path.touch, [tmp_path / "mapped"])
    executor.shutdown()
    assert [one.result(0) for one in futures] == list(range(5))
    assert (tmp_path / "mapped").exists(), "a map begins without being iterated over"
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(abs, 1)
    executor.shutdown()


def test_shutdown_may_cancel_what_has_not_begun(tmp_path, until):
    executor = Executor(max_workers=1, echo=False)
    futures = [executor.submit(after, tmp_path / "gate", n) for n in range(20)]
    until(futures[0].running, "the first runs")
    executor.shutdown(wait=False, cancel_futures=True)
    assert futures[-1].cancelled()
    (tmp_path / "gate").touch()
    executor.shutdown()
    assert all(one.done() for one in futures)
    assert futures[0].result(0) == 0


def test_one_that_is_forgotten_finishes_and_goes(tmp_path, until):
    executor = Executor(max_workers=1, echo=False)
    inner = weakref.ref(executor._jobs)
    futures = [executor.submit(after, tmp_path / "gate", n) for n in range(3)]
    del executor
    (tmp_path / "gate").touch()
    assert [one.result(LIMIT_S) for one in futures] == [0, 1, 2]
    until(lambda: gc.collect() is not None and inner() is None, "the executor is freed, and its workers end")


def test_nobody_holds_on_to_arguments_and_results(executor, tmp_path, until):
    class Result:
        pass

    executor.submit(id, TellsWhenFreed(tmp_path / "freed")).result(LIMIT_S)
    until((tmp_path / "freed").exists, "the worker has freed the argument")
    for made in executor.map(lambda _: Result(), range(5)):
        seen = weakref.ref(made)
        del made
        until(lambda seen=seen: seen() is None, "the result is freed")


def test_a_manager_of_this_process_is_trusted():
    with multiprocessing.get_context("spawn").Manager() as manager, Executor(max_workers=1) as executor:
        queue = manager.Queue()
        executor.submit(queue.put, "seen").result(LIMIT_S)
        assert queue.get(timeout=LIMIT_S) == "seen"


PROGRAM = """
    import atexit, sys, time
    from pathlib import Path
    from evenload.futures import Executor
    late = Executor(max_workers=1)
    @atexit.register
    def too_late():
        try:
            late.submit(abs, 1)
        except RuntimeError as error:
            print(error)
    def slowly(path):
        time.sleep(0.3)
        Path(path).touch()
    executor = Executor(max_workers=1)
    executor.submit(slowly, sys.argv[1])
    {then}
"""


@pytest.mark.parametrize("then", ["", "executor.shutdown(wait=False)", "del executor"])
def test_what_was_submitted_is_done_before_the_program_ends(tmp_path, then):
    import textwrap

    program = textwrap.dedent(PROGRAM).format(then=then)
    command = [sys.executable, "-c", program, str(tmp_path / "done")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "cannot schedule new futures after interpreter shutdown"
    assert (tmp_path / "done").exists()
