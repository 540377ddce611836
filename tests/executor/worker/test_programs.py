"""Tests worker processes through whole programs: scripts, signals, ends."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

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


def start(popen: Callable[..., subprocess.Popen], path: Path, tag: str) -> subprocess.Popen:
    return popen(
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
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=550)
    assert (done.stdout, done.stderr, done.returncode) == ("main runs\n", "", 0)


def test_modules_beside_the_script_are_found_and_those_in_the_folder_shadow_nothing(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def triple(x): return 3 * x")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "pickle.py").write_text("raise SystemExit('the wrong pickle')")
    path = script(
        tmp_path, "import beside, evenload\nprint(list(evenload.map(beside.triple, [1], devices='cpu')))"
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=other, timeout=550)
    assert (done.stdout, done.stderr) == ("[3]\n", "")


HANGS = {
    "holding the lock": "ctypes.PyDLL(None).sleep(1000)",
    "with a child": "subprocess.run(['sleep', '1000'])",
}


@pytest.mark.parametrize("hang", HANGS)
def test_workers_leave_when_the_program_is_killed(
    tmp_path: Path, hang: str, popen: Callable, line_of: Callable, until: Callable
) -> None:
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
    program = start(popen, path, tag)
    assert program.stderr is not None
    line_of(program.stderr, "READY")
    assert len(tagged(tag)) >= 2
    program.kill()
    program.communicate(timeout=500)
    try:
        until(lambda: not tagged(tag), "its workers and what they started have left")
    finally:
        for process in tagged(tag):
            process.kill()


def test_ctrl_c_ends_the_program_and_its_workers(tmp_path: Path, popen: Callable, line_of: Callable) -> None:
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
    program = start(popen, path, tag)
    assert program.stderr is not None
    line_of(program.stderr, "READY")
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=550)
    assert "KeyboardInterrupt" in errors
    assert program.returncode == -signal.SIGINT
    assert not tagged(tag)


def test_a_program_that_closes_nothing_ends_and_leaves_nothing(tmp_path: Path, popen: Callable) -> None:
    path = script(
        tmp_path,
        """
        import os, evenload, warnings
        from evenload.executor import Executor
        executor = Executor("cpu*2")
        executor.start()
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        results = executor.map(abs, range(100))
        print(next(results), flush=True)  # or the child would write it again
        future = executor.submit(abs, -1)
        pid = os.fork()
        if pid == 0:
            raise SystemExit(0)  # a forked child must not stop its parent's workers as it leaves
        os.waitpid(pid, 0)
        print(future.result(timeout=500), next(results))
        """,
    )
    tag = f"forgotten-{os.getpid()}"
    program = start(popen, path, tag)
    output, errors = program.communicate(timeout=550)
    assert (output, errors, program.returncode) == ("0\n1 1\n", "", 0)
    assert not tagged(tag)
