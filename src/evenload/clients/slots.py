"""Slots: a row of every stacked tensor, held by one client at a time.

Clients wait in order of their steps, the longest first. A slot whose client is through takes the next; when
none waits, the last live row moves into the gap and the live prefix shrinks. So no finished client is ever
stepped, however ragged the clients are.

    segment   steps during which no slot changes hands; planned on the host in one go
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .fuse import Form, Lane, StepFn
from .pool import RowPool, make_pool
from .result import ClientResult, Row
from .schedule import Constant
from .task import Task

__all__ = ["SlotRun"]

GATHER_BYTES = 1 << 20  # of examples at once: few calls, and still in the cache when they are used


@dataclass(slots=True)
class _Occupant:
    """The client in a slot, how far it is, and what it has reported so far."""

    task: Task
    places: np.ndarray  # of its batches' rows in the pool
    step: int = 0
    losses: list[np.ndarray] = field(default_factory=list)
    metrics: list[np.ndarray] = field(default_factory=list)
    is_dead: bool = False

    @property
    def left(self) -> int:
        return 0 if self.is_dead else len(self.task.batches.counts) - self.step


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
        self._slots: list[_Occupant] = []
        self._dtype = next(tasks[0].start[n] for n in names if names[n] == form.trained[0]).dtype
        self._pool: RowPool = make_pool(tasks, self.n_slots, device)
        self._lane = self._make_lane(tasks)
        self._row_weights = _row_weights(tasks[0].recipe.batch_size)
        self.client_steps = 0  # rows stepped that belonged to a client
        self.row_steps = 0  # rows stepped

    def results(self) -> Iterator[list[ClientResult]]:
        """Lists of clients that ended together, as they end."""
        self._enter(list(range(self.n_slots)))
        while self._slots:
            self._run_segment()
            done = [k for k, occupant in enumerate(self._slots) if occupant.left == 0]
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
        is_run = slots == list(range(slots[0], slots[-1] + 1))
        at = slice(slots[0], slots[-1] + 1) if is_run else torch.tensor(slots)
        lane, own = self._lane, {own: name for name, own in self._names.items()}
        self._put(lane.params, at, [t.start for t in entering], own)
        self._put(lane.buffers, at, [t.start for t in entering], own)
        if not self._form.shares_frozen:
            self._put(lane.frozen, at, [t.start for t in entering], own)
        if self._form.prox:
            self._put(lane.anchor, at, [t.anchor or t.start for t in entering], own)
        if self._form.correction:
            ones = {n: n for n in self._form.trained}
            self._put(lane.correction, at, [t.correction or {} for t in entering], ones)
        for table in lane.state.values():
            for t in table.values():
                t[at] = 0
        lane.alive[at] = True
        for k, task in zip(slots, entering, strict=True):
            occupant = _Occupant(task, self._pool.load(k, task))
            if k == len(self._slots):
                self._slots.append(occupant)
            else:
                self._slots[k] = occupant
        return len(entering)

    @staticmethod
    def _put(table: dict[str, Tensor], at: slice | Tensor, values: Sequence, own: dict[str, str]) -> None:
        shared = all(v is values[0] for v in values)
        for name, t in table.items():
            value = values[0][own[name]] if shared else torch.stack([v[own[name]] for v in values])
            t[at] = value.to(t.device)

    # --- a segment --------------------------------------------------------------------------------

    def _run_segment(self) -> None:
        live, length = len(self._slots), min(o.left for o in self._slots)
        q = _least_at_least(self._sizes, live)
        rows, weights, draws = self._plan(q, length)
        scalars = self._scalars(q, length)
        lane = self._window(q)
        losses, metrics = [], []
        lines = {name: v.unbind(0) for name, v in scalars.items()}
        weight, draw = weights.unbind(0), draws.unbind(0)
        for i, (x, y) in enumerate(self._gathered(rows)):
            out = self._step(lane, draw[i], x, y, weight[i], {name: line[i] for name, line in lines.items()})
            losses.append(out.losses)
            metrics.append(out.metrics)
        self.client_steps += live * length
        self.row_steps += q * length
        self._note(torch.stack(losses).to("cpu", torch.float64).numpy(), metrics)

    def _gathered(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the steps, gathered for several steps at once as long as they are small."""
        size = max(1, GATHER_BYTES // max(1, self._pool.row_bytes * rows[0].numel()))
        for at in range(0, len(rows), size):
            x, y = self._pool.gather(rows[at : at + size])
            yield from zip(x.unbind(0), y.unbind(0), strict=True)

    def _window(self, q: int) -> Lane:
        lane = self._lane

        def cut(table: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: t[:q] for name, t in table.items()}

        return Lane(
            cut(lane.params),
            {slot: cut(table) for slot, table in lane.state.items()},
            cut(lane.buffers),
            lane.frozen if self._form.shares_frozen else cut(lane.frozen),
            cut(lane.anchor),
            cut(lane.correction),
            lane.alive[:q],
        )

    def _plan(self, q: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """rows int64 [length, q, batch] in the pool, weights [length, q, batch], draws int64 [length, q]."""
        slots = [
            *self._slots,
            *[self._slots[0]] * (q - len(self._slots)),
        ]  # a live one: others may be refused
        steps = [slice(o.step, o.step + length) for o in slots]
        rows = _by_step([o.places[at] for o, at in zip(slots, steps, strict=True)])
        counts = _by_step([o.task.batches.counts[at] for o, at in zip(slots, steps, strict=True)])
        draws = _by_step([o.task.batches.draws[at] for o, at in zip(slots, steps, strict=True)])
        counts[:, len(self._slots) :] = 1
        return (
            torch.from_numpy(rows).to(self._device),
            torch.from_numpy(self._row_weights[counts]).to(self._device, self._dtype),
            torch.from_numpy(draws).to(self._device),
        )

    def _scalars(self, q: int, length: int) -> dict[str, Tensor]:
        """Each of the step's numbers, [length, q]; rows beyond the live prefix repeat the first client's."""
        slots = [*self._slots, *[self._slots[0]] * (q - len(self._slots))]
        recipes, first = [o.task.recipe for o in slots], self._slots[0]
        if all(recipe is recipes[0] for recipe in recipes):
            recipes = recipes[:1]  # one number serves all rows
            n_steps = None if isinstance(recipes[0].schedule, Constant) else first.task.batches.n_steps
            if all(o.step == first.step and n_steps in (None, o.task.batches.n_steps) for o in slots):
                slots = slots[:1]
        steps = np.array([o.step for o in slots]) + np.arange(length)[:, None]
        optimizers = [recipe.optimizer for recipe in recipes]
        factor = _factors([o.task for o in slots], steps)
        table = optimizers[0].scalars(self._form.optimizer, optimizers, factor, steps + 1)  # pyright: ignore
        if self._form.prox:
            table["prox"] = np.array([recipe.prox for recipe in recipes])
        if recipes[0].clip is not None:
            table["clip"] = np.array([recipe.clip for recipe in recipes])
        wide = {name: np.broadcast_to(values, (length, q)) for name, values in table.items()}
        return {name: torch.tensor(v, device=self._device, dtype=self._dtype) for name, v in wide.items()}

    def _note(self, losses: np.ndarray, metrics: list[dict[str, Tensor]]) -> None:
        names = list(metrics[0])
        table = (
            torch.stack([torch.stack([m[n] for n in names]) for m in metrics])
            .to("cpu", torch.float64)
            .numpy()
            if names
            else None
        )
        is_bad = ~np.isfinite(losses)
        lengths = np.where(is_bad.any(0), is_bad.argmax(0), len(losses)).tolist()
        columns = np.ascontiguousarray(losses.T)
        for k, o in enumerate(self._slots):
            n = lengths[k]
            o.losses.append(columns[k, :n])
            if table is not None:
                o.metrics.append(table[:n, :, k])
            o.is_dead = n < len(losses)
            o.step += n

    # --- leaving ----------------------------------------------------------------------------------

    def _leave(self, done: list[int]) -> list[ClientResult]:
        is_end = len(done) == len(self._slots) and not self._waiting
        at = torch.tensor(done)
        stack = {n: t if is_end else t[at] for n, t in {**self._lane.params, **self._lane.buffers}.items()}
        if self._form.shares_frozen:
            n_rows = self.n_slots if is_end else len(done)
            stack |= {n: t.expand(n_rows, *t.shape) for n, t in self._lane.frozen.items()}
        else:
            stack |= {n: t if is_end else t[at] for n, t in self._lane.frozen.items()}
        usable = _finite_rows({n: stack[n] for n in (*self._form.trained, *self._form.buffers)})
        stack = {n: t.cpu() for n, t in stack.items()}  # the very tensors, where they are there already
        names = self._state_names(stack)
        rows = done if is_end else range(len(done))
        is_finite = usable.tolist()
        seen: dict[tuple[int, int], int] = {}  # clients of one size share their counts
        results = []
        for k, row in zip(done, rows, strict=True):
            o = self._slots[k]
            counts = o.task.batches.counts
            if (id(counts), o.step) not in seen:
                seen[id(counts), o.step] = int(counts[: o.step].sum())
            examples = seen[id(counts), o.step]
            results.append(_result(o, Row(stack, row, names), examples, is_finite[row]))
        return results

    def _state_names(self, stack: dict[str, Tensor]) -> dict[str, str]:
        return {name: own for name, own in self._names.items() if own in stack}

    def _refill(self, done: list[int]) -> None:
        """Next clients into the slots that are free; when none waits, live rows move down into the gaps."""
        filled = self._enter(done)
        gaps = set(done[filled:])
        live = len(self._slots) - len(gaps)
        into = sorted(g for g in gaps if g < live)
        source = [k for k in range(live, len(self._slots)) if k not in gaps]
        if into:
            at, moved = torch.tensor(into), torch.tensor(source)
            for t in [*self._tables(), self._lane.alive]:
                t[at] = t[moved]
            for gap, k in zip(into, source, strict=True):
                self._slots[gap] = self._slots[k]
        del self._slots[live:]


def _result(o: _Occupant, state: Row, examples: int, is_finite: bool) -> ClientResult:
    batches = o.task.batches
    metrics = {}
    if o.metrics:
        means, counts = np.concatenate(o.metrics), batches.counts[: o.step]
        for i, name in enumerate(o.task.recipe.metrics):
            metrics[name] = float((means[:, i] * counts).sum() / max(1, examples))
    status = "diverged" if o.is_dead or not is_finite else "ok"
    assert o.is_dead or o.step == batches.n_steps
    losses = o.losses[0] if len(o.losses) == 1 else np.concatenate(o.losses)
    return ClientResult(o.task.client, state, losses, metrics, examples, len(o.task.rows), status)


def _factors(tasks: Sequence[Task], steps: np.ndarray) -> np.ndarray:
    """What each client's learning rate is multiplied by in its ``steps`` [length, clients], from 0."""
    schedules = [task.recipe.schedule for task in tasks]
    if all(isinstance(schedule, Constant) for schedule in schedules):
        return np.ones_like(steps, dtype=float)
    sizes = [task.batches.n_steps for task in tasks]
    lines = [
        [s.factor(step, n) for s, step, n in zip(schedules, line, sizes, strict=True)]
        for line in steps.tolist()
    ]
    return np.array(lines, dtype=float)


def _by_step(lines: Sequence[np.ndarray]) -> np.ndarray:
    """[steps, ...] of each slot -> [steps, slots, ...]; as ``np.stack`` along axis 1, in half its time."""
    joined = np.concatenate(lines).reshape(len(lines), *lines[0].shape)
    return np.ascontiguousarray(joined.swapaxes(0, 1))


def _row_weights(batch: int) -> np.ndarray:
    """[batch + 1, batch]: for each number of real rows, 1/n of these and 0 of the padding."""
    counts = np.arange(batch + 1)[:, None]
    return (np.arange(batch) < counts) / np.maximum(counts, 1)


def _finite_rows(stack: dict[str, Tensor]) -> np.ndarray:
    """bool [rows]: every floating number of the row is finite."""
    sums = [t.flatten(1).sum(1) for t in stack.values() if t.is_floating_point()]
    return torch.stack(sums).sum(0).isfinite().to("cpu").numpy()


def _least_at_least(sizes: Sequence[int], n: int) -> int:
    return next((q for q in sizes if q >= n), sizes[-1])
