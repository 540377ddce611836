"""A device's place in the executor, and the worker that sits there: starting, loading, idle or busy.

Workers come and go, the seat stays. It decides when a worker that is lost is replaced, and when it is no use.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from evenload.devices import Device
from evenload.executor.loop.run import Job
from evenload.executor.task.task import Task

__all__ = ["Seat", "Worker"]

MOST_EARLY_DEATHS = 3
BACK_OFF_S = 0.2  # before the second attempt to start a worker; doubles


@dataclass(slots=True, eq=False)
class Worker:
    """One process (or its like) in its life from start to end.

    startup_s  from the decision to start it until its first task was built; or a later task's build
    tasks      those that are built there
    loading    the task that is being built
    is_removed it is killed with what it runs, because its device shall go at once
    jobs       the chunk that it runs, and maybe one that waits behind it
    """

    number: int
    name: str
    device: str
    asked_s: float
    startup_s: float = 0.0
    is_up: bool = False
    has_worked: bool = False
    pid: int | None = None
    tasks: dict[int, Task] = field(default_factory=dict)
    loading: Task | None = None
    is_removed: bool = False
    jobs: deque[Job] = field(default_factory=deque)

    @property
    def is_idle(self) -> bool:
        return self.is_up and not self.jobs and self.loading is None

    @property
    def may_queue(self) -> bool:
        """It runs something so short that the next chunk had better be there already."""
        return len(self.jobs) == 1 and self.loading is None and self.jobs[0].is_tiny


@dataclass(slots=True, eq=False)
class Seat:
    """``device`` with the environment of its workers.

    refusals  why a task cannot be built here, by the task's number
    lost      why there will be no worker here any more
    rest      why and since when the device was last left without work
    stop_by_s when a worker that was told to leave is killed
    """

    device: Device
    environment: Mapping[str, str]
    id: str = ""
    worker: Worker | None = None
    n_started: int = 0
    n_early_deaths: int = 0
    not_before_s: float = 0.0
    refusals: dict[int, str] = field(default_factory=dict)
    lost: str | None = None
    rest: tuple[str, float] | None = None
    is_draining: bool = False
    stop_by_s: float | None = None

    def may_start(self, now: float) -> bool:
        return self.worker is None and self.lost is None and not self.is_draining and now >= self.not_before_s

    @property
    def may_work(self) -> bool:
        return self.worker is not None and self.worker.is_idle and self.stop_by_s is None

    def new_worker(self, number: int, now: float) -> Worker:
        self.n_started += 1
        self.worker = Worker(number, f"{self.id}/{self.n_started}", self.id, now)
        return self.worker

    def worker_ended(self, reason: str, now: float, last_words: str = "") -> None:
        """Take note. A worker that never worked may be tried again, some times and with patience."""
        self.stop_by_s = None
        said = last_words.strip().rpartition("\n")[2]
        said = f", saying: {said}" if said else ""
        worker, self.worker = self.worker, None
        if worker is None or worker.has_worked:
            self.n_early_deaths = 0
            return
        if worker.loading is not None and self.n_early_deaths >= 1:
            self.refusals[worker.loading.id] = (
                f"its worker {reason} while it was building {worker.loading.name}{said}"
            )
            self.n_early_deaths = 0
            return
        self.n_early_deaths += 1
        if self.n_early_deaths >= MOST_EARLY_DEATHS:
            self.lost = f"its worker {reason} {self.n_early_deaths} times at the start{said}"
        else:
            self.not_before_s = now + BACK_OFF_S * 2 ** (self.n_early_deaths - 1)
