"""The outer strategies: how clients' tasks reach workers, and how their results come back.

inline      this thread
threads     a worker per thread, all taking from one queue: torch's kernels release the interpreter's lock;
            compiled steps are shared
streams     the same, each thread in a CUDA stream of its own with its worker on the GPU: nothing has to be
            handed from one stream to another, as a worker's memory comes from its stream's own pool
processes   the executor over CPU slots
devices     the executor over the devices asked for
ray         the executor over a Ray cluster's devices, or so many CPU slots of it
"""

import functools
import queue
import re
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenload.balance.pack import pack_lpt
from evenload.clients.fused.engine import CompiledSteps, longest_first
from evenload.clients.spread.client_worker import ClientWorker, intra_op
from evenload.clients.step.model_traits import ModelTraits
from evenload.clients.step.serial import failed
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import Strategy, n_workers
from evenload.clients.values.task import ClientTask
from evenload.errors import TaskError, WorkerLost

if TYPE_CHECKING:  # processes alone need it, and it takes half as long to load as all the rest
    from evenload.executor import Executor


GROUPS_PER_WORKER = 2  # how finely clients are dealt to processes: more balance, fewer rows per step


def why_no_streams() -> str | None:
    """Why there are no CUDA streams here, or None."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built without CUDA, so it has no streams"
    return "torch finds no CUDA GPU, so there are no streams"


def gpu_of(devices: Any) -> str:
    """The GPU whose streams are meant by ``devices``: the first one named, else torch's current one."""
    named = re.search(r"cuda:(\d+)", str(devices))
    return f"cuda:{named[1] if named else torch.cuda.current_device()}"


def n_gpus() -> int:
    return torch.cuda.device_count()


def free_bytes(device: str) -> int:
    """Free bytes of the GPU's memory."""
    return torch.cuda.mem_get_info(device)[0]


class Streams:
    """The streams of the GPU ``device``, one per worker, made when first needed."""

    def __init__(self, device: str):
        self.device = device
        self._streams: list[torch.cuda.Stream] = []

    def make(self, n: int) -> None:
        """Make the streams of workers 0 to n-1, before threads ask for them."""
        self._streams += [torch.cuda.Stream(self.device) for _ in range(n - len(self._streams))]

    @contextmanager
    def inside(self, worker: int) -> Iterator[None]:
        """What this thread starts on the GPU inside the block runs in the worker's stream.

        It begins after what the GPU's current stream holds (the model was copied there), and has ended when
        the block ends.
        """
        stream = self._streams[worker]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


@dataclass
class ClientDispatcher:
    """The workers of all kinds for one model, made when first needed and kept until ``close``.

    threads   torch's own threads per worker
    devices   what "devices" and "ray" run on; the first GPU in it is that of "streams"
    """

    model: nn.Module
    devices: Any = "all"
    threads: int = 1
    _workers: dict[tuple[str, int], ClientWorker] = field(default_factory=dict)
    _compiled: CompiledSteps = field(default_factory=CompiledSteps)
    _executors: "dict[tuple[str, str], Executor]" = field(default_factory=dict)
    _streams: Streams | None = None

    @property
    def streams(self) -> Streams:
        """Raises what torch raises where there is no CUDA: see ``why_no_streams``."""
        if self._streams is None:
            self._streams = Streams(gpu_of(self.devices))
        return self._streams

    def worker(self, worker: int = 0, device: str = "cpu") -> ClientWorker:
        """The worker of that number in this process; its model and engines stay warm.

        Compiled steps are shared on the CPU only: on a GPU each stream has memory and launches of its own.
        """
        if (device, worker) not in self._workers:
            self._workers[device, worker] = ClientWorker(
                self.model, device, self._compiled if device == "cpu" else None
            )
        return self._workers[device, worker]

    def device_of(self, strategy: Strategy) -> str:
        """Where workers of this process train by the strategy: "cpu" or a GPU's name."""
        return self.streams.device if strategy.outer == "streams" else "cpu"

    def open(self, strategy: Strategy) -> None:
        """Start the executor that the strategy needs. Raises as ``Executor`` does for missing devices."""
        if strategy.outer in ("processes", "devices", "ray"):
            self._executor(strategy, n_workers(strategy))

    def dispatch(
        self, strategy: Strategy, traits: ModelTraits | None, tasks: Sequence[ClientTask], n_workers: int
    ) -> Iterator[list[ClientResult]]:
        """Train ``tasks`` on ``n_workers`` threads or CPU slots; yields clients as they end."""
        if not tasks:
            return
        if strategy.outer == "inline":
            with intra_op(self.threads):
                yield from self.worker().train_queue(strategy, traits, tasks, longest_first(tasks))
        elif strategy.outer in ("threads", "streams"):
            yield from self._in_threads(strategy, traits, tasks, n_workers)
        else:
            yield from self._in_processes(strategy, traits, tasks, n_workers)

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()

    def _in_threads(
        self, strategy: Strategy, traits: ModelTraits | None, tasks: Sequence[ClientTask], n_workers: int
    ) -> Iterator[list[ClientResult]]:
        waiting, results = longest_first(tasks), queue.SimpleQueue()
        device, streams = self.device_of(strategy), self.streams if strategy.outer == "streams" else None
        workers = [self.worker(i, device) for i in range(n_workers)]
        if streams is not None:
            streams.make(n_workers)

        def work(worker: int) -> None:
            try:
                with nullcontext() if streams is None else streams.inside(worker):
                    for batch in workers[worker].train_queue(strategy, traits, tasks, waiting, n_workers):
                        results.put(batch)
                results.put(None)
            except BaseException as error:
                results.put(error)

        with intra_op(self.threads):
            threads = [
                threading.Thread(target=work, args=(i,), name="evenload-clients") for i in range(n_workers)
            ]
            for thread in threads:
                thread.start()
            try:
                yield from _until_all_end(results, len(threads))
            finally:
                waiting.clear()  # whoever stops listening stops the work at the next client
                for thread in threads:
                    thread.join()

    def _in_processes(
        self, strategy: Strategy, traits: ModelTraits | None, tasks: Sequence[ClientTask], n_slots: int
    ) -> Iterator[list[ClientResult]]:
        from evenload.clients.spread import remote

        executor = self._executor(strategy, n_slots)
        fn: Any = functools.partial(
            remote.RemoteClientWorker,
            model=remote.SentModel(self.model),
            strategy=strategy,
            traits=traits,
            threads=self.threads,
        )
        known = {id(task.recipe): task.recipe for task in tasks}
        recipes = {at: remote.sent_recipe(recipe) for at, recipe in known.items()}
        groups = _groups_of(tasks, GROUPS_PER_WORKER * len(executor.devices))
        trouble: Exception | None = None
        while groups:
            alone: list[list[int]] = []
            items = [[remote.sent_task(tasks[at], recipes[id(tasks[at].recipe)]) for at in g] for g in groups]
            costs = [sum(map(_cost, (tasks[at] for at in g))) for g in groups]
            answers: Any = executor.map(
                fn, items, cost=costs, ordered=False, stage="clients", on_error="return", progress=False
            )
            for answer in answers:  # all of them: a group in trouble takes no other's results along
                if isinstance(answer, WorkerLost) and answer.index is not None:
                    group = groups[answer.index]  # one of them ends processes: not this one's, too
                    if len(group) == 1:
                        yield [failed(tasks[group[0]], answer)]
                    else:
                        alone += [[at] for at in group]
                elif isinstance(answer, TaskError):
                    trouble = trouble or answer
                else:
                    ended, error = answer
                    trouble = trouble or error
                    yield list(map(remote.received, ended))
            groups = alone
        if trouble is not None:
            raise trouble

    def _executor(self, strategy: Strategy, n_slots: int) -> "Executor":
        from evenload.executor import Executor

        is_counted = strategy.outer == "processes" or (strategy.outer == "ray" and strategy.workers)
        spec: Any = f"cpu*{n_slots}" if is_counted else self.devices
        backend = "ray" if strategy.outer == "ray" else "process"
        if (backend, str(spec)) not in self._executors:
            self._executors[backend, str(spec)] = Executor(spec, backend=backend)
        return self._executors[backend, str(spec)]


def _cost(task: ClientTask) -> int:
    return max(1, task.batches.n_steps)


def _groups_of(tasks: Sequence[ClientTask], n_groups: int) -> list[list[int]]:
    """Positions in ``tasks``, in at most ``n_groups`` groups of about equally many steps."""
    n_groups = min(len(tasks), n_groups)
    groups: list[list[int]] = [[] for _ in range(n_groups)]
    for at, group in enumerate(pack_lpt([_cost(task) for task in tasks], [1.0] * n_groups)):
        groups[group].append(at)
    return [group for group in groups if group]


def _until_all_end(results: "queue.SimpleQueue[Any]", n: int) -> Iterator[list[ClientResult]]:
    """What ``n`` threads put into the queue; raises the first exception of one when all have ended."""
    trouble: BaseException | None = None
    while n:
        item = results.get()
        if isinstance(item, list):
            yield item
            continue
        n -= 1
        if item is not None:
            traceback.clear_frames(item.__traceback__)  # the tensors of the run that failed
            trouble = trouble or item
    if trouble is not None:
        try:
            raise trouble
        finally:
            del trouble  # else its traceback and this frame would keep each other
