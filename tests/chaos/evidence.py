"""What really happened in a program: lines that tasks, driver and intruder append to one file.

Each line is one write to a file opened with O_APPEND, so lines of many processes have one order and none is
torn. Nothing here comes from evenload: the checker believes these lines only.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "EVENLOAD_CHAOS_FOLDER"
LIFE = "EVENLOAD_CHAOS_LIFE"
SEED = "EVENLOAD_CHAOS_SEED"
RUNNER = "EVENLOAD_CHAOS_RUNNER"  # process id of who runs the program

KINDS = (
    "run",  # the driver begins a map                  phase
    "began",  # a task was called for an item          phase item
    "ended",  # it is about to return its value        phase item
    "fault",  # a fault has happened, or happens next  phase item, more=its name
    "missed",  # that fault hit nothing              phase item, more=its name
    "input",  # a task was given a damaged item        phase item
    "got",  # the driver was given a result            phase item, more=digest or error
    "held",  # a result that the driver still holds    phase item, more=digest
    "over",  # the map has ended                       phase, more=how
    "alive",  # the executor has done other work       phase
    "left",  # something is left after close           more=what
    "closed",  # a task that is a class was closed    phase
    "life",  # a driver has begun, or ended by itself   more=begins, ends
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of evidence: what was seen, by which process, in which life of the driver."""

    kind: str
    life: int
    pid: int
    phase: int
    item: int
    more: str


def note(kind: str, phase: int = -1, item: int = -1, more: str = "") -> None:
    """Append a line; from any process that has FOLDER and LIFE in its environment."""
    append(Path(os.environ[FOLDER]), Line(kind, int(os.environ[LIFE]), os.getpid(), phase, item, more))


def append(folder: Path, line: Line) -> None:
    more = line.more.replace("\n", " ").replace("\t", " ")[:300]
    text = "\t".join(map(str, (line.kind, line.life, line.pid, line.phase, line.item, more))) + "\n"
    fd = os.open(folder / "evidence", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, text.encode(errors="backslashreplace"))
    finally:
        os.close(fd)


class Reader:
    """A reader of the lines that came since the last time."""

    def __init__(self, folder: Path):
        self._path = folder / "evidence"
        self._at = 0

    def new(self) -> list[Line]:
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._at)
            read = file.read()
            whole = read[: read.rfind(b"\n") + 1]
            self._at += len(whole)
            return [parse(line) for line in whole.decode().splitlines()]
        return []


def parse(text: str) -> Line:
    kind, life, pid, phase, item, more = text.split("\t")
    return Line(kind, int(life), int(pid), int(phase), int(item), more)


def attempt(phase: int, item: int) -> int:
    """The number of this call of a task with ``item``: 1, 2, ... in all lives together."""
    folder = Path(os.environ[FOLDER]) / "attempts"
    for number in range(1, 10_000):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(folder / f"{phase}-{item}-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return number
    raise AssertionError("ten thousand attempts")


@functools.cache
def once_per_process(make: Callable[..., Any], *arguments: Any) -> Any:
    """``make(*arguments)``, remembered."""
    return make(*arguments)
