"""A worker is what its program is: all rows of both are compared, and those that differ on purpose listed.

The oracle is the program itself: ``process_probe`` asks Python, the C library and the kernel, in both alike.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import process_probe
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.worker.fork_server import can_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="rows are read from /proc")

PAGE = Path(__file__).parents[2] / "docs/explanation/workers.md"
LOCAL = ["inline", "process:spawn", *(["process:forkserver"] if can_fork() else [])]
ON_PURPOSE = {
    "process", "process group", "threads", "sys.orig_argv", "__main__", "loaded modules", "environment",
    "standard input", "standard output", "encoding of sys.stdout", "ignored signals", "handlers of signals",
    "faulthandler", "random numbers", "hash of a text",
}  # fmt: skip
PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import process_probe
process_probe.main({kinds!r}, {changes!r}, Path({folder!r}))
"""
DEVICE_VARIABLES = re.compile(r"EVENLOAD_\w+|\w+_VISIBLE_DEVICES|\w+_THREADS")


def seen(kinds: list[str], changes: str, folder: Path, *flags: str, **environment: str) -> dict[str, Any]:
    """What a program that was started with these flags and variables saw in itself and in its workers."""
    script = folder / "the_program.py"
    tests = str(Path(process_probe.__file__).parent)
    script.write_text(PROGRAM.format(tests=tests, kinds=kinds, changes=changes, folder=str(folder)))
    done = subprocess.run(
        [sys.executable, *flags, str(script), "a word"],
        env={**os.environ, **environment}, input="to be read", capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def differing(program: dict[str, Any], worker: dict[str, Any]) -> set[str]:
    """The rows that differ; of files of modules, those of modules that both have."""
    assert program.keys() == worker.keys()
    files = [rows.pop("files of modules") for rows in (program, worker)]
    wrong = {name for name in files[0].keys() & files[1].keys() if files[0][name] != files[1][name]}
    names = {name for name in program if program[name] != worker[name]}
    return names | {f"file of {name}" for name in wrong - {"__main__", "__mp_main__"}}


def check(both: dict[str, dict[str, Any]], kind: str) -> set[str]:
    """Check that a worker differs in nothing but what is listed, and there in nothing but what is said."""
    program, worker = both["program"], both["worker"]
    rows = differing(program, worker)
    if kind == "inline":
        assert rows == set()
        return rows
    assert rows <= ON_PURPOSE, {name: (program.get(name), worker.get(name)) for name in rows - ON_PURPOSE}
    there = worker["environment"]
    assert {name: there[name] for name in program["environment"]} == program["environment"]
    assert all(map(DEVICE_VARIABLES.fullmatch, there.keys() - program["environment"].keys()))
    assert set(worker["ignored signals"]) == {*program["ignored signals"], "SIGINT"}
    assert set(worker["handlers of signals"].values()) <= {"None"}  # only what faulthandler has set
    return rows


STARTS = {
    "as usual": ("none", [], {}),
    "all flags and settings": (
        "all",
        ["-OO", "-B", "-bb", "-s", "-Xutf8=0", "-Xint_max_str_digits=6000", "-Wignore::UserWarning"],
        {"PYTHONHASHSEED": "7", "PYTHONDEVMODE": "1", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    ),
    "isolated": (
        "all", ["-I", "-Xutf8"], {"PYTHONPATH": "/nowhere", "PYTHONOPTIMIZE": "1", "PYTHONUTF8": "0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", STARTS)
def test_a_worker_differs_from_its_program_only_on_purpose(how: str, tmp_path: Path) -> None:
    changes, flags, environment = STARTS[how]
    differ: set[str] = set()
    for kind, both in seen(LOCAL, changes, tmp_path, *flags, **environment).items():
        differ |= check(both, kind)
    if how == "as usual":
        assert differ == ON_PURPOSE  # what is listed differs indeed


@pytest.mark.slow
def test_a_worker_of_ray_differs_only_on_purpose(tmp_path: Path) -> None:
    """From Ray's actor a worker has its session, and what Ray sets; some of that Ray sets in the program."""
    (both,) = seen(["ray"], "all", tmp_path, "-O", "-X", "utf8=1", "-s").values()
    given_by_ray = {
        "session",
        "environment",
        "niceness",
        "sys.path",
        "processors",
        "hooks",
        "stack of threads",
    }
    program, worker = both["program"], both["worker"]
    limits = {name for name in program if name.startswith(("limit:", "status:"))}
    assert differing(program, worker) <= ON_PURPOSE | given_by_ray | limits


def test_the_page_lists_the_rows_that_differ() -> None:
    text = PAGE.read_text().partition("<!-- list: differs on purpose -->")[2].partition("<!-- end of list")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)) == ON_PURPOSE


FLAGS = st.lists(
    st.sampled_from(
        ["-O", "-OO", "-b", "-bb", "-B", "-E", "-I", "-s", "-S", "-P", "-q", "-R", "-Xdev", "-Xutf8",
         "-Xutf8=0", "-Xutf8=1", "-Wdefault", "-Werror", "-Wignore::BytesWarning",
         "-Xint_max_str_digits=0", "-Xno_debug_ranges"]
    ),
    max_size=5,
)  # fmt: skip
VARIABLES = st.dictionaries(
    st.sampled_from(
        ["PYTHONUTF8", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE",
         "PYTHONSAFEPATH", "PYTHONHASHSEED", "PYTHONINTMAXSTRDIGITS"]
    ),
    st.sampled_from(["0", "1"]),
    max_size=3,
)  # fmt: skip
ASKED = """
import sys
sys.path[:] = {path!r}
import evenload.devices.interpreter_flags as one
options = dict(sys._xoptions).keys() - {{"utf8", "dev"}}  # which variables can set, too
print(repr((one.interpreter_flags(), tuple(sys.flags), sorted(sys.warnoptions), options)))
"""


@settings(max_examples=examples(10), deadline=None)
@given(FLAGS, VARIABLES)
def test_an_interpreter_with_the_flags_of_another_has_all_of_them(
    flags: list[str], variables: dict[str, str]
) -> None:
    """The oracle is CPython: one that is given the words must say of itself what the first did."""
    if "PYTHONINTMAXSTRDIGITS" in variables:
        variables = {**variables, "PYTHONINTMAXSTRDIGITS": "5000"}
    words, *first = asked(flags, variables)
    again, *second = asked(words, variables)
    assert second == first
    assert again == words or set(again) == set(words)


def asked(flags: list[str], variables: dict[str, str]) -> Any:
    code = ASKED.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)
