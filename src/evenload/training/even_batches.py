"""``EvenBatches``: each rank's share of each global batch by its speed, and the whole batch's gradient.

    seconds of all ranks ──► Drift ──► shares of the steps that no rank has asked for yet ──► batch sampler
             ▲                                                                                     │
             └───── own gradients ready ◄── backward ◄── scale(loss) ◄── model ◄── batch ◄─────────┘

A loader asks for batches ahead of the training, on each rank as far as it likes. So each exchange says how
far each rank has asked, and other shares hold from the step after the farthest: no two ranks cut one batch
differently.
"""

import bisect
import contextlib
import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from evenload._arguments import flag, instance_of, number, seconds, suggests_arguments, whole
from evenload.errors import ConfigError, quoted
from evenload.training.drift import Drift, counts_of
from evenload.training.epoch_order import EpochOrder, Position, digest
from evenload.training.passes.grain_gradient import GrainGradient
from evenload.training.passes.micro_batch import MicroBatch, as_exact, micro_batches, steps, synchroniser
from evenload.training.passes.model_checks import check_graph, watch
from evenload.training.passes.step_clock import (
    BackwardMarks,
    HiddenWaits,
    MeasuredStep,
    StepClock,
    leave_out_waits,
)
from evenload.training.rank_group import RankGroup, agree, same_order
from evenload.training.record import Step, TrainingRecord
from evenload.training.shares import Cost, Shares, cost_of

LOG = logging.getLogger("evenload.training")
IN_STEPS = "loop over even.steps(loader, model), and over the micro-batches of each step"


class EvenBatches:
    """A batch sampler for ``DataLoader(batch_sampler=...)``, one on each rank of a data-parallel training.

    source        map-style data set, or a sampler with a length that yields the same on every rank
    global_batch  samples of a step, over all ranks
    micro_batch   samples that a rank trains at once: gradients are accumulated, see ``steps``
    most          samples that fit into this rank's memory at once; None: no limit
    shuffle, seed  of a data set: each epoch in the order of torch's DistributedSampler
    drop_last     leave out the samples at an epoch's end that are fewer than a global batch
    exact         the same weights, bit for bit, on any number of ranks with any shares; needs ``micro_batch``
    group         of torch.distributed; None: all ranks, or one rank where that is not in use
    record        rank 0 records each step in it
    stall_s       who has waited so long for another rank says which, as a warning of ``logging``
    timeout_s     how long a rank waits for the others in its own small exchanges

    Make it on every rank, after ``init_process_group``: they agree on all of it, and ``settings`` has it.
    Raises ConfigError, the same on every rank, if settings differ or make no sense; PeerLost, which names the
    rank, if one does not come; MissingExtra without torch.
    """

    @suggests_arguments
    def __init__(
        self, source: Any, *, global_batch: int, group: Any = None, micro_batch: int | None = None,
        most: int | None = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False,
        exact: bool = False, record: TrainingRecord | None = None, stall_s: float = 60.0,
        timeout_s: float = 600.0,
    ):  # fmt: skip
        self._ranks = RankGroup(group, seconds("timeout_s", timeout_s))
        given = {"global_batch": global_batch, "micro_batch": micro_batch, "drop_last": drop_last}
        given["exact"] = exact

        def make() -> tuple[tuple[EpochOrder, dict[str, Any]], dict[str, Any]]:
            if record is not None:
                instance_of("record", record, TrainingRecord, "an evenload.training.TrainingRecord")
            seconds("stall_s", stall_s)
            order = EpochOrder(source, shuffle=shuffle, seed=seed)
            settings = checked_settings(given, order.n_samples, self._ranks.size)
            own = None if most is None else whole("most", most, least=1)
            if settings["exact"] and own is not None and own < settings["micro_batch"]:
                raise ConfigError(
                    f"most={own} is less than a grain of {micro_batch}", hint="use a smaller micro_batch"
                )
            settings |= {"shuffle": order.is_shuffled, "seed": order.seed}
            return (order, settings), {**settings, "own": own}

        (self._order, self.settings), own = agree(self._ranks, make)
        self._micro = None if micro_batch is None else int(micro_batch)
        self._is_exact = exact
        self._gradient: GrainGradient | None = None
        self._global_batch, self._limit = int(global_batch), own[self._ranks.number]
        self._most = own if self._micro is None else None
        self._drift = Drift(self._ranks.size, self._global_batch, most=self._most, unit=self._micro or 1)
        self._table: list[tuple[tuple[int, int], Shares]] = [((0, 0), self._drift.shares)]
        self._at = Position(self._order.n_samples, self._global_batch, bool(drop_last))
        self._issued, self._queue = (0, -1), deque[MicroBatch]()
        self._clock, self._number = StepClock(), 0
        self._samples: Sequence[Any] = ()
        self._trained: tuple[Sequence[Any], int] = ((), 0)
        self._last: Step | None = None
        self._marks = BackwardMarks(self._own_ready, self._all_done)
        self._is_checked = self._ranks.size == 1 and self._micro is None
        self._is_watched = self._is_stepping = False
        self._hidden = HiddenWaits(self._micro or 1)
        if self._ranks.size > 1:
            leave_out_waits(self._clock)
        self._record = record
        self._times: dict[int, tuple[float, float]] = {}
        self._began_s = time.monotonic()
        self._stalls = self._ranks.watch(stall_s)
        if self._stalls:
            weakref.finalize(self, self._stalls.stop)

    # --- batches ----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[Any]]:
        """Begin an epoch, or go on in the middle of the one that was loaded; each batch a list of samples."""
        self._fold()
        epoch, start = self._at.begin()
        samples = self._order.of(epoch)
        if self._order.is_given:
            same_order(self._ranks, digest(samples), len(samples), self._order.n_samples)
        self._samples = samples
        self._issued = (self._issued[0] + 1, -1)
        self._queue.clear()
        self._clock.forget()
        return self._batches(samples, self._issued[0], start)

    def _batches(self, samples: Any, serial: int, start: int) -> Iterator[list[Any]]:
        for step, first in enumerate(range(start, self._at.n_used, self._global_batch)):
            if serial != self._issued[0]:
                return  # another epoch has begun
            self._fold()
            n = min(self._global_batch, self._at.n_used - first)
            unit = (self._micro or 1) if self._is_exact else 1
            counts = counts_of(self._shares_at((serial, step)), n, self._most, unit)
            self._issued = (serial, step)
            size = min((one for one in (self._micro, self._limit) if one is not None), default=None)
            for one, places in micro_batches(step, counts, self._ranks.number, size):
                self._queue.append(one)
                yield [samples[first + place] for place in places]

    def _shares_at(self, key: tuple[int, int]) -> Shares:
        at = bisect.bisect_right([start for start, _ in self._table], key) - 1
        del self._table[:at]
        return self._table[0][1]

    def __len__(self) -> int:
        """Steps of an epoch. Raises TypeError with micro-batches: their number goes by the speeds."""
        if self._micro is not None:
            raise TypeError("the number of micro-batches goes by the speeds; n_steps is that of the steps")
        return self.n_steps

    @property
    def n_steps(self) -> int:
        """Steps of an epoch."""
        return self._at.n_steps

    @property
    def n_left(self) -> int | None:
        """Batches of the epoch that are not trained yet; None with micro-batches."""
        return None if self._micro is not None else self._at.n_left

    # --- the gradient -----------------------------------------------------------------------------

    def scale(
        self, loss: Any, *, weight: Any = None, total: float | None = None,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> Any:  # fmt: skip
        """Return the loss of this rank's batch, scaled so that the mean of gradients is the global batch's.

        loss       the mean over this rank's samples, or with ``reduction="sum"`` their sum; of both, the
                   result is the global batch's mean. A rank's mean over no token at all is NaN: give its sum
        weight     what the loss is a mean or sum over, if not samples: its tokens without padding, say
        total      of all weights of this step on all ranks, as ``total`` returns; asked for if not given

        DDP and FSDP2 take the mean of the ranks' gradients. Call ``backward`` once for each batch. The first
        call looks at the graph. Raises ConfigError for a model whose gradient would not be exact, the same on
        every rank.
        """
        one = self._current()
        self._clock.use(loss.device)
        if not self._is_checked and loss.requires_grad:
            self._check(loss, one)
        if reduction not in ("mean", "sum"):
            raise ConfigError(f"reduction={quoted(reduction)}", hint='give "mean" or "sum"')
        if weight is None and total is not None:
            raise ConfigError("total is given, and no weight", hint="give weight, this rank's part of it")
        if weight is None:
            part, whole_ = one.n_samples, one.global_batch
        else:
            whole_ = self.total(weight) if total is None else number("total", total, is_zero_allowed=False)
            part = as_exact(weight, loss) if one.n_samples else 0
        if reduction == "sum":
            part = int(one.n_samples > 0)
        if self._gradient is not None:
            self._gradient.begin()
        # An exact gradient is the sum over grains; else a mean of ranks' is taken by DDP and FSDP2.
        scaled = loss * (part * ((1 if self._is_exact else self._ranks.size) / whole_))
        self._marks.watch(scaled)
        return scaled

    def steps(self, loader: Iterable[Any], model: Any) -> Iterator[Iterator[Any]]:
        """Yield for each step an iterator of its micro-batches; gradients are exchanged with the last.

        loader  of this sampler; ``model``: DistributedDataParallel, or sharded by ``fully_shard``

            for step in even.steps(loader, model):
                for x, y in step:
                    even.scale(loss_fn(model(x), y)).backward()
                optimizer.step()
                optimizer.zero_grad()
        """
        tell = self._exactly(model) if self._is_exact else synchroniser(model, self._ranks.size)
        self._is_stepping = True
        try:
            yield from steps(loader, lambda: self._queue[0] if self._queue else None, tell)
        finally:
            self._is_stepping = False

    def _exactly(self, model: Any) -> Callable[[bool], None]:
        """Make the gradient exact from now on; return what seeds each grain. Raises ConfigError."""

        def make() -> tuple[GrainGradient, dict[str, Any]]:
            n_grains = -(-self._global_batch // (self._micro or 1))
            made = GrainGradient(
                model, n_grains, lambda sums: self._ranks.add_up(sums, f"step {self._number}")
            )
            return made, made.facts()

        self._gradient, _ = agree(self._ranks, make)
        gradient = self._gradient

        def seed(_: bool) -> None:
            epoch, n_trained = self._at.place
            gradient.seed(self._order.seed, epoch, n_trained + self._queue[0].place)

        return seed

    def loader(self, dataset: Any, **options: Any) -> Any:
        """Return a ``DataLoader`` of these batches, which ``accelerate.prepare`` leaves as it is.

        Others would deal the batches out once more. ``options`` are the DataLoader's.
        """
        from evenload.training.even_loader import EvenLoader

        return EvenLoader(dataset, batch_sampler=self, **options)  # pyrefly: ignore

    def total(self, weight: Any) -> float:
        """Return the sum of a weight over all ranks. Every rank has to call it, in the same step.

        With micro-batches give the weight of all of a step's, before the first.
        """
        mine = float(weight) if self._current().n_samples else 0.0
        found = [one[0] for one in self._ranks.gather([mine], f"step {self._number}")]
        for rank, given in enumerate(found):
            if not 0 <= given < math.inf:
                raise ConfigError(
                    f"rank {rank} has weight {given}", hint="give a finite number of at least 0"
                )
            if self._is_exact and not given.is_integer():
                raise ConfigError(
                    f"rank {rank} has weight {given}: its sum depends on the shares",
                    hint="with exact=True give whole numbers, such as tokens",
                )
        if not any(found):
            raise ConfigError("the weights of all ranks are 0", hint="skip() the batch")
        return sum(found)

    def watch(self, model: Any) -> None:
        """Leave FSDP2's waits for others inside ``model`` out of the times, and look for BatchNorm.

        Call it once, after ``fully_shard``. Raises ConfigError for BatchNorm without sync, and for
        SyncBatchNorm if an epoch's last batch is too small for all ranks.
        """
        if self._ranks.size > 1:
            watch(model, self._clock.pause, self._clock.resume, is_last_full=self._is_last_full)
        self._is_watched = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave a wait for other ranks out of the times that torch.distributed knows nothing of."""
        is_held = self._clock.hold()
        try:
            yield
        finally:
            if is_held:
                self._clock.resume()

    @property
    def _is_last_full(self) -> bool:
        return self._at.is_last_full(self._ranks.size)

    def skip(self) -> None:
        """Leave out the batch at hand, on every rank: it is not trained. Not for micro-batches."""
        if self._micro is not None:
            raise ConfigError("skip() leaves out no micro-batch", hint="train it with its loss times 0")
        self._at.passed(self._current().global_batch)
        self._queue.popleft()
        self._clock.forget()
        self._clock.begin()

    def _current(self) -> MicroBatch:
        if not self._queue:
            raise ConfigError(
                "there is no batch to train: none of this sampler was taken, or each was trained",
                hint="take batches from DataLoader(dataset, batch_sampler=even); one backward for each",
            )
        if self._micro is not None and not self._is_stepping:
            raise ConfigError("micro-batches are trained outside of steps", hint=IN_STEPS)
        return self._queue[0]

    def _check(self, loss: Any, one: MicroBatch) -> None:
        def judge() -> tuple[bool, dict[str, Any]]:
            is_sure = check_graph(
                loss,
                n_samples=one.n_samples,
                is_watched=self._is_watched,
                is_accumulated=self._micro is not None,
                is_last_full=self._is_last_full,
            )
            return True, {"own": is_sure}

        _, is_sure = agree(self._ranks, judge)
        self._is_checked = any(is_sure)

    # --- steps ------------------------------------------------------------------------------------

    def _own_ready(self) -> None:
        if self._gradient is not None and self._queue:
            self._gradient.add(counts=self._queue[0].n_samples > 0)
        self._clock.count_thread()  # of the backward pass, which on a GPU is another
        if self._queue and self._queue[0].is_last:
            self._clock.pause()
            if self._stalls:
                self._stalls.waiting(self._number)

    def _all_done(self) -> None:
        if self._stalls:
            self._stalls.done()
        if not self._queue:
            return
        one = self._queue.popleft()
        if not one.is_last:
            return
        if self._gradient is not None:
            self._gradient.finish()
        self._clock.close(self._number, one.n_step)
        self._clock.begin()
        began_s, self._began_s = self._began_s, time.monotonic()
        self._times[self._number] = (began_s, self._began_s)
        first = self._at.place[1]
        self._trained = self._samples[first : first + one.global_batch], one.n_step
        self._at.passed(one.global_batch)
        if self._gradient is not None:  # what is drawn between steps is the same on all ranks, too
            self._gradient.seed(self._order.seed, *self._at.place)
        self._number += 1
        self._fold()
        found = self._clock.measured() or MeasuredStep(-1, 0, 0.0, math.nan)
        seen = found.number, found.n_samples, found.seconds, found.busy_s
        self._ranks.start([*map(float, self._issued), *seen])

    def _fold(self) -> None:
        """Take in what the ranks said of a step, if they did."""
        said = self._ranks.take(f"step {self._number}")
        if said is None:
            return
        serial, step = max((int(one[0]), int(one[1])) for one in said)
        counts, times = tuple(int(one[3]) for one in said), tuple(one[4] for one in said)
        if self._drift.observe(counts, times):
            self._table.append(((serial, step + 1), self._drift.shares))
        if len({one[2] for one in said}) == 1 and said[0][2] >= 0 and all(times):
            self._last = Step(int(said[0][2]), counts, times)
            hidden = self._hidden.observe(counts, times, [one[5] for one in said])
            if hidden and self._ranks.number == 0:
                LOG.warning(hidden)
            if self._record and self._last.number in self._times:
                start, stop = self._times.pop(self._last.number)
                self._record.step(counts, times, start=start, stop=stop)
        for old in [one for one in self._times if one < self._number - 64]:
            del self._times[old]

    # --- what is known ----------------------------------------------------------------------------

    @property
    def shares(self) -> Shares:
        """Shares of the steps that no rank has asked for yet."""
        return self._drift.shares

    @property
    def last(self) -> Step | None:
        """The last step that was measured on all ranks; None before one was."""
        return self._last

    @property
    def ranks(self) -> RankGroup:
        """The ranks of this training."""
        return self._ranks

    @property
    def place(self) -> tuple[int, int]:
        """The epoch, and how many of its samples are trained."""
        return self._at.place

    @property
    def trained(self) -> tuple[int, Sequence[Any], int]:
        """Steps that this program has trained; samples of the last one, of all ranks; this rank's number."""
        return self._number, *self._trained

    def coming(self, n: int) -> list[MicroBatch]:
        """Return the next ``n`` batches that were asked for and are not trained."""
        return [one for one, _ in zip(self._queue, range(n), strict=False)]

    def close(self) -> None:
        """Take in the last step, after it; the record is then to be closed. Every rank calls it."""
        self._fold()

    # --- checkpoints ------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop is; else the next one, also if the last was left early."""
        self._at.set_epoch(epoch)

    def go_to(self, epoch: int, n_steps: int) -> None:
        """Begin next in an epoch of which ``n_steps`` were trained, as after ``load_state_dict``."""
        self._at.go_to(epoch, n_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training is, after its last step, and the ranks' speeds; JSON can hold it."""
        costs = [None if one is None else [one.launch_s, one.per_item_s] for one in self._drift.costs]
        return {**self._at.to_json(), "costs": costs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called, also on other ranks and with another global batch.

        Raises ConfigError if it is damaged or of other samples, the same on every rank.
        """
        costs, _ = agree(self._ranks, lambda: self._loaded(state))
        self._drift = Drift(
            self._ranks.size, self._global_batch, most=self._most, unit=self._micro or 1, costs=costs
        )
        self._table = [((self._issued[0], self._issued[1] + 1), self._drift.shares)]

    def _loaded(self, state: Mapping[str, Any]) -> tuple[list[Cost | None], dict[str, Any]]:
        """Take over a state: the costs of as many ranks are used again, and all ranks have the same."""
        self._at.load(state)
        given = state.get("costs")
        if not isinstance(given, list) or len(given) != self._ranks.size:
            given = [None] * self._ranks.size
        costs = [None if one is None else cost_of("a cost of the state", one) for one in given]
        return costs, {"place in the epoch": [*self._at.to_json().values()], "digest of costs": digest(costs)}


def checked_settings(given: Mapping[str, Any], n_samples: int, n_ranks: int) -> dict[str, Any]:
    """Return the settings that all ranks have to have alike. Raises ConfigError."""
    batch = whole("global_batch", given["global_batch"], least=1)
    micro = None if given["micro_batch"] is None else whole("micro_batch", given["micro_batch"], least=1)
    drop_last = flag("drop_last", given["drop_last"])
    if flag("exact", given["exact"]) and micro is None:
        raise ConfigError("exact=True without micro_batch", hint="give micro_batch, the samples of a grain")
    if n_samples < n_ranks:
        raise ConfigError(
            f"{n_samples} samples are fewer than {n_ranks} ranks", hint="use more samples, or fewer ranks"
        )
    if drop_last and n_samples < batch:
        raise ConfigError(
            f"{n_samples} samples make no global batch of {batch}",
            hint="use drop_last=False, or a smaller one",
        )
    return {
        "global_batch": batch,
        "samples": n_samples,
        "micro_batch": micro,
        "drop_last": drop_last,
        "exact": given["exact"],
    }
