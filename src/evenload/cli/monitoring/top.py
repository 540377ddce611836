"""``evenload top``: the devices and the jobs of this machine, live."""

import contextlib
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psutil

from evenload._plain_text import number_text, seconds_text
from evenload._terminal import end_with_reader, own_codes
from evenload.cli.options import INTERVAL, color_option, page_json
from evenload.cli.terminal.table import format_bytes, format_table, one_line
from evenload.cli.terminal.text_charts import bar, has_blocks, sparkline
from evenload.devices.jobs import RunningJob, running_jobs
from evenload.report.pace import Pace, clock_text
from evenload.report.source import Follower
from evenload.report.tally import Tally
from evenload.settings import resolve, wants_color

if TYPE_CHECKING:
    from evenload.devices import DevicePool


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
        row = {"pid": job.pid, "name": job.name, "command": job.command}
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


N_HISTORY = 120
WIDE = 122  # columns of a terminal that has room for all
SCREEN, AS_BEFORE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"  # and long lines are cut
BAR = re.compile("[█▉▊▋▌▍▎▏·]{4,}|[#-]{4,}")
FIRST_READING_S = 0.1
COLUMNS = (
    *(
        "pid",
        "job",
        "stage",
        "done",
        "rate",
        "ETA",
        "failed",
        "imbal.",
        "useful",
        "lost most",
        "cpu",
        "memory",
    ),
    "runs for",
)
# Of a job's columns, those that fit a terminal of 80.
NARROW = ("pid", "job", "done", "rate", "ETA", "cpu")


@click.command()
@click.option(
    "-1", "--once", is_flag=True, help="Show it once and end; the default when the output is no terminal."
)
@click.option(
    "--interval", default=1.0, type=INTERVAL, show_default=True, metavar="SECONDS", help="Between two looks."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; without --once one a line.")
@color_option
def top(once: bool, interval: float, as_json: bool, color: str | None) -> int:
    """Show the devices' load and memory, and the evenload jobs that run, until q or Ctrl-C.

    Load is everybody's work, not only ours. Only jobs that you started with an evenload command are listed.
    """
    from evenload.devices.pool import DevicePool

    colored = wants_color(resolve({"color": color}).color, sys.stdout)
    is_live = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    end_with_reader()
    with DevicePool.discover() as pool:
        machine = MachineView(pool)
        machine.look()
        time.sleep(FIRST_READING_S)
        try:
            if as_json:
                return _print_json(machine, interval, once)
            if once or not is_live:
                time.sleep(FIRST_READING_S)
                machine.look()
                click.echo("\n".join(machine.lines(shutil.get_terminal_size((100, 24)).columns)))
                return 0
            return _watch(machine, interval, colored)
        except KeyboardInterrupt:
            return 0


class MachineView:
    """The devices and jobs of this machine, as of the last ``look()``, with the latest loads."""

    def __init__(self, pool: "DevicePool"):
        self._pool = pool
        self._jobs = FollowedJobs()
        self.jobs: list[JobRow] = []
        self.readings: dict[str, Any] = {}
        self.history: dict[str, deque[float | None]] = {}

    def look(self) -> None:
        self.readings = self._pool.readings()
        for device_id, reading in self.readings.items():
            self.history.setdefault(device_id, deque(maxlen=N_HISTORY)).append(reading.utilization)
        self.jobs = self._jobs.look()

    def devices(self) -> Iterator[tuple[Any, Any, float | None]]:
        """Each device with its reading and the share of its memory that is used."""
        for device in self._pool:
            reading = self.readings[device.id]
            total = reading.memory_total_bytes or device.memory_bytes
            used = reading.memory_used_bytes
            yield device, reading, used / total if used is not None and total else None

    def to_json(self) -> dict[str, Any]:
        devices = [
            {"id": device.id, "name": device.name, "kind": device.kind, **asdict(reading)}
            for device, reading, _ in self.devices()
        ]
        return {
            "schema": 1,
            "unix_s": time.time(),
            "devices": devices,
            "jobs": [asdict(j) for j in self.jobs],
        }

    def lines(self, width: int, height: int | None = None) -> list[str]:
        """The page as plain text; ``height``: of a screen that it has to itself, else it is as long as it is.

        On a screen there are loads over time where it is wide, and where not, only the columns that fit.
        """
        lines = self._lines(width, height)
        return lines if has_blocks() else [_ascii(line) for line in lines]

    def _lines(self, width: int, height: int | None) -> list[str]:
        ascii_only = not has_blocks()
        is_wide, is_screen = width >= WIDE, height is not None
        wide = max(8, min(30, width // 5))
        empty = "-" if ascii_only else "·"
        rows = []
        for device, reading, memory in self.devices():
            total = reading.memory_total_bytes or device.memory_bytes
            history = sparkline(list(self.history[device.id]), 24) if is_screen and is_wide else ""
            rows.append(
                [
                    device.id,
                    device.name[: 12 if is_screen and not is_wide else 28],
                    bar(reading.utilization, wide, ascii_only=ascii_only, empty=empty),
                    _percent(reading.utilization),
                    bar(memory, wide // 2, ascii_only=ascii_only, empty=empty) if memory is not None else "",
                    f"{format_bytes(reading.memory_used_bytes)} / {format_bytes(total)}",
                    "" if reading.temperature_c is None else f"{reading.temperature_c:.0f} C",
                    "" if ascii_only else history,
                ]
            )
        lines = format_table(["device", "name", "load", "", "memory", " ", "temp", "load over time"], rows)
        if not self.jobs:
            return [*lines, "", "no job of yours runs"]
        shown = [i for i, name in enumerate(COLUMNS) if is_wide or not is_screen or name in NARROW]
        jobs = [[job.cells()[i] for i in shown] for job in self.jobs]
        if height is not None:
            jobs = jobs[: max(1, height - len(lines) - 5)]
        head = [COLUMNS[i] for i in shown]
        return [*lines, "", *format_table(head, jobs, right=("pid", "rate", "useful", "cpu", "memory"))]

    def painted(self, width: int, height: int) -> list[str]:
        """The lines of a screen, with each device's bars in the colours of their shares."""
        head, *lines = self.lines(width, height)
        for at, (_, reading, memory) in enumerate(self.devices()):
            shares = iter((reading.utilization, memory))
            lines[at] = BAR.sub(lambda bar, left=shares: _coloured(bar[0], next(left, None)), lines[at])
        return [head, *lines]


def _print_json(machine: MachineView, interval: float, once: bool) -> int:
    while True:
        machine.look()
        click.echo(page_json(machine.to_json()))
        sys.stdout.flush()
        if once:
            return 0
        time.sleep(interval)


def _watch(machine: MachineView, interval: float, colored: bool) -> int:
    """Show the machine on a screen of its own until a key ends it; the terminal is as it was then."""
    screen = own_codes(sys.stdout)
    screen.write(SCREEN)
    try:
        with _keys() as pressed:
            while True:
                machine.look()
                size = shutil.get_terminal_size((100, 24))
                shown = machine.painted if colored else machine.lines
                lines = [f"evenload top  {time.strftime('%H:%M:%S')}", "", *shown(*size), "", "q ends"]
                screen.write(
                    "\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines[: size.lines - 1]) + "\x1b[J"
                )
                screen.flush()
                if pressed(interval) in ("q", "Q", "\x1b"):
                    return 0
    finally:
        screen.write(AS_BEFORE)
        screen.flush()


def _coloured(text: str, share: float | None) -> str:
    """``text`` in the colour of a load, as nvitop has them; the number beside the bar says the same."""
    code = 2 if share is None else 32 if share < 0.6 else 33 if share < 0.9 else 31
    return f"\x1b[{code}m{text}\x1b[m"


def _ascii(text: str) -> str:
    return text.replace("–", "-").encode("ascii", "replace").decode()


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits so many seconds for a key, "" if none came; keys need no Enter."""
    try:
        import select
        import termios
        import tty

        fd = sys.stdin.fileno()
        if not os.isatty(fd):
            raise OSError("standard input is no terminal")
    except (ImportError, OSError, ValueError, AttributeError):
        yield lambda seconds: time.sleep(seconds) or ""
        return
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([fd], [], [], seconds)
        return os.read(fd, 1).decode("latin-1") if ready else ""

    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
