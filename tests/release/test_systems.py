"""What does not run on Windows is refused there in a sentence; the rest is imported. Windows is pretended."""

import re
import subprocess
import sys

import pytest

from evenload._optional import refuse_windows
from evenload.errors import NoUsableDevice

PRETEND = """
import sys, asyncio, concurrent.futures.process, ctypes, multiprocessing, os, shutil, subprocess, tempfile
import click, cloudpickle, numpy, psutil
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "getuid", "killpg", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = "win32"
"""


def on_windows(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRETEND + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_what_needs_no_workers_is_imported():
    done = on_windows(
        "import evenload, evenload.errors, evenload.settings, evenload.events, evenload.certificate\n"
        "import importlib, pkgutil, evenload.balance\n"
        "for one in pkgutil.walk_packages(evenload.balance.__path__, 'evenload.balance.'):\n"
        "    if '.kernels' not in one.name: importlib.import_module(one.name)\n"
    )
    assert done.returncode == 0, done.stderr


def test_what_needs_workers_is_refused_by_name():
    names = ["map", "Executor", "Pipeline", "LLM", "gang", "last_run", "merkle.Log"]
    done = on_windows(
        "import evenload, operator\n"
        f"for name in {names!r}:\n"
        "    try: operator.attrgetter(name)(evenload)\n"
        "    except evenload.EvenloadError as error: print(type(error).__name__, error.message)\n"
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(names), done.stderr
    assert all(line.startswith("NoUsableDevice") and "Windows" in line for line in lines), lines


COMMANDS = {  # and how each ends
    f"map builtins:len {__file__}": 3,
    "run job.yaml": 3,
    "merkle log --help": 3,
    "simulate --help": 0,
    "plan-training --devices 2x24GB:rtx4090,1x12GB:rtx3060 --batch 64": 0,
    "certify --help": 0,
}


def test_commands_work_or_say_why_not():
    done = on_windows(
        "from evenload.cli import main\n"
        f"for line in {list(COMMANDS)!r}:\n"
        "    try: main(line.split())\n"
        "    except SystemExit as end: print('=== ends with', end.code or 0, file=sys.stderr, flush=True)\n"
    )
    said = re.split(r"=== ends with (\d+)\n", done.stderr)
    assert [int(code) for code in said[1::2]] == list(COMMANDS.values()), done.stderr
    assert ["Windows" in one for one in said[:-1:2]] == [code != 0 for code in COMMANDS.values()]
    assert "Traceback" not in done.stderr


def test_other_systems_are_not_refused():
    refuse_windows("a worker", "linux")
    refuse_windows("a worker", "darwin")
    with pytest.raises(NoUsableDevice, match="a worker needs file locks"):
        refuse_windows("a worker", "win32")
