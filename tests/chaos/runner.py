"""Runs a program: its lives one after another, with an intruder beside; then looks at what is left.

run_program(seed) ──► Outcome(violations, faults by kind)
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checker import check, count_faults
from chaos.evidence import FOLDER, LIFE, RUNNER, SEED, Reader, parse
from chaos.intruder import Intruder, ours
from chaos.programs import Program, program_of

LIMIT_S = float(
    os.environ.get("EVENLOAD_CHAOS_LIMIT_S", "400")
)  # for one life; a hang is told then, with the stacks of all threads
LEAVE_S = 100.0  # for workers to leave after their driver
LOOK_S = 0.003


@dataclass(slots=True)
class Outcome:
    """What became of a program."""

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    n_lives: int = 0
    n_items: int = 0


class Stopped(Exception):
    """The program was ended before its end, as somebody asked for it."""


def run_program(seed: int, keep: Path | None = None, stop: threading.Event | None = None) -> Outcome:
    """Run the program of ``seed`` and check it. Several may run at once, each in a thread.

    keep  where its folder goes if it found something
    stop  ends it when it is set; raises Stopped then
    """
    program, outcome = program_of(seed), Outcome(seed)
    folder = Path(tempfile.mkdtemp(prefix="evenload-chaos-"))
    try:
        for name in ("attempts", "tmp", "cache"):
            (folder / name).mkdir()
        for life in range(program.n_lives):
            outcome.n_lives += 1
            if (code := run_life(program, folder, life, stop or threading.Event())) is None:
                outcome.violations.append(f"life {life} did not end within {LIMIT_S:.0f} s")
                break
            if code not in (0, -signal.SIGKILL) and not was_interrupted(folder, life):
                outcome.violations.append(f"life {life} ended with {code}: {last_words(folder)}")
            if code == 0:
                break
        else:
            outcome.violations.append("the last life did not come to its end") if code else None
        outcome.violations += left_behind(folder)
        lines = [parse(line) for line in (folder / "evidence").read_text().splitlines()]
        outcome.violations += check(program, lines)
        outcome.faults = count_faults(lines)
        outcome.n_items = sum(line.kind == "began" for line in lines)
        if outcome.violations and keep is not None:
            shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def run_life(program: Program, folder: Path, life: int, stop: threading.Event) -> int | None:
    """Returns the driver's exit code; None if it had to be ended."""
    own = {FOLDER: str(folder), LIFE: str(life), SEED: str(program.seed), RUNNER: str(os.getpid())}
    own["TMPDIR"] = str(folder / "tmp")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, **own, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path), "EVENLOAD_WARM_START": "0",
    }  # fmt: skip
    with (folder / "said").open("ab") as said:
        driver = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("driver.py"))],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
    reader = Reader(folder)
    reader.new()
    intruder = Intruder(program, folder, life, driver.pid, random.Random(program.seed))
    until = time.monotonic() + LIMIT_S
    while driver.poll() is None:
        intruder.look(reader.new())
        time.sleep(LOOK_S)
        if stop.is_set():
            driver.kill()
            driver.wait(timeout=500)
            raise Stopped
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                driver.send_signal(signal.SIGUSR1)
                time.sleep(2.0)
            driver.kill()
            driver.wait(timeout=500)
            return None
    intruder.wake_up(float("inf"))
    return driver.returncode


def was_interrupted(folder: Path, life: int) -> bool:
    text = (folder / "evidence").read_text().splitlines()
    return any(line.more == "interrupt driver" and line.life == life for line in map(parse, text))


def last_words(folder: Path) -> str:
    return (folder / "said").read_text(errors="backslashreplace")[-3000:]


def left_behind(folder: Path) -> list[str]:
    """Processes and files that are there after the end; processes get a while to leave."""
    until = time.monotonic() + LEAVE_S
    while (pids := ours(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    left = [f"process {pid} is left: {command(pid)}" for pid in pids]
    left += [f"a temporary file is left: {path.name}" for path in (folder / "tmp").iterdir()]
    left += [f"a half-written file is left: {path}" for path in (folder / "cache").rglob("*.tmp")]
    return left


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return ""


def end_all(folder: Path) -> None:
    for pid in ours(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
