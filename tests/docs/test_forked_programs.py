"""Programs of pages, forked from a process with modules loaded, are as new interpreters are."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Programs
from forked_workers import ADDRESS, python_command

from evenload import __version__

SEEN = """
import atexit, json, os, pickle, sys
class Mine: pass
atexit.register(print, "at exit")
print(sys.argv, __name__, os.getcwd(), sys.path[0], __file__)
print(type(pickle.loads(pickle.dumps(Mine()))) is Mine)
print(input(), file=sys.stderr)
print(len(os.listdir("/dev/fd")), "open files")
"""
ENDS = {
    "raise SystemExit(3)": 3,
    "1 / 0": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -9,
    "": 0,
}


def told(path: Path, programs: Programs | None, text: bytes = b"") -> tuple[int, bytes, bytes]:
    """How a program ends and what it writes, forked or as a new interpreter."""
    streams = [path.with_suffix(suffix) for suffix in (".in", ".out", ".err")]
    streams[0].write_bytes(text)
    with streams[0].open() as stdin, streams[1].open("wb") as out, streams[2].open("wb") as err:
        if programs is None:
            command = [sys.executable, path.name]
            code = subprocess.run(command, cwd=path.parent, stdin=stdin, stdout=out, stderr=err, check=False)
            exit_code = code.returncode
        else:
            program = programs.start(path, stdin.fileno(), out.fileno(), err.fileno())
            exit_code = program.wait(timeout=500)
    return exit_code, streams[1].read_bytes(), streams[2].read_bytes()


def test_a_program_sees_what_a_new_interpreter_has(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SEEN)
    with Programs(os.environ) as programs:
        programs.load("fractions")
        assert told(path, programs, b"a line\n") == told(path, None, b"a line\n")
        path.write_text("import sys; print('fractions' in sys.modules)")
        assert told(path, programs) == (0, b"True\n", b"")


@pytest.mark.parametrize("program", ENDS)
def test_a_command_ends_as_a_new_interpreter_does(tmp_path: Path, program: str) -> None:
    (tmp_path / "program.py").write_text(f"import sys; print(input(), sys.argv, flush=True); {program}")
    line = "cat said | python program.py 'a b' '' | cat; echo ${PIPESTATUS[1]}"
    (tmp_path / "said").write_text("a line\n")

    def run(environment: Mapping[str, str]) -> str:
        shell = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={**environment, "ADDED": "1"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert ("ZeroDivisionError" in shell.stderr) == (program == "1 / 0")
        return shell.stdout

    real = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with Programs(real) as programs:
        assert run(programs.environment) == run(real)


def test_evenload_is_a_command_and_other_lines_of_python_are_new_interpreters(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print('asked_program' in sys.modules)")
    lines = "evenload --version; python program.py; python -c 'import program'; python - < program.py"
    with Programs(os.environ) as programs:
        said = subprocess.check_output(
            ["bash", "-ec", lines], cwd=tmp_path, env=programs.environment, text=True, timeout=500
        )
    assert said == f"evenload, version {__version__}\nTrue\nFalse\nFalse\n"


def test_one_whose_command_is_killed_ends(tmp_path: Path, popen: Any) -> None:
    (tmp_path / "program.py").write_text("print('up', flush=True)\ninput()")
    with Programs(os.environ) as programs:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        asks = ["bash", "-c", "exec python program.py"]
        command = popen(asks, cwd=tmp_path, env=programs.environment, **pipes)
        assert command.stdout.readline() == b"up\n"
        command.kill()
        assert command.stdout.read() == b""  # which the program has closed


def test_workers_have_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import sys, evenload\n"
        "def loaded(name): return name in sys.modules\n"
        "print(*evenload.map(loaded, ['colorsys', 'nturl2path'] * 2, devices='cpu*2'))"
    )
    with Programs(os.environ) as programs, (tmp_path / "out").open("wb") as out:
        programs.load("colorsys", "evenload.executor.worker.fork_server")
        program = programs.start(path, 0, out.fileno(), out.fileno())
        assert program.wait(timeout=500) == 0
    assert (tmp_path / "out").read_text() == "True False True False\n"


def test_what_has_read_all_tests_has_no_threads_that_a_fork_would_wait_for() -> None:
    """The oracle is torch: a product on two threads, which hangs where the parent had a team of them."""
    pytest.importorskip("torch")
    if ADDRESS not in os.environ:
        pytest.skip("the tests run in one process, which is not forked")
    code = "import torch; torch.set_num_threads(2); x = torch.ones(600, 600); print(int((x @ x).sum()))"
    done = subprocess.run([*python_command(), "-c", code], capture_output=True, timeout=500, check=False)
    assert (done.returncode, done.stdout) == (0, b"216000000\n")
