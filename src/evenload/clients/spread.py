"""The outer strategies: how tasks reach workers, and results come back. Each yields lists of results.

inline      this thread
threads     one bench per thread, all taking from one queue: torch lets go of the interpreter in its kernels
processes   the executor over CPU slots
devices     the executor over the devices asked for
"""

import dataclasses
import functools
import pickle
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload.balance.pack import pack_lpt
from evenload.devices import CurrentDevice
from evenload.executor import Executor
from evenload.executor.prepare import pickle_callable

from .bench import Bench, intra_op
from .data import Rows
from .engine import longest_first
from .recipe import Recipe
from .result import ClientResult
from .strategy import Strategy, n_workers
from .survey import Survey
from .task import Task

__all__ = ["Spread"]

GROUPS_PER_WORKER = 2  # how finely clients are dealt to processes: more balance, fewer rows per step


@dataclass
class Spread:
    """Workers of all kinds for one model, made when first needed and kept until ``close``.

    threads   torch's own threads per worker
    devices   what "devices" runs on
    """

    model: nn.Module
    devices: Any = "all"
    threads: int = 1
    _benches: list[Bench] = field(default_factory=list)
    _executors: dict[str, Executor] = field(default_factory=dict)

    def bench(self, worker: int = 0) -> Bench:
        while len(self._benches) <= worker:
            self._benches.append(Bench(self.model))
        return self._benches[worker]

    def open(self, strategy: Strategy) -> None:
        """Make what the strategy runs on. Raises as ``Executor`` does for devices that cannot be had."""
        if strategy.outer in ("processes", "devices"):
            self._executor(self._spec(strategy, n_workers(strategy)))

    def run(
        self, strategy: Strategy, survey: Survey | None, tasks: Sequence[Task], n_workers: int
    ) -> Iterator[list[ClientResult]]:
        """Train ``tasks``; ``n_workers`` threads or CPU slots."""
        if not tasks:
            return
        if strategy.outer == "inline":
            with intra_op(self.threads):
                yield from self.bench().run(strategy, survey, tasks, longest_first(tasks))
        elif strategy.outer == "threads":
            yield from self._in_threads(strategy, survey, tasks, n_workers)
        else:
            yield from self._in_processes(strategy, survey, tasks, n_workers)

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()

    def _in_threads(
        self, strategy: Strategy, survey: Survey | None, tasks: Sequence[Task], n_workers: int
    ) -> Iterator[list[ClientResult]]:
        waiting, results = longest_first(tasks), queue.SimpleQueue()
        benches = [self.bench(i) for i in range(n_workers)]

        def work(bench: Bench) -> None:
            try:
                for batch in bench.run(strategy, survey, tasks, waiting, n_workers):
                    results.put(batch)
                results.put(None)
            except BaseException as error:
                results.put(error)

        with intra_op(self.threads):
            threads = [threading.Thread(target=work, args=(b,), name="evenload-clients") for b in benches]
            for thread in threads:
                thread.start()
            try:
                yield from _until_all_end(results, len(threads))
            finally:
                waiting.clear()  # whoever stops listening stops the work at the next client
                for thread in threads:
                    thread.join()

    def _in_processes(
        self, strategy: Strategy, survey: Survey | None, tasks: Sequence[Task], n_slots: int
    ) -> Iterator[list[ClientResult]]:
        executor = self._executor(self._spec(strategy, n_slots))
        fn: Any = functools.partial(
            RemoteBench, model=_Sent(self.model), strategy=strategy, survey=survey, threads=self.threads
        )
        known = {id(task.recipe): task.recipe for task in tasks}
        recipes = {at: _sent_recipe(recipe) for at, recipe in known.items()}
        costs = [max(1, task.batches.n_steps) for task in tasks]
        n_groups = min(len(tasks), GROUPS_PER_WORKER * len(executor.devices))
        groups = [[] for _ in range(n_groups)]
        for at, group in enumerate(pack_lpt(costs, [1.0] * n_groups)):
            groups[group].append(at)
        groups = [group for group in groups if group]
        items = [[_to_send(tasks[at], recipes[id(tasks[at].recipe)]) for at in group] for group in groups]
        total = [sum(costs[at] for at in group) for group in groups]
        batches: Any = executor.map(fn, items, cost=total, ordered=False, stage="clients")
        for batch in batches:
            yield [_received(*sent) for sent in batch]

    def _spec(self, strategy: Strategy, n_slots: int) -> Any:
        return f"cpu*{n_slots}" if strategy.outer == "processes" else self.devices

    def _executor(self, spec: Any) -> Executor:
        key = str(spec)
        if key not in self._executors:
            self._executors[key] = Executor(spec)
        return self._executors[key]


class RemoteBench:
    """A bench in a worker process. Called with a group of tasks as ``_to_send`` makes them."""

    def __init__(
        self,
        device: CurrentDevice,
        *,
        model: "_Sent",
        strategy: Strategy,
        survey: Survey | None,
        threads: int,
    ):
        torch.set_num_threads(threads)
        self._strategy, self._survey = strategy, survey
        self._functions: dict[tuple[bytes, ...], Any] = {}
        self._bench = Bench(model.model, device.torch)

    def __call__(self, sent: Sequence[tuple]) -> list[tuple]:
        tasks = [_task(self._recipe(*recipe), *fields) for recipe, *fields in sent]
        batches = self._bench.run(self._strategy, self._survey, tasks, longest_first(tasks))
        return [_sent_back(result) for batch in batches for result in batch]

    def _recipe(self, plain: Recipe, own: Mapping[str, tuple[bytes, ...]]) -> Recipe:
        return (
            dataclasses.replace(plain, **{name: self._function(*own[name]) for name in own}) if own else plain
        )

    def _function(self, body: bytes, *buffers: bytes) -> Any:
        key = (body, *buffers)
        if key not in self._functions:
            self._functions[key] = pickle.loads(body, buffers=[bytearray(b) for b in buffers])
        return self._functions[key]


class _Sent:
    """A model, pickled once: by value if it lives where a worker cannot import it from."""

    def __init__(self, model: nn.Module, pickled: tuple[bytes, list] | None = None):
        self.model = model
        self._pickled = pickled or pickle_callable(model)

    def __reduce__(self) -> Any:
        body, buffers = self._pickled
        return _arrived, (body, [pickle.PickleBuffer(b) for b in buffers])


def _arrived(body: bytes, buffers: list) -> _Sent:
    held = [bytearray(buffer) for buffer in buffers]  # tensors of the model write into them
    return _Sent(pickle.loads(body, buffers=held), (body, held))


def _until_all_end(results: "queue.SimpleQueue[Any]", n: int) -> Iterator[list[ClientResult]]:
    while n:
        item = results.get()
        if item is None:
            n -= 1
        elif isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item  # else its traceback and this frame would keep each other, and the failed run
        else:
            yield item


_SentRecipe = tuple[Recipe, dict[str, tuple[bytes, ...]]]

# Tensors travel as arrays: those go out of band, without a copy.


def _array(t: Tensor) -> "np.ndarray | tuple[np.ndarray]":
    """A bare array, or in brackets the bits of numbers that numpy has no type for (bfloat16)."""
    t = t.detach().cpu().contiguous()
    return (t.view(torch.int16).numpy(),) if t.dtype == torch.bfloat16 else t.numpy()


def _tensor(array: "np.ndarray | tuple[np.ndarray]") -> Tensor:
    if isinstance(array, tuple):
        return torch.from_numpy(_writable(array[0])).view(torch.bfloat16)
    return torch.from_numpy(_writable(array))


def _arrays(state: Mapping[str, Tensor] | None) -> dict[str, Any] | None:
    return None if state is None else {name: _array(state[name]) for name in state}


def _tensors(arrays: Mapping[str, Any] | None) -> dict[str, Tensor] | None:
    return None if arrays is None else {name: _tensor(a) for name, a in arrays.items()}


def _writable(array: np.ndarray) -> np.ndarray:
    return array if array.flags.writeable else array.copy()


def _sent_recipe(recipe: Recipe) -> "_SentRecipe":
    """The recipe without the caller's own functions, and the bytes of these, which a worker loads once.

    Else a function would arrive as another one with every group of clients, and each want its own engine.
    """
    own: dict[str, tuple[bytes, ...]] = {}
    for name in ("loss", "augment", "step"):
        if callable(fn := getattr(recipe, name)):
            body, buffers = pickle_callable(fn)
            own[name] = (body, *map(bytes, buffers))
    return (dataclasses.replace(recipe, **dict.fromkeys(own)) if own else recipe), own


def _to_send(task: Task, recipe: _SentRecipe) -> tuple:
    rows = task.rows.own()
    return (
        recipe,
        task.client,
        (_array(rows.x), _array(rows.y)),
        task.batches,
        _arrays(task.start),
        _arrays(task.anchor),
        _arrays(task.correction),
        task.seed,
    )


def _task(recipe, client, xy, batches, start, anchor, correction, seed) -> Task:
    x, y = (_tensor(part) for part in xy)
    state = _tensors(start)
    assert state is not None
    return Task(client, recipe, Rows(x, y), batches, state, _tensors(anchor), _tensors(correction), seed)


def _sent_back(r: ClientResult) -> tuple:
    metrics = dict(r.metrics)
    return r.client, _arrays(r.state), r.losses, metrics, r.examples, r.n_rows, r.status, r.error


def _received(client, state, losses, metrics, examples, n_rows, status, error) -> ClientResult:
    tensors = _tensors(state)
    assert tensors is not None
    return ClientResult(client, tensors, losses, metrics, examples, n_rows, status, error)
