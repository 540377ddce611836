"""``benchmarks/gpu.py`` with parts that are forked from here, where modules that they need are loaded once.

    python tests/benchmarks/forked_parts.py torch,torch._dynamo --pretend --out FOLDER ...

A part is in all else the program that it is otherwise: its own process, arguments, environment and output.
"""

import importlib
import importlib.util
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu
from gpu_parts import bounded_process

MOST_FILES = 4096
START = subprocess.Popen


def started(command: list[str], **options: Any) -> subprocess.Popen:
    """A process as ``subprocess.Popen`` makes it; of a part, a child that never becomes another program."""

    def be_part() -> None:
        os.closerange(3, MOST_FILES)  # among them the pipe by which the parent learns that it is running
        os._exit(ended(command[1:], options["env"]))

    is_part = command[0] == sys.executable and Path(command[1]).parent == gpu.FOLDER
    return START(command, preexec_fn=be_part if is_part else None, **options)


def ended(arguments: list[str], env: dict[str, str]) -> int:
    """Run a script to its end; its exit code."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = arguments
    sys.path[:0] = [str(Path(arguments[0]).parent), *env["PYTHONPATH"].split(os.pathsep)]
    code: Any = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


class Starter:
    """What ``bounded_process`` knows of ``subprocess``."""

    Popen = staticmethod(started)
    PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    bounded_process.subprocess = Starter  # type: ignore[assignment]
    sys.exit(gpu.main(sys.argv[2:]))
