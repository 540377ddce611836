"""Programs of pages, forked from a process with modules loaded, are as new interpreters are."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_programs import Programs

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
            program = programs.start(path, ["fractions"], stdin.fileno(), out.fileno(), err.fileno())
            exit_code = program.wait(timeout=500)
    return exit_code, streams[1].read_bytes(), streams[2].read_bytes()


def test_a_program_sees_what_a_new_interpreter_has(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SEEN)
    with Programs(os.environ) as programs:
        assert told(path, programs, b"a line\n") == told(path, None, b"a line\n")
        path.write_text("import sys; print('fractions' in sys.modules)")
        assert told(path, programs) == (0, b"True\n", b"")


@pytest.mark.parametrize("program", ENDS)
def test_it_ends_as_a_new_interpreter_does(tmp_path: Path, program: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    with Programs(os.environ) as programs:
        exit_code, _, errors = told(path, programs)
        assert exit_code == ENDS[program]
        assert (b"ZeroDivisionError" in errors) == (program == "1 / 0")


def test_one_that_is_killed_ends_and_the_next_one_runs(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("input()")
    waits, ours = os.pipe()
    with Programs(os.environ) as programs, (tmp_path / "out").open("wb") as out:
        program = programs.start(path, [], waits, out.fileno(), out.fileno())
        program.kill()
        assert program.wait(timeout=500) == -signal.SIGKILL
        path.write_text("")
        assert told(path, programs)[0] == 0
    os.close(waits)
    os.close(ours)
