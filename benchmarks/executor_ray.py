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

import functools
import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench_tasks import SPEEDS, add_one, bound_s, costs, same, work
from cluster_peers import RayActorPool, RayTasks
from cpu_clock import process_tree_cpu_s
from executor_overhead import all_up, asked, in_fresh_interpreter

N_EMPTY, N_ARRAYS, ARRAY_MB = 2000, 24, 8
COLUMNS, WORK = {"s60": 60, "s300": 300}, 60.0  # seconds on a device of speed 1
LIMIT_S = 900


class EvenloadOnRay(RayTasks):
    policy: str | None = None

    def start(self, n_workers: int) -> None:
        super().start(n_workers)
        from evenload.executor import Executor, Ray

        self.executor = Executor(f"cpu*{n_workers}", backend=Ray(reserve=False), echo=False)
        self.executor.start()

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        return iter(self.executor.map(fn, items, policy=self.policy))

    def close(self) -> None:
        self.executor.close()
        super().close()


class EvenloadOneByOne(EvenloadOnRay):
    policy = "pull"


class RayActorPoolUnordered(RayActorPool):
    """As they come, put into order again."""

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        known = self.ray.put(functools.partial(numbered, fn))
        waiting: list[tuple[int, Any]] = []
        n_told = 0
        pairs = list(enumerate(items))
        for pair in self.pool.map_unordered(lambda actor, pair: actor.call.remote(known, pair), pairs):
            heapq.heappush(waiting, (pair[0], pair[1]))
            while waiting and waiting[0][0] == n_told:
                yield heapq.heappop(waiting)[1]
                n_told += 1


def numbered(fn: Callable, pair: tuple[int, Any]) -> tuple[int, Any]:
    return pair[0], fn(pair[1])


PEERS: dict[str, type[RayTasks]] = {
    "evenload on Ray": EvenloadOnRay,
    "evenload on Ray: one by one": EvenloadOneByOne,
    "Ray tasks": RayTasks,
    "Ray ActorPool.map": RayActorPool,
    "Ray ActorPool.map_unordered: reordered": RayActorPoolUnordered,
}


def overheads(peer: RayTasks) -> dict[str, float]:
    import numpy as np

    began = time.monotonic()
    peer.start(2)
    assert list(peer.imap(same, [1], None)) == [1]
    row = {"first_s": time.monotonic() - began}
    assert list(peer.imap(same, range(200), None)) == list(range(200))
    before, began = process_tree_cpu_s(), time.monotonic()
    assert list(peer.imap(same, range(N_EMPTY), None)) == list(range(N_EMPTY))
    row["empty_us"] = (time.monotonic() - began) / N_EMPTY * 1e6
    row["empty_cpu_us"] = (process_tree_cpu_s() - before) / N_EMPTY * 1e6
    arrays = [np.full(ARRAY_MB * 125_000, float(x)) for x in range(N_ARRAYS)]
    for _ in peer.imap(add_one, arrays[:4], None):
        pass
    before, began = process_tree_cpu_s(), time.monotonic()
    for x, got in enumerate(peer.imap(add_one, arrays, None)):
        assert got[0] == x + 1
    row["arrays_mb_s"] = 2 * ARRAY_MB * N_ARRAYS / (time.monotonic() - began)
    row["array_cpu_ms"] = (process_tree_cpu_s() - before) / N_ARRAYS * 1e3
    peer.close()
    return row


def efficiencies(peer: RayTasks, columns: Sequence[str], draws: int) -> dict[str, float]:
    """Mean over draws of bound / makespan, by column, one after another on the same workers."""
    peer.start(len(SPEEDS))
    folder = all_up(lambda fn, items: list(peer.imap(fn, items, None)), len(SPEEDS))
    found = {}
    for at, column in enumerate(columns):
        ratios = [ratio(peer, column, draw, 1000 * at + draw, folder) for draw in range(1, draws + 1)]
        found[column] = sum(ratios) / len(ratios)
    peer.close()
    return found


def ratio(peer: RayTasks, column: str, draw: int, number: int, folder: str) -> float:
    """bound / makespan of a draw; its ``number`` is its own, so that nothing learned before helps in it."""
    time.sleep(0.5)
    items = costs(COLUMNS[column], WORK, draw)
    began = time.time()
    fn = functools.partial(work, folder=folder, draw=number)
    assert len(list(peer.imap(fn, items, None))) == len(items)
    return bound_s(items) / (time.time() - began)


def measure(name: str, columns: Sequence[str], draws: int) -> dict[str, float]:
    return efficiencies(PEERS[name](), columns, draws) if columns else overheads(PEERS[name]())


def main() -> None:
    given = asked(__doc__ or "", measure, draws=3, columns=",".join(COLUMNS), peers="")
    from importlib.metadata import version

    from record import print_table, record

    columns = [column for column in given.columns.split(",") if column]
    measured = functools.partial(in_fresh_interpreter, script=__file__, limit_s=LIMIT_S)
    rows = []
    for name in given.peers.split(",") if given.peers else PEERS:
        row: dict[str, Any] = {"peer": name, **measured(name, [], 0)}
        rows.append(row | (measured(name, columns, given.draws) if columns else {}))
        print_table(rows[-1:])
    if not given.peers and columns == list(COLUMNS):
        record("executor_ray", rows, draws=given.draws, ray=version("ray"))


if __name__ == "__main__":
    main()
