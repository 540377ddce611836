"""What the workers did for one run: counted for its summary, and told as events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from evenload.balance.bound import StageWork
from evenload.balance.factors import like_of
from evenload.balance.metrics import imbalance
from evenload.balance.migrate import Move
from evenload.errors import TaskError
from evenload.events import ItemFailed, Moved, Restored, StageFinished, StageStarted
from evenload.executor.decide.delivery import Block
from evenload.executor.decide.kept_chunks import KeptChunks
from evenload.executor.decide.record import Record, scattered
from evenload.executor.decide.run_seconds import RunSeconds
from evenload.executor.decide.scheduler import Send
from evenload.executor.decide.summary import DeviceShare, Summary
from evenload.executor.task.answer import Answer
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class SentChunk(Generic[R]):
    """A chunk that a worker has. ``number`` names it among all chunks of the executor.

    cost           sum of the items' size hints
    dropped_s      when the worker was told to skip the rest
    is_released    its items but the one that runs were given to others
    is_warned_of   a person was told that it takes long
    is_tiny        it is expected to be done before the next could be sent
    late_at        position that was found to take too long, to be looked at once more
    overtime_at    position at which its worker was killed for taking too long
    due_s          when its worker was first seen free to begin it, and had not
    """

    number: int
    run: R
    send: Send
    worker: str
    dealt_s: float
    cost: float | None = None
    dropped_s: float | None = None
    is_released: bool = False
    is_warned_of: bool = False
    late_at: int | None = None
    overtime_at: int | None = None
    due_s: float | None = None
    is_tiny: bool = False

    def position_at_end(self, position: int) -> int:
        """Return ``position``, where its worker says that it ended, or PACKING if that cannot be."""
        return position if NOT_BEGUN <= position < len(self.send.items) else PACKING


@dataclass(slots=True)
class _Share:
    """What one device did: of the chunks whose results were the first, and busy seconds of all."""

    items: int = 0
    chunks: int = 0
    busy_s: float = 0.0


class RunAccount:
    """The counts and the events of one run, whose events carry ``stage``.

    n_duplicates  chunks that were sent although another device had their items
    n_failed      items that ended with an error
    seconds       what the devices' seconds went into
    kept          the chunks whose results counted, for a certificate
    """

    def __init__(
        self,
        record: Record,
        stage: str,
        devices: Mapping[str, Mapping[str, Any]],
        work: Mapping[str, float] | None = None,
    ):
        """``devices``: what is known of each; ``work``: what an item needs."""
        self.n_duplicates = self.n_failed = 0
        self._n_restored = self._n_workers_lost = self._result_bytes = 0
        self._record, self._stage = record, stage
        self._devices, self._work = devices, work
        self.seconds = RunSeconds()
        self._likes = {device: like_of(known) for device, known in devices.items()}
        self._work_done = StageWork(devices, likes=self._likes)
        self._shares = {device: _Share() for device in devices}
        self.kept = KeptChunks(stage)

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of the run, for ``json.dumps``. See ``KeptChunks``."""
        return self.kept.certificate(self._likes, self._work_done.shared())

    def begin(self, total: int | None) -> None:
        self._record.tell(StageStarted, self._stage, total)

    def close(
        self,
        n_items: int,
        total: int | None,
        began_s: float,
        end_s: float,
        startup_s: float,
        retries: Mapping[str, int],
        learned: str,
    ) -> Summary:
        """The run is over, and ``n_items`` of ``total`` have ended; None: how many there were is unknown."""
        bound, wall_s = self._work_done.bound(), end_s - began_s
        summary = Summary(
            total=n_items if total is None else total,
            done=n_items - self.n_failed,
            failed=self.n_failed,
            wall_s=wall_s,
            startup_s=startup_s,
            items_per_s=(n_items - self._n_restored) / wall_s if wall_s > 0 else 0.0,
            bound_s=bound.bound_s,
            bound_up_to_s=bound.up_to_s,
            ratio_to_bound=bound.ratio(wall_s - startup_s),
            limit=bound.limit,
            imbalance=imbalance([share.busy_s for share in self._shares.values()]),
            devices={
                device: DeviceShare(
                    share.items,
                    share.chunks,
                    share.busy_s,
                    share.busy_s / wall_s if wall_s > 0 else 0.0,
                    bound.speeds.get(device),
                )
                for device, share in self._shares.items()
            },
            duplicates=self.n_duplicates,
            workers_lost=self._n_workers_lost,
            restored=self._n_restored,
            retries=dict(retries),
            learned=learned,
            factors=self.seconds.factors(began_s, end_s, bound, self._devices, self._work or {}),
        )
        self._record.tell(StageFinished, self._stage, summary.bound_s or None, learned, self._result_bytes)
        return summary

    def answered(
        self, chunk: SentChunk[Any], device: str, answer: Answer, *, n_first: int, n_bytes: int = 0,
        suspects: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """``chunk`` came back, with the first results of ``n_first`` of its items; others had the rest.

        n_bytes   size of its results
        suspects  items of it that are tried again
        """
        self._result_bytes += n_bytes
        status = "superseded" if not n_first else "failed" if answer.failures else "ok"
        needed = n_first / max(n_first, len(answer.values)) if n_first else 0.0
        n_run, is_good = len(answer.values), not answer.failures
        work_s = answer.busy_s - answer.waited_s
        items, cost = chunk.send.items, chunk.cost
        if n_run < len(items):  # it was told to skip the rest
            items = items[:n_run] or items
            cost = None if cost is None else cost * len(items) / len(chunk.send.items)
        share = self._shares.setdefault(device, _Share())
        share.busy_s += answer.busy_s
        if n_first:
            share.items += n_first
            share.chunks += 1
            self._work_done.add(
                device, answer.busy_s * needed, n_first, cost=None if cost is None else cost * needed,
                is_good=is_good, waited_s=answer.waited_s * needed,
            )  # fmt: skip
            times = answer.start_s, answer.stop_s, work_s, answer.waited_s
            self.kept.add(device, items, *times, cost, is_good=is_good)
        if is_good and not answer.waited_s:  # nobody knows how long a copy of it would have waited
            self._work_done.add_shared(device, _key(items), 0.0, work_s, is_done=True)
        waits = answer.waited_s, answer.cpu_s
        self.seconds.worked(device, answer.start_s, answer.stop_s, answer.busy_s, needed, n_first, *waits)
        self._record.span(
            self._stage, device, chunk.worker, items, answer.start_s, answer.stop_s, answer.busy_s, status,
            chunk.send.why, chunk.dealt_s, chunk.send.duplicate, cost, *waits, suspects,
        )  # fmt: skip

    def ended(
        self, chunk: SentChunk[Any], device: str, now: float, status: str, suspects: Sequence[int] = ()
    ) -> None:
        """``chunk`` has no results: failed | lost | superseded; ``suspects`` of it are tried again."""
        since_s = self.seconds.lost(device, chunk.dealt_s, now, worker_died=status == "lost")
        if status == "superseded":
            self._work_done.add_shared(device, _key(chunk.send.items), since_s, now, is_done=False)
        send = chunk.send
        self._record.span(
            self._stage, device, chunk.worker, send.items, chunk.dealt_s, now, 0.0, status, send.why,
            chunk.dealt_s, send.duplicate, chunk.cost, suspects=suspects,
        )  # fmt: skip

    def worker_lost(self) -> None:
        self._n_workers_lost += 1

    def item_failed(self, item: int, error: TaskError, name: str, message: str, device: str) -> None:
        self.n_failed += 1
        self._record.tell(
            ItemFailed, self._stage, item, str(item), name, message, device, error.remote_traceback
        )

    def restored(self, blocks: Sequence[Block], items: tuple[int, ...]) -> None:
        """The results of ``items`` are there from an earlier run."""
        self._record.tell(Restored, self._stage, items[0], len(items), scattered(items))
        for block in blocks:
            if block.failed:
                (item,), (error,) = block.items, block.values
                self.item_failed(item, error, type(error).__name__, error.message, "")

    def count_journal(self, n_restored: int, what_is_lost: str) -> None:
        """``what_is_lost``: what a person should know of damaged entries, "" for none."""
        self._n_restored = n_restored
        if what_is_lost:
            self._record.note("warning", what_is_lost)

    def moved(self, move: Move) -> None:
        self._record.tell(Moved, move.source, move.target, move.n_items, move.imbalance)


def _key(items: "range | tuple[int, ...]") -> tuple[int, ...]:
    """Return what is the same of two chunks with the same items."""
    return (items.start, len(items)) if isinstance(items, range) else tuple(items)
