"""Slots: a row of every stacked tensor, held by one client at a time.

Clients wait in order of their steps, the longest first. A slot whose client is through takes the next; when
none waits, the last live row moves into the gap and the live prefix shrinks. So no finished client is ever
stepped, however ragged the clients are.

    segment   steps during which no slot changes hands; planned on the host in one go
"""

import functools
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .fuse import Form, Lane, StepFn, StepOutput
from .pool import RowPool, make_pool
from .result import ClientResult, Row
from .scalars import Scalars
from .steps import StepTable
from .task import Task

__all__ = ["SlotRun"]

GATHER_BYTES = 1 << 20  # of examples at once: few calls, and still in the cache when they are used
FEW_RUNS = 4  # of neighbouring slots: so many slices are written faster than one list of slots


class SlotRun:
    """Trains what waits in ``queue`` (of one form, none empty) over a few rows; one use only.

    tasks  all that may come out of the queue, longest first; runs in several threads may share one queue
    step   the fused step; ``sizes`` are the numbers of rows that it may be called with, ascending
    names  state dict name -> the name its tensor has here (tied parameters share one)
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        queue: deque[Task],
        form: Form,
        step: StepFn,
        names: dict[str, str],
        sizes: Sequence[int],
        device: str = "cpu",
    ):
        self._waiting = queue
        self._form, self._step, self._names, self._device = form, step, names, device
        self._sizes = list(sizes)
        self.n_slots = self._sizes[-1]
        dtype = next(tasks[0].start[n] for n in names if names[n] == form.trained[0]).dtype
        self._pool: RowPool = make_pool(tasks, self.n_slots, device)
        self._table = StepTable(tasks, self._pool, dtype, device)
        self._scalars = Scalars(tasks, form, dtype, device)
        self._lane = self._make_lane(tasks)
        self._windows: dict[int, Lane] = {}
        self._tasks: list[Task] = []  # of the live prefix of slots
        # Per slot: its client's first line in the table, its next one and its last one's next; where its rows
        # begin in the pool; and whether it has diverged.
        self._first, self._next, self._end, self._begin, self._is_dead = np.zeros((5, self.n_slots), np.int64)
        self.client_steps = 0  # rows stepped that belonged to a client
        self.row_steps = 0  # rows stepped

    def results(self) -> Iterator[list[ClientResult]]:
        """Lists of clients that ended together, as they end."""
        self._enter(list(range(self.n_slots)))
        while self._tasks:
            self._run_segment()
            live = len(self._tasks)
            done = np.flatnonzero(self._next[:live] == self._end[:live]).tolist()
            yield self._leave(done)
            self._refill(done)

    # --- tables -----------------------------------------------------------------------------------

    def _make_lane(self, tasks: Sequence[Task]) -> Lane:
        start = tasks[0].start
        source = {own: start[name] for name, own in self._names.items()}

        def empty(names: Sequence[str]) -> dict[str, Tensor]:
            return {
                n: torch.zeros((self.n_slots, *source[n].shape), dtype=source[n].dtype, device=self._device)
                for n in names
            }

        form = self._form
        slots = tasks[0].recipe.optimizer.slots(form.optimizer)
        frozen = (
            empty(form.frozen)
            if not form.shares_frozen
            else {n: source[n].to(self._device) for n in form.frozen}
        )
        return Lane(
            params=empty(form.trained),
            state={slot: empty(form.trained) for slot in slots},
            buffers=empty(form.buffers),
            frozen=frozen,
            anchor=empty(form.trained) if form.prox else {},
            correction=empty(form.trained) if form.correction else {},
            alive=torch.ones(self.n_slots, dtype=torch.bool, device=self._device),
        )

    def _tables(self) -> list[Tensor]:
        lane = self._lane
        others = [lane.anchor, lane.correction, *([] if self._form.shares_frozen else [lane.frozen])]
        return [*lane.changing(), *(t for table in others for t in table.values())]

    def _enter(self, slots: list[int]) -> int:
        """Give the next waiting clients these slots, behind the live prefix or freed; says how many."""
        entering = []
        while len(entering) < len(slots):
            try:
                entering.append(self._waiting.popleft())
            except IndexError:  # none is left: another thread may have been faster
                break
        if not entering:
            return 0
        slots = slots[: len(entering)]
        lane, places = self._lane, _runs(slots)
        own = {own: name for name, own in self._names.items()}
        starts = [t.start for t in entering]
        self._put({**lane.params, **lane.buffers}, places, starts, own)
        if not self._form.shares_frozen:
            self._put(lane.frozen, places, starts, own)
        if self._form.prox:
            self._put(lane.anchor, places, [t.anchor or t.start for t in entering], own)
        if self._form.correction:
            ones = {n: n for n in self._form.trained}
            self._put(lane.correction, places, [t.correction or {} for t in entering], ones)
        for at, _ in places if self._tasks else ():  # those of a new lane are zero
            for table in lane.state.values():
                for t in table.values():
                    t[at] = 0
            lane.alive[at] = True
        self._note_who(slots, entering)
        return len(entering)

    def _note_who(self, slots: list[int], entering: list[Task]) -> None:
        first = np.array([self._table.first(task) for task in entering])
        self._first[slots] = self._next[slots] = first
        self._end[slots] = first + [task.batches.n_steps for task in entering]
        self._is_dead[slots] = 0
        if self._pool.is_loaded:
            self._begin[slots] = [self._pool.load(k, task) for k, task in zip(slots, entering, strict=True)]
        for k, task in zip(slots, entering, strict=True):
            self._tasks[k : k + 1] = [task]  # in the place of another, or behind the last one

    @staticmethod
    def _put(table: dict[str, Tensor], places: "Places", values: Sequence, own: dict[str, str]) -> None:
        is_shared = all(v is values[0] for v in values)
        for name, t in table.items():
            if is_shared:
                value = values[0][own[name]].to(t.device)
                for at, _ in places:
                    t[at] = value
            else:
                stack = torch.stack([v[own[name]] for v in values]).to(t.device)
                for at, which in places:
                    t[at] = stack[which]

    # --- a segment --------------------------------------------------------------------------------

    def _run_segment(self) -> None:
        live = len(self._tasks)
        length = int((self._end - self._next)[:live].min())
        q = _least_at_least(self._sizes, live)
        lines = self._next[:q] + np.arange(length)[:, None]
        lines[:, live:] = lines[:, :1]  # beyond the live prefix a live client's rows: others may be refused
        rows, weights, draws = self._table.at(lines, live)
        if self._pool.is_loaded:
            begin = np.where(np.arange(q) < live, self._begin[:q], self._begin[0])
            rows += torch.from_numpy(begin).to(self._device)[:, None]
        taken = (self._next - self._first)[:live]
        scalars = self._scalars.lines(self._tasks, taken, length, q)
        lane = self._window(q)
        outs = []
        for batch, draw, weight, s in zip(
            self._gathered(rows), draws.unbind(0), weights.unbind(0), scalars, strict=True
        ):
            outs.append(self._step(lane, draw, *batch, weight, s))
        self.client_steps += live * length
        self.row_steps += q * length
        self._note(lines[:, :live], outs)

    def _gathered(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the steps, gathered for several steps at once as long as they are small."""
        size = max(1, GATHER_BYTES // max(1, self._pool.row_bytes * rows[0].numel()))
        for at in range(0, len(rows), size):
            x, y = self._pool.gather(rows[at : at + size])
            yield from zip(x.unbind(0), y.unbind(0), strict=True)

    def _window(self, q: int) -> Lane:
        """The first ``q`` rows of everything."""
        if q in self._windows:
            return self._windows[q]
        lane = self._lane

        def cut(table: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: t[:q] for name, t in table.items()}

        window = self._windows[q] = Lane(
            cut(lane.params),
            {slot: cut(table) for slot, table in lane.state.items()},
            cut(lane.buffers),
            lane.frozen if self._form.shares_frozen else cut(lane.frozen),
            cut(lane.anchor),
            cut(lane.correction),
            lane.alive[:q],
        )
        return window

    def _note(self, lines: np.ndarray, outs: list[StepOutput]) -> None:
        """Write the segment's losses and metrics into the table's ``lines`` [length, live]."""
        length, live = lines.shape
        losses = torch.stack([out.losses for out in outs]).to("cpu", torch.float64).numpy()[:, :live]
        self._table.losses[lines] = losses
        if outs[0].metrics:
            metrics = torch.stack([torch.stack(list(out.metrics.values()), 1) for out in outs])
            self._table.metrics[lines] = metrics.to("cpu", torch.float64).numpy()[:, :live]
        self._next[:live] += length
        is_bad = ~np.isfinite(losses)
        if is_bad.any():
            dead = np.flatnonzero(is_bad.any(0))
            self._next[dead] += is_bad[:, dead].argmax(0) - length
            self._end[dead] = self._next[dead]
            self._is_dead[dead] = 1

    # --- leaving ----------------------------------------------------------------------------------

    def _leave(self, done: list[int]) -> list[ClientResult]:
        is_end = len(done) == len(self._tasks) and not self._waiting
        at = torch.tensor(done, device=self._device)
        lane, frozen = self._lane, {} if self._form.shares_frozen else self._lane.frozen
        tables = {**lane.params, **lane.buffers, **frozen}
        stack = tables if is_end else {n: t.index_select(0, at) for n, t in tables.items()}
        n_rows = self.n_slots if is_end else len(done)
        usable = _finite_rows([stack[n] for n in (*self._form.trained, *self._form.buffers)])
        if self._form.shares_frozen:
            stack |= {n: t.expand(n_rows, *t.shape) for n, t in lane.frozen.items()}
        stack = {n: t.cpu() for n, t in stack.items()}  # the very tensors, where they are there already
        names = {name: own for name, own in self._names.items() if own in stack}
        rows = done if is_end else range(len(done))
        seen = self._table.examples[self._next[done]] - self._table.examples[self._first[done]]
        is_ok = usable[rows] & (self._is_dead[done] == 0)
        columns = (done, rows, self._first[done].tolist(), self._next[done].tolist(), seen.tolist(), is_ok)
        results = []
        for k, row, first, end, examples, ok in zip(*columns, strict=True):
            task = self._tasks[k]
            losses, metrics = self._table.losses[first:end], self._metrics(task, first, end, examples)
            status = "ok" if ok else "diverged"
            state = Row(stack, row, names)
            results.append(
                ClientResult(task.client, state, losses, metrics, examples, len(task.rows), status)
            )
        return results

    def _metrics(self, task: Task, first: int, end: int, examples: int) -> dict[str, float]:
        means, counts = self._table.metrics[first:end], self._table.counts[first:end]
        return {
            name: float((means[:, i] * counts).sum() / max(1, examples))
            for i, name in enumerate(task.recipe.metrics)
        }

    def _refill(self, done: list[int]) -> None:
        """Next clients into the slots that are free; when none waits, live rows move down into the gaps."""
        filled = self._enter(done)
        gaps = done[filled:]
        live = len(self._tasks) - len(gaps)
        into = [g for g in gaps if g < live]
        source = sorted(set(range(live, len(self._tasks))).difference(gaps))
        if into:
            moved = torch.tensor(source, device=self._device)
            for t in [*self._tables(), self._lane.alive]:
                t[into] = t.index_select(0, moved)
            for column in (self._first, self._next, self._end, self._begin, self._is_dead):
                column[into] = column[source]
            for gap, k in zip(into, source, strict=True):
                self._tasks[gap] = self._tasks[k]
        del self._tasks[live:]


Places = list[tuple[slice | list[int], slice]]


def _runs(slots: list[int]) -> Places:
    """What to write where: pairs of slots and of places among ``slots``, which ascend."""
    cuts = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    if len(cuts) >= FEW_RUNS:
        return [(slots, slice(None))]
    pairs = zip([0, *cuts], [*cuts, len(slots)], strict=True)
    return [(slice(slots[a], slots[b - 1] + 1), slice(a, b)) for a, b in pairs]


def _finite_rows(stacks: Sequence[Tensor]) -> np.ndarray:
    """bool [rows]: every floating number of the row is finite."""
    sums = [t.reshape(len(t), t.numel() // len(t)).sum(1) for t in stacks if t.is_floating_point()]
    return np.isfinite(functools.reduce(torch.add, sums).to("cpu", torch.float64).numpy())


def _least_at_least(sizes: Sequence[int], n: int) -> int:
    return next((q for q in sizes if q >= n), sizes[-1])
