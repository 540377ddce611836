"""Who takes too long: items over their time limit, workers that do not stop when told, and the merely odd."""

from collections.abc import Iterable

from evenload.executor.backends import Backend
from evenload.executor.decide.record import Record
from evenload.executor.loop.device_slot import Seat, Worker
from evenload.executor.loop.run import Job

__all__ = ["Watch"]

LOOK_S = 1.0  # how often to look, if no time limit asks for more
STUCK_S = 1.0  # an item that runs so long, and much longer than all before, shall not hold up its chunk
STUCK_TIMES = 20.0
SUSPICIOUS_S = 30.0  # and if it goes on for so long, a person should know
PATIENCE_S = 0.5  # at least, for a worker to finish what nobody needs any more


class Watch:
    """Looks where workers are, and has those killed that are over time. ``due_s``: when to look next."""

    def __init__(self, backend: Backend, record: Record):
        self.due_s = 0.0
        self._backend = backend
        self._record = record

    def expect(self, now: float, timeout_s: float | None) -> None:
        """A chunk was sent whose items have a time limit."""
        if timeout_s is not None:
            self.due_s = min(self.due_s, now + timeout_s)

    def look(self, seats: Iterable[Seat], now: float) -> None:
        self.due_s = now + LOOK_S
        for seat in seats:
            if seat.worker is not None and seat.worker.jobs:
                self._look_at(seat, seat.worker, seat.worker.jobs[0], now)

    def _look_at(self, seat: Seat, worker: Worker, job: Job, now: float) -> None:
        position, seconds = self._backend.place(worker.number)
        limit_s = job.run.options.timeout_s
        is_stuck = position >= 0 and seconds > max(STUCK_S, STUCK_TIMES * job.run.longest_s)
        if is_stuck and not job.is_released:
            job.is_released = True
            if job.run.release_rest(job, seat.id, position, now, has_queue=len(worker.jobs) > 1):
                self._backend.drop(worker.number, worker.jobs[-1].number)
        # Others wait for this device. To replace the worker takes about as long as its start did; to wait for
        # as long costs at most twice what knowing the future would.
        if job.dropped_s is not None and now - job.dropped_s > max(PATIENCE_S, worker.startup_s):
            self._backend.kill(worker.number)
        elif limit_s is None:
            if position >= 0 and not job.is_warned_of:
                self._suspect(seat, job, position, seconds)
        elif job.overtime_at is None:
            n_at_once = 1 if job.send.singly else min(job.run.n_per_call, len(job.send.items))
            left_s = limit_s * n_at_once - seconds if position >= 0 else limit_s
            if left_s > 0:
                self.due_s = min(self.due_s, now + left_s)
            else:
                job.overtime_at = position
                self._backend.kill(worker.number)

    def _suspect(self, seat: Seat, job: Job, position: int, seconds: float) -> None:
        if seconds > max(SUSPICIOUS_S, STUCK_TIMES * job.run.longest_s):
            job.is_warned_of = True
            item = job.send.items[position]
            text = (
                f"item {item} has been running for {seconds:.0f} s on {seat.id}; set timeout_s if it may hang"
            )
            self._record.note("warning", text)
