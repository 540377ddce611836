"""A forked child that uses its parent's executor or pool is told so: it has none of the threads."""

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, threading, traceback
from evenload.devices import DevicePool
from evenload.errors import ConfigError, EvenloadError
from evenload.executor import Executor
import evenload

def in_a_child(what, n_refused, *calls):
    "Every call is refused with an error that says what to do; the child ends by itself."
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            refused = []
            for call in calls:
                try:
                    call()
                except ConfigError as error:
                    assert f"process {os.getppid()}" in error.message and "child's own" in error.hint, error
                    refused.append(call)
            print(what, len(refused) == n_refused, flush=True)
            sys.exit(0)
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, what

def uses(executor, results):
    def leave():
        with executor:
            pass
    return (
        lambda: executor.map(abs, [1]), lambda: list(executor.map(abs, [1])), lambda: executor.submit(abs, 1),
        lambda: executor.drain("cpu:0"), lambda: executor.add("cpu*1"), executor.pause, executor.resume,
        lambda: executor.set_policy("pull"), lambda: executor.set_balancing(True), executor.start,
        lambda: executor.gang(abs), leave, lambda: evenload.run_partitioned(list, [1, 2], executor=executor),
        lambda: next(results), lambda: list(results), lambda: list(results.indexed()),
        lambda: list(results.blocks()), results.stop, lambda: results.set_policy("pull"),
        lambda: results.set_balancing(True),
    )

def harmless(executor):
    executor.devices.ids, executor.stats, executor.is_paused, repr(executor)
    executor.close()
    print("left alone", flush=True)

for backend in ("process", "inline"):
    with Executor("cpu*2", backend=backend, echo=False) as executor:
        begun = executor.map(abs, range(-50, 0), look_ahead=10)
        assert next(begun) == 50
        calls = uses(executor, begun)
        in_a_child(backend, len(calls), *calls)
        in_a_child("close", 0, lambda: harmless(executor))
        assert sum(begun) == sum(range(50)), "the parent's goes on"
        assert executor.submit(abs, -3).result(100) == 3

pool = DevicePool.find("cpu*2")
pool.load("cpu:0")
with pool.task("cpu:0"):
    def one_task():
        with pool.task("cpu:1"):
            pass
    calls = (lambda: pool.load("cpu:0"), pool.best, lambda: pool.task_started("cpu:0"), one_task,
             lambda: pool.task_finished("cpu:0", 1.0), pool.close)
    in_a_child("pool", len(calls), *calls)
    def plain():
        with pool:
            assert pool.ids == ("cpu:0", "cpu:1") and pool.select(1) and pool.facts() and pool.score("cpu:0")
        with Executor("cpu*1", echo=False) as own:
            assert list(own.map(abs, [-7])) == [7]
        print("its own", flush=True)
    in_a_child("plain", 0, plain)
assert pool.load("cpu:0").tasks_done == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_each_call_in_a_forked_child_is_refused(tmp_path: Path, popen: Callable) -> None:
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM))
    program = popen(
        [sys.executable, "-W", "ignore", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    output, errors = program.communicate(timeout=200)
    assert program.returncode == 0, errors
    assert output.split("\n") == [
        "process True", "left alone", "close True", "inline True", "left alone", "close True",
        "pool True", "its own", "plain True", "",
    ]  # fmt: skip
