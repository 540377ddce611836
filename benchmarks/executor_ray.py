"""evenload over Ray against Ray's own ways to share out work, on this machine.

    python benchmarks/executor_ray.py [--draws 3] [--columns s60,s300] [--peers "Ray tasks"]

first_s: from nothing to a first result of 2 workers, with Ray's own start. empty_us: wall time per empty
task, in order; evenload at its defaults and one by one, the others as they are. arrays_mb_s: 8 MB arrays in
and out.
Columns: bound / makespan on four simulated devices of speeds 1 : 2 : 4 : 8; s60 and s300: so many items of
lognormal cost, sigma 1.
Every peer runs in an interpreter with a Ray of its own, and in another one for the columns. CPU time is that
of all processes in it.
"""

import argparse
import functools
import heapq
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench_tasks import SPEEDS, bound_s, costs, warm_up, work
from cpu_clock import process_tree_cpu_s
from executor_overhead import in_fresh_interpreter

HERE = Path(__file__).parent
N_EMPTY, N_ARRAYS, ARRAY_MB = 2000, 24, 8
COLUMNS, WORK = {"s60": 60, "s300": 300}, 60.0  # seconds on a device of speed 1
LIMIT_S = 900


class Peer:
    def start(self, n_workers: int) -> None:
        import ray

        self.ray, self.n_workers = ray, n_workers
        ray.init(
            "local", num_cpus=n_workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )

    def imap(self, fn: Callable, items: Sequence[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def close(self) -> None:
        self.ray.shutdown()


class EvenloadOnRay(Peer):
    policy: str | None = None

    def start(self, n_workers: int) -> None:
        super().start(n_workers)
        from evenload.executor import Executor, Ray

        self.executor = Executor(f"cpu*{n_workers}", backend=Ray(reserve=False), echo=False)
        self.executor.start()

    def imap(self, fn: Callable, items: Sequence[Any]) -> Iterator[Any]:
        return iter(self.executor.map(fn, items, policy=self.policy))

    def close(self) -> None:
        self.executor.close()
        super().close()


class EvenloadOneByOne(EvenloadOnRay):
    policy = "pull"


def call(fn: Callable, item: Any) -> Any:
    return fn(item)


class RayTasks(Peer):
    def imap(self, fn: Callable, items: Sequence[Any]) -> Iterator[Any]:
        task, known = self.ray.remote(call), self.ray.put(fn)
        for reference in [task.remote(known, item) for item in items]:
            yield self.ray.get(reference)


class RayActorPool(Peer):
    is_ordered = True

    def start(self, n_workers: int) -> None:
        super().start(n_workers)

        class Actor:
            def call(self, fn: Callable, item: Any) -> Any:
                return fn(item)

        from ray.util import ActorPool

        actor = self.ray.remote(Actor)
        self.pool = ActorPool([actor.remote() for _ in range(n_workers)])

    def imap(self, fn: Callable, items: Sequence[Any]) -> Iterator[Any]:
        known = self.ray.put(fn)
        return self.pool.map(lambda actor, item: actor.call.remote(known, item), items)


class RayActorPoolUnordered(RayActorPool):
    """As they come, put into order again."""

    def imap(self, fn: Callable, items: Sequence[Any]) -> Iterator[Any]:
        known = self.ray.put(fn)
        numbered = functools.partial(keep_number, known)
        waiting: list[tuple[int, Any]] = []
        n_told = 0
        for pair in self.pool.map_unordered(numbered, list(enumerate(items))):
            heapq.heappush(waiting, (pair[0], pair[1]))
            while waiting and waiting[0][0] == n_told:
                yield heapq.heappop(waiting)[1]
                n_told += 1


def keep_number(known: Any, actor: Any, pair: tuple[int, Any]) -> Any:
    return actor.call.remote(numbered_call, (known, *pair))


def numbered_call(call: tuple[Any, int, Any]) -> tuple[int, Any]:
    import ray

    known, number, item = call
    return number, ray.get(known)(item)


PEERS: dict[str, type[Peer]] = {
    "evenload on Ray": EvenloadOnRay,
    "evenload on Ray: one by one": EvenloadOneByOne,
    "Ray tasks": RayTasks,
    "Ray ActorPool.map": RayActorPool,
    "Ray ActorPool.map_unordered: reordered": RayActorPoolUnordered,
}


def nothing(x: int) -> int:
    return x


def add_one(array: Any) -> Any:
    return array + 1


def overheads(peer: Peer) -> dict[str, float]:
    import numpy as np

    began = time.monotonic()
    peer.start(2)
    assert list(peer.imap(nothing, [1])) == [1]
    row = {"first_s": time.monotonic() - began}
    assert list(peer.imap(nothing, range(200))) == list(range(200))
    before, began = process_tree_cpu_s(), time.monotonic()
    assert list(peer.imap(nothing, range(N_EMPTY))) == list(range(N_EMPTY))
    row["empty_us"] = (time.monotonic() - began) / N_EMPTY * 1e6
    row["empty_cpu_us"] = (process_tree_cpu_s() - before) / N_EMPTY * 1e6
    arrays = [np.full(ARRAY_MB * 125_000, float(x)) for x in range(N_ARRAYS)]
    for _ in peer.imap(add_one, arrays[:4]):
        pass
    before, began = process_tree_cpu_s(), time.monotonic()
    for x, got in enumerate(peer.imap(add_one, arrays)):
        assert got[0] == x + 1
    row["arrays_mb_s"] = 2 * ARRAY_MB * N_ARRAYS / (time.monotonic() - began)
    row["array_cpu_ms"] = (process_tree_cpu_s() - before) / N_ARRAYS * 1e3
    peer.close()
    return row


def efficiencies(peer: Peer, columns: Sequence[str], draws: int) -> dict[str, float]:
    """Mean over draws of bound / makespan, by column, one after another on the same workers."""
    peer.start(len(SPEEDS))
    folder = tempfile.mkdtemp(prefix="slots")
    while len(os.listdir(folder)) < len(SPEEDS):
        list(peer.imap(warm_up, [(folder, 0.15)] * 8))
    found = {}
    for at, column in enumerate(columns):
        ratios = [ratio(peer, column, draw, 1000 * at + draw, folder) for draw in range(1, draws + 1)]
        found[column] = sum(ratios) / len(ratios)
    peer.close()
    return found


def ratio(peer: Peer, column: str, draw: int, number: int, folder: str) -> float:
    """bound / makespan of a draw; its ``number`` is its own, so that nothing learned before helps in it."""
    time.sleep(0.5)
    items = costs(COLUMNS[column], WORK, draw)
    began = time.time()
    fn = functools.partial(work, folder=folder, draw=number)
    assert len(list(peer.imap(fn, items))) == len(items)
    return bound_s(items) / (time.time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--columns", default="s60,s300")
    parser.add_argument("--peers", default="")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, columns, draws = json.loads(given.one)
        peer = PEERS[name]()
        print(json.dumps(efficiencies(peer, columns, draws) if columns else overheads(peer)), flush=True)
        return
    from importlib.metadata import version

    from record import print_table, record

    names = given.peers.split(",") if given.peers else list(PEERS)
    columns = [column for column in given.columns.split(",") if column]
    measured = functools.partial(in_fresh_interpreter, script=__file__, limit_s=LIMIT_S)
    rows = []
    for name in names:
        row: dict[str, Any] = {"peer": name, **measured(name, [], 0)}
        row |= measured(name, columns, given.draws) if columns else {}
        print_table([row])
        rows.append(row)
    if given.peers or given.columns != parser.get_default("columns"):
        print_table(rows)
    else:
        record("executor_ray", rows, draws=given.draws, ray=version("ray"))


if __name__ == "__main__":
    main()
