"""Run a program that may hang, fork, or write without end: it ends in time, with all that it started.

Linux alone: what the program starts becomes a child of this process when its parent ends, and so is found.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST_LOG = 1_000_000  # bytes of what a program prints that are kept: the first half, and the last
PR_SET_CHILD_SUBREAPER = 36
ENDING_S = 10.0  # that killed processes have to go; one that a driver holds may never


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code, or None if its time was over; and the seconds that it took."""

    code: int | None
    seconds: float

    @property
    def why(self) -> str:
        """What was wrong, "" if nothing."""
        if self.code is None:
            return f"killed after {self.seconds:.0f} s"
        if self.code < 0:
            return f"ended by signal {-self.code}"
        return f"exit code {self.code}" if self.code else ""


def run_bounded(command: list[str], env: dict[str, str], seconds: float, log: Path) -> Ended:
    """Run ``command`` for so many seconds at most and leave nothing of it; add what it prints to ``log``."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = set(descendants(os.getpid()))
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    reader = threading.Thread(target=keep_ends, args=(process.stdout, log), daemon=True)
    reader.start()
    code: int | None
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        end_all(process, before)
    took = time.monotonic() - began
    reader.join(ENDING_S)
    return Ended(code, took)


def end_all(process: subprocess.Popen, before: set[int]) -> None:
    """Kill the program's group, then whatever else of it there is, until nothing new turns up."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + ENDING_S
    while (left := set(descendants(os.getpid())) - before) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            if pid == process.pid:
                process.poll()
                continue
            with contextlib.suppress(ChildProcessError):  # it is another's child, or was waited for
                os.waitpid(pid, os.WNOHANG)
        threading.Event().wait(0.01)


def descendants(pid: int) -> list[int]:
    """Processes that ``pid`` or one of its children started and that nobody has waited for."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, looked_at = [], [pid]
    while looked_at:
        some = children.get(looked_at.pop(), [])
        found += some
        looked_at += some
    return found


def keep_ends(stream: BinaryIO, log: Path, most: int = MOST_LOG) -> None:
    """Add the first and the last half of ``most`` bytes of ``stream`` to ``log``.

    All of ``stream`` is read, also if the disk is full: else the program would wait, or die of a broken pipe.
    """
    half = most // 2
    room, last, n_bytes = half, bytearray(), 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(stream)
        try:
            file = stack.enter_context(log.open("ab", buffering=0))
        except OSError:
            file = stack.enter_context(Path(os.devnull).open("ab", buffering=0))
        while piece := stream.read1(65536):  # type: ignore[attr-defined]
            n_bytes += len(piece)
            with contextlib.suppress(OSError):
                file.write(piece[:room])  # unbuffered: it is there, should this process end, too
            last += piece[room:]
            room = max(0, room - len(piece))
            if len(last) > 2 * most:
                del last[:-half]
        if n_bytes > 2 * half:
            last[:-half] = b"\n... %d bytes left out ...\n" % (n_bytes - 2 * half)
        with contextlib.suppress(OSError):
            file.write(last)
