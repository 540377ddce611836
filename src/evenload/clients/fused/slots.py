"""Slots of a fused run: each is a row of every stacked tensor, held by one client at a time.

Clients wait in order of their steps, the longest first. When a client ends, the next one takes its slot; when
none waits, the last live row moves into the gap and the live rows become fewer. So no finished client is ever
stepped, however different the clients' numbers of steps are.

    segment   steps during which no slot changes its client; their inputs are looked up at once
"""

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from evenload.clients.fused.pool import RowPool, make_pool
from evenload.clients.step.fuse import StackedClients, StepForm, StepInputs, StepOutput
from evenload.clients.values.recipe import Constant
from evenload.clients.values.result import ClientResult, StateRow
from evenload.clients.values.task import ClientTask

GATHER_BYTES = 2 << 20  # of examples gathered at once: few calls, and still in the cache when they are used


@dataclass(slots=True)
class _Occupant:
    """The client in a slot.

    first, next, end  its first line in the table of steps, its next one, and the one after its last
    begin             where its rows begin in the pool
    """

    task: ClientTask
    first: int
    next: int
    end: int
    begin: int = 0
    is_dead: bool = False

    @property
    def per_epoch(self) -> int:
        return self.task.recipe.steps_per_epoch(self.task.n_rows)

    @property
    def until_looked_at(self) -> int:
        """Steps until it ends, or until an epoch does that it may stop after."""
        left = self.end - self.next
        if self.task.recipe.stop is None:
            return left
        return min(left, self.per_epoch - (self.next - self.first) % self.per_epoch)


class SlotRun:
    """One training of the tasks in ``queue`` (of one form, none empty) over a few slots; used once.

    tasks      all that may come out of the queue, longest first; runs in several threads may share one queue
    run_steps  takes several fused steps: the clients, and inputs with a row for each step; ``sizes`` are the
               numbers of clients that it may be called with, ascending
    names      state dict name -> the name of its tensor here (tied parameters share one)
    """

    def __init__(
        self,
        tasks: Sequence[ClientTask],
        queue: deque[ClientTask],
        form: StepForm,
        run_steps: Callable[[StackedClients, StepInputs], StepOutput],
        names: dict[str, str],
        sizes: Sequence[int],
        device: str = "cpu",
    ):
        self._waiting = queue
        self._form, self._run_steps, self._names, self._device = form, run_steps, names, device
        self._sizes = list(sizes)
        self.n_slots = self._sizes[-1]
        dtype = next(tasks[0].start[n] for n in names if names[n] == form.trained[0]).dtype
        self._pool = make_pool(tasks, self.n_slots, device)
        self._table = StepTable(tasks, self._pool, dtype, device)
        self._scalars = Scalars(tasks, form, dtype, device)
        self._clients = self._make_clients(tasks)
        self._windows: dict[int, StackedClients] = {}
        self._slots: list[_Occupant] = []  # slots that hold a client, without gaps
        self.client_steps = 0  # rows stepped that belonged to a client
        self.row_steps = 0  # rows stepped

    def results(self) -> Iterator[list[ClientResult]]:
        """Yield lists of clients that ended together, as they end."""
        self._enter(list(range(self.n_slots)))
        while self._slots:
            self._run_segment()
            done = [k for k, occupant in enumerate(self._slots) if occupant.next == occupant.end]
            if done:  # none, if an epoch was looked at and nobody stopped
                yield self._leave(done)
                self._refill(done)

    # --- tables -----------------------------------------------------------------------------------

    def _make_clients(self, tasks: Sequence[ClientTask]) -> StackedClients:
        start = tasks[0].start
        source = {own: start[name] for name, own in self._names.items()}

        def empty(names: Sequence[str]) -> dict[str, Tensor]:
            return {
                n: torch.zeros((self.n_slots, *source[n].shape), dtype=source[n].dtype, device=self._device)
                for n in names
            }

        form = self._form
        slots = tasks[0].recipe.optimizer.state_names(form.optimizer)
        shared = {n: source[n].contiguous() for n in form.frozen} if form.shares_frozen else {}
        self._shared = {n: t.cpu() for n, t in shared.items()}  # what results show, copied when one is read
        frozen = {n: t.to(self._device) for n, t in shared.items()} or empty(form.frozen)
        self._for_all = frozen if form.shares_frozen else None  # has no rows
        return StackedClients(
            params=empty(form.trained),
            state={slot: empty(form.trained) for slot in slots},
            buffers=empty(form.buffers),
            frozen=frozen,
            anchor=empty(form.trained) if form.prox else {},
            correction=empty(form.trained) if form.correction else {},
            alive=torch.ones(self.n_slots, dtype=torch.bool, device=self._device),
        )

    def _enter(self, slots: list[int]) -> int:
        """Put waiting clients into these slots, which are free or follow the last; how many were there?"""
        entering = []
        while len(entering) < len(slots):
            try:
                entering.append(self._waiting.popleft())
            except IndexError:  # none is left: another thread may have been faster
                break
        if not entering:
            return 0
        slots = slots[: len(entering)]
        clients = self._clients
        own = {own: name for name, own in self._names.items()}
        starts = [t.start for t in entering]
        _put({**clients.params, **clients.buffers}, slots, starts, own)
        if not self._form.shares_frozen:
            _put(clients.frozen, slots, starts, own)
        if self._form.prox:
            _put(clients.anchor, slots, [t.anchor or t.start for t in entering], own)
        if self._form.correction:
            ones = {n: n for n in self._form.trained}
            _put(clients.correction, slots, [t.correction or {} for t in entering], ones)
        if self._slots:  # new tensors are zero
            for t in tree_leaves(clients.state):
                t[slots] = 0
            clients.alive[slots] = True
        for k, task in zip(slots, entering, strict=True):
            first = self._table.first(task)
            occupant = _Occupant(task, first, first, first + task.batches.n_steps)
            if self._pool.is_loaded:
                occupant.begin = self._pool.load(k, task)
            self._slots[k : k + 1] = [occupant]  # in the place of another, or behind the last one
        return len(entering)

    # --- a segment --------------------------------------------------------------------------------

    def _run_segment(self) -> None:
        live, length = len(self._slots), min(o.until_looked_at for o in self._slots)
        q = next((size for size in self._sizes if size >= live), self.n_slots)
        lines = np.array([o.next for o in self._slots]) + np.arange(length)[:, None]
        rows, weights, draws = self._table.at(lines, q)
        if self._pool.is_loaded:
            begin = [o.begin for o in self._slots] + [self._slots[0].begin] * (q - live)
            rows += torch.tensor(begin, device=self._device)[:, None]
        scalars = self._scalars.lines([(o.task, o.next - o.first) for o in self._slots], length, q)
        clients = self._window(q)
        size = max(1, GATHER_BYTES // max(1, self._pool.row_bytes * rows[0].numel()))
        outs = []
        for at in range(0, length, size):
            part = slice(at, at + size)
            x, y = self._pool.gather(rows[part])
            inputs = StepInputs(draws[part], x, y, weights[part], scalars[part])
            outs.append(self._run_steps(clients, inputs))
        self.client_steps += live * length
        self.row_steps += q * length
        self._note(lines, outs)

    def _window(self, q: int) -> StackedClients:
        """The clients in the first ``q`` rows."""
        if q not in self._windows:
            tables = self._clients.tables()
            cut = (own if own is self._for_all else tree_map(lambda t: t[:q], own) for own in tables)
            self._windows[q] = StackedClients(*cut)  # pyrefly: ignore
        return self._windows[q]

    def _note(self, lines: np.ndarray, outs: list[StepOutput]) -> None:
        """Write the segment's losses and metrics into the table's ``lines`` [length, live]."""
        losses = torch.cat([out.losses for out in outs]).tolist()
        live = len(self._slots)
        losses = [line[:live] for line in losses]
        self._table.losses[lines] = losses
        if outs[0].metrics:
            metrics = torch.cat([torch.stack(list(out.metrics.values()), 2) for out in outs])
            self._table.metrics[lines] = metrics.to("cpu", torch.float64).numpy()[:, :live]
        for o in self._slots:
            o.next += len(lines)
            stop = o.task.recipe.stop
            if stop is not None and stop.stops(self._table.losses[o.first : o.next].tolist(), o.per_epoch):
                o.end = o.next
        if math.isfinite(sum(map(sum, losses))):
            return
        is_bad = ~np.isfinite(losses)
        for k in np.flatnonzero(is_bad.any(0)).tolist():
            o = self._slots[k]
            o.end = o.next = o.next - len(lines) + int(is_bad[:, k].argmax())
            o.is_dead = True

    # --- leaving ----------------------------------------------------------------------------------

    def _leave(self, done: list[int]) -> list[ClientResult]:
        is_end = len(done) == len(self._slots) and not self._waiting
        rows = done if is_end else range(len(done))
        stack, usable = self._stack(None if is_end else torch.tensor(done, device=self._device))
        examples, results = self._table.examples, []
        for k, row in zip(done, rows, strict=True):
            o = self._slots[k]
            seen = examples[o.next] - examples[o.first]
            losses, metrics = self._table.losses[o.first : o.next], self._metrics(o, seen)
            status = "ok" if usable[row] and not o.is_dead else "diverged"
            state = StateRow(stack, row, self._names, self._shared)
            results.append(ClientResult(o.task.client, state, losses, metrics, seen, o.task.n_rows, status))
        return results

    def _stack(self, at: Tensor | None) -> tuple[Mapping[str, Tensor], list[bool]]:
        """The states in slots ``at`` (None: all, maybe not copied), and which of them are finite."""
        clients = self._clients
        changing = {**clients.params, **clients.buffers}
        tables = changing if self._form.shares_frozen else changing | clients.frozen
        stack = tables if at is None else {n: t.index_select(0, at) for n, t in tables.items()}
        usable = _finite_rows([t.reshape(len(t), t.numel() // len(t)) for t in (stack[n] for n in changing)])
        shared = {n: t.expand(len(usable), *t.shape) for n, t in self._shared.items()}
        return {n: t.cpu() for n, t in stack.items()} | shared, usable

    def _metrics(self, o: _Occupant, seen: int) -> dict[str, float]:
        names = o.task.recipe.metrics
        if not names:
            return {}
        means, counts = self._table.metrics[o.first : o.next], self._table.counts[o.first : o.next]
        return {n: float((means[:, i] * counts).sum() / max(1, seen)) for i, n in enumerate(names)}

    def _refill(self, done: list[int]) -> None:
        """Put the next clients into free slots; when none waits, move the last rows into the gaps."""
        filled = self._enter(done)
        gaps = done[filled:]
        live = len(self._slots) - len(gaps)
        into = [g for g in gaps if g < live]
        source = sorted(set(range(live, len(self._slots))).difference(gaps))
        if into:
            moved = torch.tensor(source, device=self._device)
            for t in tree_leaves([own for own in self._clients.tables() if own is not self._for_all]):
                t[into] = t.index_select(0, moved)
            for gap, k in zip(into, source, strict=True):
                self._slots[gap] = self._slots[k]
        del self._slots[live:]


def _put(table: dict[str, Tensor], slots: list[int], values: Sequence, own: dict[str, str]) -> None:
    """Write each client's tensors into its slot; of one value for all there is no stack."""
    is_shared = all(v is values[0] for v in values)
    for name, t in table.items():
        value = values[0][own[name]] if is_shared else torch.stack([v[own[name]] for v in values])
        t[slots] = value.to(t.device)


def _finite_rows(stacks: Sequence[Tensor]) -> list[bool]:
    """For each row of stacks [rows, numbers]: is every floating number finite?"""
    stacks = [t.float() if t.dtype == torch.float16 else t for t in stacks if t.is_floating_point()]
    if math.isfinite(sum(float(t.sum()) for t in stacks)):
        return [True] * len(stacks[0])
    return functools.reduce(torch.add, [t.sum(1) for t in stacks]).isfinite().tolist()


class Scalars:
    """The numbers for steps of clients among ``tasks``; those that never change are made once."""

    def __init__(self, tasks: Sequence[ClientTask], form: StepForm, dtype: torch.dtype, device: str):
        self._form, self._dtype, self._device = form, dtype, device
        self._has_one_recipe = all(task.recipe is tasks[0].recipe for task in tasks)
        self._is_constant = all(isinstance(task.recipe.schedule, Constant) for task in tasks)
        self._known: dict[int, dict[str, Tensor]] = {}

    def lines(self, clients: list[tuple[ClientTask, int]], length: int, q: int) -> list[dict[str, Tensor]]:
        """For each of ``length`` steps: name -> [q].

        clients  with the steps that each has taken so far; rows beyond them repeat the first client's
        """
        if q in self._known:
            return [self._known[q]] * length
        clients = [*clients, *clients[:1] * (q - len(clients))]
        tasks, steps = [task for task, _ in clients], np.array([step for _, step in clients])
        numbers = self._numbers(tasks, steps + np.arange(length)[:, None])
        is_fixed = all(values.ndim < 2 for values in numbers.values())
        wide = np.empty((1 if is_fixed else length, len(numbers), q))
        for i, values in enumerate(numbers.values()):
            wide[:, i] = values
        table = torch.from_numpy(wide).to(self._device, self._dtype)
        lines = [dict(zip(numbers, line.unbind(0), strict=True)) for line in table.unbind(0)]
        if is_fixed and self._has_one_recipe:
            self._known[q] = lines[0]
        return lines * length if is_fixed else lines

    def _numbers(self, tasks: list[ClientTask], steps: np.ndarray) -> dict[str, np.ndarray]:
        """Name -> numbers that broadcast to [steps, clients]."""
        recipes = [task.recipe for task in (tasks[:1] if self._has_one_recipe else tasks)]
        optimizers = [recipe.optimizer for recipe in recipes]
        factor = np.ones(1) if self._is_constant else _factors(tasks, steps)
        numbers = optimizers[0].scalars(self._form.optimizer, optimizers, factor, steps + 1)  # pyrefly: ignore
        if self._form.prox:
            numbers["prox"] = np.array([recipe.prox for recipe in recipes])
        if recipes[0].clip is not None:
            numbers["clip"] = np.array([recipe.clip for recipe in recipes])
        return numbers


def _factors(tasks: Sequence[ClientTask], steps: np.ndarray) -> np.ndarray:
    """Factors [length, clients] of each client's learning rate in its ``steps`` (from 0)."""
    schedules = [task.recipe.schedule for task in tasks]
    sizes = [task.batches.n_steps for task in tasks]
    lines = [
        [s.factor(step, n) for s, step, n in zip(schedules, line, sizes, strict=True)]
        for line in steps.tolist()
    ]
    return np.array(lines, dtype=float)


class StepTable:
    """A table with a line for each step of each client: its inputs, and its losses and metrics.

    A client's steps are consecutive lines, so a segment of many clients is one lookup per column.


    counts, losses [steps]; metrics [steps, metrics]; examples: the number of them before each step
    """

    def __init__(self, tasks: Sequence[ClientTask], pool: RowPool, dtype: torch.dtype, device: str):
        plans, recipe = [task.batches for task in tasks], tasks[0].recipe
        ends = list(itertools.accumulate([len(plan.counts) for plan in plans]))
        self._first = dict(zip(map(id, tasks), [0, *ends], strict=False))
        self.counts = np.concatenate([*(plan.counts for plan in plans), [1]])
        self.examples = [0, *np.cumsum(self.counts).tolist()]
        self.losses = np.empty(ends[-1])
        self.metrics = np.empty((ends[-1], len(recipe.metrics)))
        # The last line is no client's: it repeats a client's row, for rows beyond the clients of a step.
        places = pool.places(tasks)
        own = places[:1] * (not pool.is_loaded)
        draws = np.concatenate([*(plan.draws for plan in plans), [0]])
        self._spare = ends[-1]
        self._places = torch.from_numpy(np.concatenate([places, own])).to(device)
        self._weights = _row_weights(self.counts, recipe.batch_size, dtype).to(device)
        self._draws = torch.from_numpy(draws).to(device)

    def first(self, task: ClientTask) -> int:
        """The line of the client's first step."""
        return self._first[id(task)]

    def at(self, lines: np.ndarray, q: int) -> list[Tensor]:
        """Inputs of the steps in ``lines`` int64 [length, live], for ``q`` rows, ``live`` of them clients.

        rows int64 [length, q, batch] in the pool, weights of that shape, draws int64 [length, q]
        """
        length, live = lines.shape
        if live < q:
            lines = np.hstack([lines, np.full((length, q - live), self._spare)])
        flat = torch.from_numpy(lines.ravel()).to(self._places.device)
        columns = (self._places, self._weights, self._draws)
        return [t.index_select(0, flat).view(length, q, *t.shape[1:]) for t in columns]


def _row_weights(counts: np.ndarray, batch: int, dtype: torch.dtype) -> Tensor:
    """[steps, batch]: for a step of n real rows, 1/n for these and 0 for padding."""
    return torch.from_numpy((np.arange(batch) < counts[:, None]) / np.maximum(counts, 1)[:, None]).to(dtype)
