"""Strikes from outside: signals to living processes, each proven by what became of the process."""

import contextlib
import os
import random
import select
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from chaos.evidence import FOLDER, Line, append
from chaos.programs import Program, Strike

SEEN_S = 30.0  # for a signal to show; then it is not counted


def state_of(pid: int) -> str:
    """The letter of the process's state; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def ours(folder: Path) -> list[int]:
    """Living processes that have the folder of this program in their environment."""
    mark = f"{FOLDER}={folder}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{name}/environ").read_bytes()
                if mark in environment.split(b"\0") and state_of(int(name)) not in ("", "Z", "X"):
                    found.append(int(name))
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@dataclass(slots=True)
class Intruder:
    """Who carries out the strikes of one life of a program."""

    program: Program
    folder: Path
    life: int
    driver: int
    rng: random.Random
    n_begun: dict[int, int] = field(default_factory=dict)
    todo: list[Strike] = field(default_factory=list)
    stopped: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.todo = [strike for strike in self.program.strikes if strike.life == self.life]

    def look(self, lines: list[Line]) -> None:
        """Carry out what is due, given what has been written since the last look."""
        for line in lines:
            if line.kind == "began" and line.life == self.life:
                n = self.n_begun[line.phase] = self.n_begun.get(line.phase, 0) + 1
                due = [s for s in self.todo if s.phase == line.phase % 100 and s.at < n]
                for strike in due:
                    self.todo.remove(strike)
                    self.carry_out(strike, line)
        self.wake_up(time.monotonic())

    def wake_up(self, now: float) -> None:
        """Let go on what was stopped for long enough."""
        for entry in [entry for entry in self.stopped if entry[0] <= now]:
            self.stopped.remove(entry)
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry[1], signal.SIGCONT)

    def carry_out(self, strike: Strike, line: Line) -> None:
        time.sleep(strike.delay_s)  # so that it comes at any moment
        how, _, whom = strike.name.partition(" ")
        pid = self.victim(whom, line)
        if pid is None:
            return
        if how == "kill":
            happened = sent(pid, signal.SIGKILL, "")
        elif how == "interrupt":
            happened = sent(pid, signal.SIGINT, None)
        else:
            happened = sent(pid, signal.SIGSTOP, "T")
            self.stopped.append((time.monotonic() + strike.lasts_s, pid))
        if happened:
            append(self.folder, Line("fault", self.life, pid, line.phase, line.item, strike.name))

    def victim(self, whom: str, line: Line) -> int | None:
        if whom == "driver":
            return self.driver
        if whom == "worker" and line.pid in (them := ours(self.folder)):
            return line.pid if self.rng.random() < 0.7 else self.any_worker(them)
        if whom == "fork server":
            servers = [pid for pid in ours(self.folder) if self.is_server(pid)]
            return servers[0] if servers else None
        return None

    def any_worker(self, them: list[int]) -> int | None:
        workers = [pid for pid in them if b"evenload-" in command_of(pid) and not self.is_server(pid)]
        return self.rng.choice(workers) if workers else None

    def is_server(self, pid: int) -> bool:
        """Whether this is the fork server; the workers that it forks have its command."""
        return parent_of(pid) == self.driver and b"evenload-fork" in command_of(pid)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def sent(pid: int, number: int, state: str | None) -> bool:
    """Signal a living process. Returns whether it is seen to have worked: that it is dead, or stopped.

    state  what to see afterwards; "" for death, None for nothing
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if state_of(pid) in ("", "Z", "X"):
            return False
        signal.pidfd_send_signal(handle, number)
        if state is None:
            return True
        if not state:
            return bool(select.select([handle], [], [], SEEN_S)[0])
        until = time.monotonic() + SEEN_S
        while time.monotonic() < until and state_of(pid) not in ("", "Z", "X"):
            if state_of(pid) == state:
                return True
            time.sleep(0.0005)
        return False
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
