"""The record of a training on unequal devices: which rank did how many samples of which step, and how long.

    counts and seconds of each step ──► TrainingRecord ──► events ──► summary, report.html, certificate

Samples are the items of the run, and a rank's share of a step is one chunk. Steps follow one another, yet the
bound is that of all samples on all devices, at the speed that each had.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evenload.balance.bound import bound_of_spans
from evenload.balance.run_claim import StageChunks, Stretch, claim_run
from evenload.errors import ConfigError, printable, quoted
from evenload.events import (
    EventFile,
    EventLog,
    Idle,
    Note,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
)
from evenload.report.html import write_report
from evenload.report.summary import Summary

STAGE = "step"


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it was measured, the same on all ranks.

    number   of the step, from 0, over all epochs of this program
    counts   [ranks] samples
    seconds  [ranks] from the end of the last exchange until the rank's own gradients were ready
    """

    number: int
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Seconds until the last rank had done its part."""
        return max(self.seconds)

    @property
    def bound_s(self) -> float:
        """The least seconds in which these ranks, as fast as they were, could have done the batch."""
        spans = ((str(rank), one_s, n) for rank, (n, one_s) in enumerate(self._parts()))
        return min(self.step_s, bound_of_spans(spans).work_s)

    @property
    def ratio(self) -> float:
        """``step_s`` over ``bound_s``; 1 is the best possible."""
        return self.step_s / self.bound_s

    def certificate(self) -> dict[str, Any]:
        """Return the step as a certificate, for ``json.dumps``; see ``evenload.certificate``."""
        stage, first = StageChunks(STAGE), 0
        for rank, (n, seconds) in enumerate(self._parts()):
            ns = max(1, round(seconds * 1e9))
            if n:
                stage.add(rank, 0, ns, ns, [first, n], n, n, True)  # samples of a batch are of one size
            first += n
        lanes = {f"rank {rank}": 1 for rank in range(len(self.counts))}
        stop = max(row[2] for row in stage.rows)
        return claim_run(f"step {self.number}", [stage], lanes, [Stretch(0, stop, [stage], [1.0])], {})

    def _parts(self) -> list[tuple[int, float]]:
        return list(zip(self.counts, self.seconds, strict=True))


MOST_STEPS = 100_000  # with four ranks half a million events, a file of a hundred megabytes
MOST_TEXT = 2000
MOVED = 0.1  # of a share is worth a note
WAITS = "waits for the slowest rank"


class TrainingRecord:
    """A record of a training's steps in a folder: ``events.jsonl`` while it runs, ``report.html`` at its end.

    Make it on every rank alike: rank 0 keeps it for all, as it knows their seconds, and the others' does
    nothing. A rank's chunk begins when rank 0's does, as all leave the exchange of gradients together.

    folder   is made; None keeps no file, for a ``sink`` alone
    devices  [ranks] what each rank runs on, "cuda:0 NVIDIA GeForce RTX 4090" say
    rank     of this process
    name     of the run, as the report's head
    total    samples of the whole run, None if that is not known
    sink     is given every event as well

    Raises ConfigError without ranks, or for a folder that has a run.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        devices: Sequence[str],
        *,
        rank: int = 0,
        name: str = "training",
        total: int | None = None,
        most_steps: int = MOST_STEPS,
        sink: Callable[[Any], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not devices:
            raise ConfigError("a training without ranks has no record", hint="name the device of each rank")
        self.folder = Path(folder) if folder is not None and rank == 0 else None
        self._is_writer = rank == 0
        self._file = _new_file(self.folder) if self.folder is not None else None
        self._log = EventLog(*filter(None, (self._file, sink if rank == 0 else None)), clock=clock)
        self._tracks = [f"rank {rank}" for rank in range(len(devices))]
        self._n_steps = self._n_samples = 0
        self._most_steps = most_steps
        self._clock, self._zero = clock, clock()
        self._end_s = 0.0
        self._noted: tuple[int, ...] = ()
        named = {track: {"name": printable(text)} for track, text in zip(self._tracks, devices, strict=True)}
        facts = {"is_training": True, "pid": os.getpid()}
        self._log.emit(RunStarted(0.0, name, time.time(), total, named, facts))
        self._log.emit(StageStarted(0.0, "step", total))

    def step(
        self,
        counts: Sequence[int],
        seconds: Sequence[float],
        *,
        start: float | None = None,
        stop: float | None = None,
    ) -> None:
        """Record a step that has ended, with a note if shares have moved by more than a tenth.

        counts   [ranks] samples of each
        seconds  [ranks] until its gradients were there, without waiting for others
        start    when the step began, on the record's clock; by default when the step before ended
        stop     when all had ended it, on that clock; by default now
        Raises ConfigError if these are not as many as ranks.
        """
        if not len(counts) == len(seconds) == len(self._tracks):
            raise ConfigError(
                f"a step of {len(counts)} counts and {len(seconds)} times, on {len(self._tracks)} ranks",
                hint="give one of each for each rank",
            )
        if not self._is_writer:
            return
        now_s = (self._clock() if stop is None else stop) - self._zero
        start_s = self._end_s if start is None else min(max(start - self._zero, self._end_s), now_s)
        longest_s = max(seconds)
        # Clocks of ranks differ by little: a chunk never ends after the exchange that it was waited for.
        scale = min(1.0, (now_s - start_s) / longest_s) if longest_s > 0 else 1.0
        self._n_steps += 1
        if self._n_steps <= self._most_steps:
            self._emit_step(counts, [one * scale for one in seconds], start_s)
        elif self._n_steps == self._most_steps + 1:
            self.note(f"Steps after the first {self._most_steps} are not in this record.", "warning")
        self._end_s = max(now_s, self._end_s)
        self._note_shares(counts)

    def note(self, text: str, level: str = "info") -> None:
        """Add a sentence for a person. ``level``: info | warning | error."""
        self._log.emit(Note(self._clock() - self._zero, level, "training", printable(text, MOST_TEXT)))

    def _note_shares(self, counts: Sequence[int]) -> None:
        total = sum(counts)
        if not total or (self._noted and total < sum(self._noted)):
            return  # the last batch of an epoch
        pairs = zip(counts, self._noted or counts, strict=True)
        if self._noted and all(abs(n - before) <= MOVED * max(n, before) for n, before in pairs):
            return
        if self._noted:
            self.note(f"Step {self._n_steps}: shares are {_listed(counts)}, after {_listed(self._noted)}.")
        self._noted = tuple(counts)

    def _emit_step(self, counts: Sequence[int], seconds: Sequence[float], start_s: float) -> None:
        stop_s = start_s + max(seconds)
        for track, n, busy_s in zip(self._tracks, counts, seconds, strict=True):
            if n:
                index, end_s = self._n_samples, start_s + busy_s
                self._log.emit(Span("step", track, track, index, n, start_s, end_s, busy_s, cost=n))
                self._n_samples += n
            if stop_s - start_s > busy_s:
                self._log.emit(Idle(track, start_s + busy_s, stop_s, WAITS))

    def close(self, status: str = "done") -> Summary | None:
        """End the record and write the report; returns its numbers, None without a folder or on another rank.

        status  done | failed | interrupted
        """
        self._log.emit(StageFinished(self._end_s, "step"))
        self._log.emit(RunFinished(self._end_s, status, {"steps": self._n_steps}))
        if self._file is None or self.folder is None:
            return None
        self._file.close()
        return write_report(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if error is not None:
            self.note(quoted(error), "error")
        with contextlib.suppress(OSError, ConfigError):  # the training's own error is the one to see
            self.close("interrupted" if kind is KeyboardInterrupt else "failed")


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts[:32])) + (", ..." if len(counts) > 32 else "")


def _new_file(folder: Path) -> EventFile:
    path = folder / "events.jsonl"
    if path.exists():
        raise ConfigError(
            f"{quoted(str(folder))} has the record of a run already", hint="give each run a folder of its own"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return EventFile(path)
