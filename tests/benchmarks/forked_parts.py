"""``benchmarks/gpu.py`` with parts that are forked from here, where modules that they need are loaded once.

    python tests/benchmarks/forked_parts.py torch,torch._dynamo --pretend --out FOLDER ...

A part, and a process of a part, is in all else the program that it is otherwise: its own process, arguments,
environment, streams and output.
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

MOST_FILES = 4096
START = subprocess.Popen.__init__
FOLDERS = (gpu.FOLDER, gpu.FOLDER.parent)


def start(process: subprocess.Popen, command: Any, *more: Any, **options: Any) -> None:
    """Start a process; of a script of the benchmarks, a child that never becomes another program."""

    def be_script() -> None:
        os.closerange(3, MOST_FILES)  # among them the pipe by which the parent learns that it is running
        os._exit(ended(command[1:], dict(options.get("env") or os.environ)))

    if isinstance(command, list) and command[0] == sys.executable and Path(command[1]).parent in FOLDERS:
        sys.stdout.flush()  # else the child would say it once more
        options["preexec_fn"] = be_script
    START(process, command, *more, **options)


def ended(arguments: list[str], env: dict[str, str]) -> int:
    """Run a script to its end; its exit code."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = arguments
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for the life of the script
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


def forget_tests() -> None:
    """Take out modules of the tests, where this is forked from what read them: names are the same."""
    tests = f"{Path(__file__).parents[1]}/"
    for name, module in list(sys.modules.items()):
        if name != "__main__" and str(getattr(module, "__file__", None)).startswith(tests):
            del sys.modules[name]


if __name__ == "__main__":
    forget_tests()
    for name in sys.argv[1].split(","):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    subprocess.Popen.__init__ = start  # type: ignore[method-assign]
    sys.exit(gpu.main(sys.argv[2:]))
