"""CPU seconds by room, file and test: ``make cpu``, or ``PYTHONPATH=tests pytest -p cpu_table tests/ROOM``.

A test is charged with all that its process and those below it used from its setup to its teardown:
compilers, workers, whole programs, a cluster in the background. A fixture of a module counts for the test
that it is made for. ``(outside of tests)`` is what the runner's workers used besides: imports and
collection. Processes that have left their parents are in no line.
"""

import glob
import os
import resource
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

FOLDER = "EVENLOAD_CPU_TABLE"
OUTSIDE = "(outside of tests)"
TICKS = os.sysconf("SC_CLK_TCK")
N_LINES = int(os.environ.get("EVENLOAD_CPU_LINES", "60"))


def cpu_s() -> float:
    """CPU seconds of this process and its living descendants, with those that they have waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    mine_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return mine_s + sum(below_s(pid) for pid in children_of(os.getpid()))


def below_s(pid: str) -> float:
    """The same of a descendant, in the kernel's ticks; 0 of one that has gone meanwhile."""
    try:
        of_process = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, of_process[11:15])) / TICKS + sum(below_s(child) for child in children_of(pid))


def children_of(pid: int | str) -> list[str]:
    """Process ids, on Linux; elsewhere children count when they end."""
    found: list[str] = []
    for listed in glob.iglob(f"/proc/{pid}/task/*/children"):
        with suppress(OSError):
            found += Path(listed).read_text().split()
    return found


def note(name: str, seconds: float) -> None:
    with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as lines:
        lines.write(f"{seconds:.4f}\t{name}\n")


class Spent:
    """CPU seconds that tests of this process have been charged with."""

    tests_s = 0.0


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="cpu-table-")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before_s = cpu_s()
    try:
        return (yield)
    finally:
        used_s = cpu_s() - before_s
        Spent.tests_s += used_s
        note(item.nodeid, used_s)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if hasattr(session.config, "workerinput"):
            note(OUTSIDE, cpu_s() - Spent.tests_s)


def room_of(name: str) -> str:
    """``tests/clients/tune`` of a test in it: two folders at most."""
    return name if name == OUTSIDE else "/".join(name.split("::")[0].split("/")[:-1][:3])


def table(title: str, seconds: dict[str, float], n_tests: dict[str, int], n_lines: int) -> list[str]:
    longest = sorted(seconds, key=lambda name: seconds[name], reverse=True)[:n_lines]
    return [f"{title}:", *(f"{seconds[name]:8.2f} s {n_tests[name]:5d}  {name}" for name in longest), ""]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    columns = {"room": room_of, "file": lambda name: name.split("::")[0], "test": lambda name: name}
    by: dict[str, dict[str, float]] = {title: defaultdict(float) for title in columns}
    counted: dict[str, dict[str, int]] = {title: defaultdict(int) for title in columns}
    for path in Path(os.environ[FOLDER]).iterdir():
        for line in path.read_text().splitlines():
            seconds, name = line.split("\t", 1)
            for title, of in columns.items():
                by[title][of(name)] += float(seconds)
                counted[title][of(name)] += 1
    shutil.rmtree(os.environ[FOLDER])
    terminalreporter.section(f"{sum(by['room'].values()):.0f} CPU seconds of the runner's processes")
    for title in columns:
        for line in table(title, by[title], counted[title], N_LINES):
            terminalreporter.write_line(line)
