"""Signals that end a run: at whatever moment one comes, nothing is left of what was being made."""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import psutil
import pytest
from pipeline.written_jobs import write_job

from evenload.executor.transport.progress_cell import make_progress_file
from evenload.executor.worker.fork_server import ForkServer
from evenload.executor.worker.memory import SharedMemory
from evenload.pipeline import Pipeline
from evenload.pipeline.run.interrupts import Interrupts

STEP = """\
class Step:
    def __call__(self, inputs, item):
        return {'n': item.index}
"""
ANYWHERE = ("/executor/", "/pipeline/run/")
WHO_MAKES = {make_progress_file.__code__, SharedMemory.open.__code__, ForkServer.fork.__code__}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, STEP, "  - {name: step, target: 'stages.py:Step'}\n", 4)


def left() -> set[str]:
    """What this process holds that a run makes: descriptors, threads and processes."""
    held = {f"thread {one.name}" for one in threading.enumerate() if one.name.startswith("evenload")}
    held |= {f"process {one.pid}" for one in psutil.Process().children()}
    for fd in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{fd}"
        if os.path.lexists(path):
            held.add(os.readlink(path))
    return {one for one in held if not one.startswith("/dev")}


class Signaller:
    """A hook that sends this process a signal the ``number``th time that ``is_due`` says it may."""

    def __init__(self, is_due: Callable[[CodeType, str], bool], number: int):
        self.is_due, self.number, self.n_times = is_due, number, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_due(frame.f_code, event):
            self.n_times += 1
            if self.n_times == self.number:
                signal.raise_signal(signal.SIGINT)


def anywhere(code: CodeType, event: str) -> bool:
    """At calls of functions that run jobs, or that workers are run by."""
    return event == "call" and any(part in code.co_filename for part in ANYWHERE)


def as_it_is_made(code: CodeType, event: str) -> bool:
    """When something was made, and nobody has it yet."""
    return event == "return" and code in WHO_MAKES


def interrupted(job: Path, hook: Signaller) -> tuple[str, int]:
    """Run the job. Returns its status, and how often the hook might have sent its signal."""
    pipeline, usual, status = Pipeline.from_yaml(job), sys.getprofile(), "not begun"
    sys.setprofile(hook)
    try:
        status = pipeline.run(devices="cpu*2", backend="process", fresh=True).status
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(usual)
    return status, hook.n_times


def leaves_nothing(job: Path, is_due: Callable[[CodeType, str], bool], rng: random.Random, n: int) -> None:
    """Interrupt ``n`` runs at random moments of these."""
    status, n_times = interrupted(job, Signaller(is_due, 0))
    assert status == "done"
    before = left()
    for _ in range(n):
        number = rng.randint(1, n_times)
        interrupted(job, Signaller(is_due, number))
        assert not left() - before, f"interrupted at moment {number} of {n_times}"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_if_a_signal_comes_while_workers_are_made(job: Path) -> None:
    leaves_nothing(job, as_it_is_made, random.Random(5), 2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_whenever_a_signal_comes(job: Path) -> None:
    leaves_nothing(job, anywhere, random.Random(7), 100)


def test_a_signal_that_is_deferred_is_raised_at_a_check_or_at_the_end() -> None:
    with Interrupts() as outer, Interrupts() as interrupts:
        for then in (interrupts.check, outer.check, lambda: None):
            with pytest.raises(KeyboardInterrupt):
                deferred(interrupts, lambda: signal.raise_signal(signal.SIGTERM), then)
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_signal_is_raised_at_once_and_none_hides_an_error() -> None:
    with Interrupts() as interrupts:
        twice = [lambda: signal.raise_signal(signal.SIGINT)] * 2
        with pytest.raises(KeyboardInterrupt):
            deferred(interrupts, *twice, lambda: pytest.fail("not raised"))
        with pytest.raises(LookupError):
            deferred(interrupts, twice[0], lambda: [][0])
        interrupts.check()


def deferred(interrupts: Interrupts, *steps: Callable[[], object]) -> None:
    with interrupts.deferred():
        for step in steps:
            step()
