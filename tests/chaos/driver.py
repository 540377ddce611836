"""One life of a program's driver: runs the phases on an executor and writes down what it is given.

python driver.py    with FOLDER, LIFE and SEED in the environment
"""

import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos.evidence import FOLDER, LIFE, RUNNER, SEED, note
from chaos.narrow_disk import NarrowDisk, libc, own_mounts
from chaos.programs import Act, Phase, Program, digest, program_of, value_of
from chaos.work import BESIDE, Each, Sharing, constant_of, items_of, rank, submitted

from evenload.errors import ConfigError, EvenloadError
from evenload.executor import Executor

PR_SET_PDEATHSIG = 1


def main() -> None:
    end_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = program_of(int(os.environ[SEED]))
    threading.excepthook = lambda told: note("left", more=f"a thread raised {told.exc_value!r}")
    if any(phase.disk == "full" for phase in program.phases):
        own_mounts()  # before there is any other thread
    note("life", more="begins")
    if any(phase.kind == "gang" for phase in program.phases):
        make_pipe_of_libuv()
    before = open_files()
    if program.phases[0].kind == "pipeline":
        from chaos.pipeline_job import run_job

        try:
            run_job(program, Path(os.environ[FOLDER]))
        except KeyboardInterrupt:
            look_around(before)
            raise
    else:
        run_phases(program)
    look_around(before)
    note("life", more="ends")


def end_with_parent() -> None:
    """Have the system kill this process when the one that runs the program ends, however it does."""
    libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[RUNNER]):
        os.kill(os.getpid(), signal.SIGKILL)  # it has ended before that


def run_phases(program: Program) -> None:
    with Executor(
        f"cpu*{program.n_devices}",
        start=program.start,
        shared_memory_limit=program.shared_memory_limit,
        max_worker_deaths=program.max_worker_deaths,
        echo=False,
    ) as executor:
        for phase in program.phases:
            if is_over(phase) and not phase.journal:
                continue
            PhaseRun(program, phase, executor).go()
            assert list(executor.map(abs, [-3, -4, -5])) == [3, 4, 5]
            note("alive", phase.number)


def is_over(phase: Phase) -> bool:
    """Whether an earlier life has come to the end of the phase."""
    lines = (Path(os.environ[FOLDER]) / "evidence").read_text().splitlines()
    return any(line.startswith("over\t") and line.split("\t")[3] == str(phase.number) for line in lines)


class PhaseRun:
    """One phase under way."""

    def __init__(self, program: Program, phase: Phase, executor: Executor):
        self.program, self.phase, self.executor = program, phase, executor
        self.number = phase.number
        self.n_got = 0
        self.is_over = threading.Event()
        self.kept: list[tuple[int, Any]] = []

    def go(self) -> None:
        work = {"map": self.map, "calls": self.calls, "gang": self.gang}[self.phase.kind]
        actor = threading.Thread(target=self.act, daemon=True)
        actor.start()
        beside = threading.Thread(target=self.beside, daemon=True)
        if self.phase.beside:
            beside.start()
        try:
            with NarrowDisk(self.phase.disk, self.folder, self.number) if self.phase.disk else nothing():
                work()
            if self.phase.disk:
                work()
        finally:
            self.is_over.set()
            actor.join(timeout=500)
            if self.phase.beside:
                beside.join(timeout=500)
        for item, value in self.kept:
            note("held", self.number, item, digest(value))

    # --- kinds of work ----------------------------------------------------------------------------

    def map(self) -> None:
        phase = self.phase
        note("run", self.number)
        try:
            results = self.executor.map(*self.task(), **self.options())
            self.receive(results)
        except EvenloadError as error:
            note("over", self.number, more=f"{type(error).__name__}: {error.message}")
        except OSError as error:
            note("over", self.number, more=f"source: {error}")
        else:
            note("over", self.number, more=f"as told {results.status}")
        assert phase.kind == "map"

    def task(self) -> tuple[Any, Any]:
        items: Any = items_of(self.number, self.phase)
        return Each(self.number) if self.phase.form == "function" else (
            Each if self.phase.form == "class" else Sharing
        ), (items if self.phase.is_iterator else list(items))

    def options(self) -> dict[str, Any]:
        phase = self.phase
        names = ("ordered", "batch", "policy", "repeatable", "timeout_s", "retries", "on_error", "look_ahead")
        options = {name: getattr(phase, name) for name in names}
        if phase.form != "function":
            options["shared"] = {"number": self.number}
        if phase.form == "shared":
            options["shared"]["constant"] = constant_of(self.number)
        if phase.journal:
            options["journal"] = self.folder / f"journal-{self.number}" / "journal"
        return options

    def receive(self, results: Any) -> None:
        if self.phase.on_error == "raise":  # only the values have no index: they come in order, or are told
            for value in results:
                self.got(value[0] if isinstance(value, tuple) else -1, value)
            return
        for item, value in results.indexed():
            self.got(item, value)
            if item == self.phase.leaves_at and self.phase.ends == "close":
                results.close()
            elif item == self.phase.leaves_at:
                results.stop()

    def got(self, item: int, value: Any) -> None:
        if isinstance(value, BaseException):
            told = f"{type(value).__name__}: {getattr(value, 'message', '')}"
        else:
            told = "= " + digest(value)
            if not isinstance(value, tuple):
                self.kept.append((item, value))
                del self.kept[:-8]
        note("got", self.number, item, told)
        self.n_got += 1

    def calls(self) -> None:
        note("run", self.number)
        futures = [
            self.executor.submit(
                submitted, self.number, item, value_of(0, self.number, item, self.phase.size(item))
            )
            for item in range(self.phase.n)
        ]
        for item, future in enumerate(futures):
            error = future.exception()
            self.got(item, error if error is not None else future.result())
        note("over", self.number, more="as told done")

    def gang(self) -> None:
        note("run", self.number)
        if len(self.executor.devices.ids) < 2:  # the others were drained
            self.executor.add("cpu*1")
        try:
            ids = ",".join(self.executor.devices.ids[:2])
            for item, value in enumerate(self.executor.gang(rank, (self.number, 2), devices=ids)):
                note("got", self.number, item, f"= {value}")
        except EvenloadError as error:
            note("over", self.number, more=f"{type(error).__name__} rank {getattr(error, 'rank', None)}")
        else:
            note("over", self.number, more="as told done")

    def beside(self) -> None:
        """Another map on the same executor: nothing that happens to the first may concern it."""
        number = self.number + BESIDE
        note("run", number)
        try:
            items = list(items_of(number, self.phase))
            for item, value in self.executor.map(Each(number), items).indexed():
                told = "= " + digest(value) if not isinstance(value, BaseException) else type(value).__name__
                note("got", number, item, told)
            note("over", number, more="as told done")
        except Exception as error:
            note("over", number, more=f"{type(error).__name__}: {error}")

    @property
    def folder(self) -> Path:
        return Path(os.environ[FOLDER])

    # --- acts -------------------------------------------------------------------------------------

    def act(self) -> None:
        for act in self.phase.acts:
            while self.n_got < act.at and not self.is_over.is_set():
                time.sleep(0.001)
            if self.is_over.is_set():
                return
            if ACTS[act.name](self.executor, act):
                note("fault", self.number, -1, f"act: {act.name}")


# Each returns whether it is a fault that has happened.


def drain(executor: Executor, act: Act, at_once: bool = False) -> bool:
    ids = executor.devices.ids
    if len(ids) == 1:
        executor.add("cpu*1")
    executor.drain(ids[act.choice % len(ids)], at_once=at_once)
    return True


def put_back(executor: Executor, act: Act) -> bool:
    """Drain a device and have it back at once, while it may still work."""
    ids = executor.devices.ids
    if len(ids) > 1:
        executor.drain(ids[act.choice % len(ids)])
        executor.add(ids[act.choice % len(ids)])
    return len(ids) > 1


def pause(executor: Executor, act: Act) -> bool:
    executor.pause()
    time.sleep(act.choice % 100 / 1000)
    executor.resume()
    return False


def refused_add(executor: Executor, act: Act) -> bool:
    for call in (lambda: executor.drain(*executor.devices.ids), lambda: executor.drain("cuda:77")):
        try:
            call()
        except ConfigError:
            continue
        note("left", more="a drain that leaves no device, or of an unknown one, was not refused")
    return False


def more_devices(executor: Executor, act: Act) -> bool:
    has_room = len(executor.devices.ids) < 5
    if has_room:
        executor.add("cpu*1")
    return has_room


def other_policy(executor: Executor, act: Act) -> bool:
    executor.set_policy(("pull", "measured", "guided")[act.choice % 3])
    return False


ACTS: dict[str, Callable[[Executor, Act], bool]] = {
    "drain": drain,
    "drain at once": lambda executor, act: drain(executor, act, at_once=True),
    "add": more_devices,
    "return": put_back,
    "pause": pause,
    "policy": other_policy,
    "refused add": refused_add,
}


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


# --- what is left in this process -----------------------------------------------------------------


def make_pipe_of_libuv() -> None:
    """Have torch's libuv make the pipe for signals, which a process has once and keeps: it is not left."""
    import torch.distributed as dist

    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def open_files() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)}


def is_open(fd: str) -> bool:
    try:
        os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return True


def look_around(before: set[str]) -> None:
    """Note threads, descriptors and memory of the executor that are left after it was closed."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("evenload"):
            note("left", more=f"thread {thread.name}")
    for file in sorted(open_files() - before):
        if "memfd:evenload" in file or "pipe:" in file or "socket:" in file:
            note("left", more=f"descriptor {file}")
    with open("/proc/self/maps") as maps:
        if any("memfd:evenload" in line for line in maps):
            note("left", more="a mapped segment")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    random.seed(int(os.environ[LIFE]))
    main()
