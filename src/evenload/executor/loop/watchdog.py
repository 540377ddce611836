"""Finds who takes too long: items over their time limit, workers that do not stop, slow items."""

from collections.abc import Iterable, Sequence

from evenload.executor.decide.record import Record
from evenload.executor.run.run import Run, Sent
from evenload.executor.supervisor.awake_clock import LATE_S, AwakeClock
from evenload.executor.supervisor.supervisor import Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.transport.progress_cell import NOT_BEGUN

LOOK_S = 1.0  # how often to look, if no time limit asks for more
STUCK_S = 1.0  # an item that runs so long, and much longer than all before, shall not hold up its chunk
STUCK_TIMES = 20.0
SUSPICIOUS_S = 30.0  # and if it goes on for so long, a person should know
PACKING_S = 10.0  # beside their time limits, for items to be unpickled, or their results to be pickled
PATIENCE_S = 0.5  # at least, for a worker to finish what nobody needs any more


class Watchdog:
    """A timer for items: looks where workers are, and has those killed that are over time.

    What passes while the whole program is stopped (by Ctrl-Z, or with its machine) counts for no item.

    due_s  when to look next
    """

    def __init__(self, supervisor: Supervisor, record: Record):
        self.due_s = 0.0
        self._supervisor = supervisor
        self._record = record
        self._clock = AwakeClock(LATE_S, counted_s=0.0)

    def expect(self, now: float, timeout_s: float) -> None:
        """A chunk was sent whose items have a time limit."""
        self.due_s = min(self.due_s, now + timeout_s)

    def look(self, workers: Iterable[Worker], runs: Sequence[Run], now: float) -> None:
        """Look at all ``workers``. One that is stuck with a copy is freed if ``runs`` have items for it."""
        self._clock.look(now, self.due_s)
        self.due_s = now + LOOK_S
        for worker in workers:
            if worker.chunks:
                is_wanted = any(run.has_items_for(worker.slot) for run in runs)
                self._look_at(worker, worker.chunks[0], is_wanted, now)

    def _look_at(self, worker: Worker, chunk: Sent, is_wanted: bool, now: float) -> None:
        position, seconds = self._supervisor.progress(worker)
        seconds = self._clock.since(now - seconds, now)
        position = chunk.position_at_end(position)
        sizing, limit_s = chunk.run.sizing, chunk.run.options.timeout_s
        is_stuck = position >= 0 and seconds > max(STUCK_S, STUCK_TIMES * sizing.longest_s)
        if is_stuck and not chunk.is_released:
            chunk.is_released = True
            if chunk.run.release_rest(chunk, worker.slot, position, now, has_queue=len(worker.chunks) > 1):
                self._supervisor.drop(worker, worker.chunks[-1])
        if is_stuck and is_wanted and chunk.send.duplicate and chunk.dropped_s is None:
            chunk.dropped_s = now
            self._supervisor.drop(worker, chunk)
        # Others wait for this device. To replace the worker takes about as long as its start did; to wait for
        # as long costs at most twice what knowing the future would.
        if chunk.dropped_s is not None and now - chunk.dropped_s > max(PATIENCE_S, worker.startup_s):
            self._supervisor.kill(worker, "was replaced: nobody needed what it still ran")
        elif limit_s is None:
            if position >= 0 and not chunk.is_warned_of:
                self._suspect(worker, chunk, position, seconds)
        elif chunk.overtime_at is None:
            if position == NOT_BEGUN and worker.loading is None:
                chunk.due_s = now if chunk.due_s is None else chunk.due_s
                seconds = self._clock.since(chunk.due_s, now)
            left_s = self._left_s(chunk, limit_s, position, seconds)
            if left_s > 0:
                self.due_s = min(self.due_s, now + left_s)
            elif chunk.late_at != position:  # news may wait, and the program been stopped a moment ago
                chunk.late_at, self.due_s = position, now
            elif position == NOT_BEGUN:  # stopped, or stuck: its items are not to blame, and run elsewhere
                self._supervisor.kill(worker, "did not begin what it was sent")
            else:
                chunk.overtime_at = position
                self._supervisor.kill(worker)

    def _left_s(self, chunk: Sent, limit_s: float, position: int, seconds: float) -> float:
        """How long it may stay where it is. To pickle and unpickle is limited, too, for all items at once."""
        n_items = len(chunk.send.items)
        if position >= 0:
            n_at_once = 1 if chunk.send.singly else min(chunk.run.sizing.n_per_call, n_items)
            return limit_s * n_at_once - seconds
        return limit_s * n_items + PACKING_S - seconds

    def _suspect(self, worker: Worker, chunk: Sent, position: int, seconds: float) -> None:
        if seconds > max(SUSPICIOUS_S, STUCK_TIMES * chunk.run.sizing.longest_s):
            chunk.is_warned_of = True
            item = chunk.send.items[position]
            where = f"on {worker.slot}; set timeout_s if it may hang"
            text = f"item {item} has been running for {seconds:.0f} s {where}"
            self._record.note("warning", text)
