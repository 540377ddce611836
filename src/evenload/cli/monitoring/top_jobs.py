"""The jobs that run on this machine: what their processes use, and how far they are by their events."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from evenload._plain_text import number_text, seconds_text
from evenload.cli.terminal.table import format_bytes, one_line
from evenload.dashboard.follow import Follower
from evenload.devices.jobs import RunningJob, running_jobs
from evenload.report.pace import Pace, clock_text
from evenload.report.tally import Tally

# Read at most so many pieces of a job's events at one look: a long history takes several looks.
MOST_PIECES = 8


@dataclass(frozen=True)
class JobRow:
    """A job that runs. ``cpu`` is in cores; it and ``memory_bytes`` include the job's workers.

    ``useful`` is the share of its time so far that was useful work at the devices' speed, ``factors``
    multiply to it, and ``lost_most`` is the factor that took most seconds, with these.
    """

    pid: int
    name: str
    command: str
    runs_s: float
    cpu: float
    memory_bytes: int
    stage: str = ""
    done: int | None = None
    total: int | None = None
    items_per_s: float | None = None
    eta_s: float | None = None
    failed: int = 0
    imbalance: float | None = None
    useful: float | None = None
    factors: dict[str, float | None] = field(default_factory=dict)
    lost_most: str = ""
    page: str | None = None

    def cells(self) -> list[str]:
        """The texts of a row; empty where a figure is unknown."""
        of = f" of {self.total}" if self.total is not None else ""
        return [
            str(self.pid),
            one_line(self.name)[:32],
            one_line(self.stage)[:16],
            "" if self.done is None else f"{self.done}{of}",
            f"{number_text(self.items_per_s)}/s" if self.items_per_s else "",
            "" if self.eta_s is None else clock_text(self.eta_s),
            str(self.failed) if self.failed else "",
            "" if self.imbalance is None else f"{self.imbalance:.2f}",
            "" if self.useful is None else f"{self.useful:.0%}",
            self.lost_most,
            f"{100 * self.cpu:.0f}%",
            format_bytes(self.memory_bytes),
            clock_text(self.runs_s),
        ]


class FollowedJobs:
    """The evenload jobs of this user, followed from one ``look()`` to the next."""

    def __init__(self) -> None:
        self._followed: dict[str, tuple[Follower, Pace, Tally]] = {}
        self._processes: dict[int, psutil.Process] = {}

    def look(self) -> list[JobRow]:
        jobs = running_jobs()
        paths = {job.events for job in jobs if job.events}
        self._followed = {path: one for path, one in self._followed.items() if path in paths}
        return [self._row(job) for job in jobs]

    def _row(self, job: RunningJob) -> JobRow:
        cpu, memory = self._usage(job.pid)
        pace, tally = self._read(job.events) if job.events else (None, None)
        row = {"pid": job.pid, "name": job.name, "command": job.command, "page": job.page}
        row |= {"runs_s": max(0.0, time.time() - job.unix_s), "cpu": cpu, "memory_bytes": memory}
        if pace is not None and pace.stage:
            row |= {"stage": pace.stage, "done": pace.n_done, "total": pace.total, "failed": pace.n_failed}
            row |= {"items_per_s": pace.items_per_s, "eta_s": pace.eta_s, "imbalance": pace.imbalance}
        factors = tally.summary().factors if tally is not None else None
        if factors is not None:
            row |= {"useful": factors.share, "factors": {one.name: one.value for one in factors.parts}}
            most = factors.largest
            row["lost_most"] = f"{most.name} {seconds_text(most.lost_s)}" if most is not None else ""
        return JobRow(**row)  # pyrefly: ignore

    def _read(self, path: str) -> tuple[Pace, Tally]:
        fresh = (Follower(Path(path), only_own=True), Pace(), Tally())
        follower, pace, tally = self._followed.setdefault(path, fresh)
        for _ in range(MOST_PIECES):
            events = follower.read()
            if events is None:
                pace, tally = Pace(), Tally()
                self._followed[path] = (follower, pace, tally)
            for event in events or ():
                pace(event)
                tally.add(event)
            if not follower.is_behind:
                break
        return pace, tally

    def _usage(self, pid: int) -> tuple[float, int]:
        """Cores in use since the last look, and resident bytes, of a process and all below it."""
        cpu, memory = 0.0, 0
        with contextlib.suppress(psutil.Error):
            parent = self._process(pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    one = self._process(process.pid)
                    cpu += one.cpu_percent(None) / 100
                    memory += one.memory_info().rss
        self._processes = {n: one for n, one in self._processes.items() if one.is_running()}
        return cpu, memory

    def _process(self, pid: int) -> psutil.Process:
        if pid not in self._processes:
            self._processes[pid] = psutil.Process(pid)
        return self._processes[pid]
