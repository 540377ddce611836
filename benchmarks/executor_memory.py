"""How much memory a long stream takes: growth in MB, at its largest.

    python benchmarks/executor_memory.py [--items 1000000] [--peers "evenload;joblib"]

"stream": tiny items from a generator, results in order, each dropped at once; resident size of the caller.
"slow reader": 8 MB results, of which the caller takes one every 20 ms while two workers could make many more;
for evenload with ``look_ahead_bytes`` of 128 MiB. All processes, memory that they share counted once.
"map": six jobs that each read one number of a file of 300 MB, given to all of them as one ``numpy.memmap``.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from executor_overhead import N_WORKERS, asked, in_fresh_interpreter, told
from peers import Evenload, MultiprocessingPool, Peer

N_LARGE = 150
N_MAPPED, MAP_BYTES = 6, 300_000_000
PAUSE_S = 0.02
LOOK_AHEAD_BYTES = 128 * 1024 * 1024
CHUNK = 1000  # of the stream, for executors that do not choose one by themselves
PEERS = ("evenload", "multiprocessing.Pool", "ProcessPoolExecutor", "loky", "joblib", "mpire", "pebble")


class Watch:
    """The largest size while it is there, of this process or of all that it has started."""

    def __init__(self, is_for_all: bool):
        self._is_for_all = is_for_all

    def __enter__(self) -> "Watch":
        self._process = psutil.Process()
        self._is_over = False
        self.before = self.most = self._size()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _size(self) -> int:
        if not self._is_for_all:
            return self._process.memory_info().rss
        processes = (self._process, *self._process.children(recursive=True))
        return sum(process.memory_full_info().pss for process in processes)

    def _look(self) -> None:
        while not self._is_over:
            self.most = max(self.most, self._size())
            time.sleep(0.05 if self._is_for_all else 0.01)

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    @property
    def growth_mb(self) -> float:
        return (self.most - self.before) / 1e6


def measure(peer_name: str, what: str, n_items: int) -> dict[str, float]:
    import numpy  # noqa: F401 - not part of the growth
    from bench_tasks import make_large, same
    from peers import PEERS as CLASSES

    peer = CLASSES[peer_name]()
    peer.start(N_WORKERS)
    if what == "map":
        return measure_map(peer)
    fn = same if what == "stream" else make_large
    n = n_items if what == "stream" else N_LARGE
    list(peer.imap(same, range(100), 1))
    began = time.perf_counter()
    with Watch(what != "stream") as watch:
        n_seen = 0
        for result in results_of(peer, fn, n, what):
            n_seen += 1
            if what != "stream":
                assert result[0] == n_seen - 1
                time.sleep(PAUSE_S)
        assert n_seen == n
    wall_s = time.perf_counter() - began
    peer.close()
    return {"growth_mb": watch.growth_mb, "us_per_item": wall_s / n * 1e6}


def measure_map(peer: Peer) -> dict[str, float]:
    """The growth while jobs read a memory map of a file that has nothing in it, so that no page is real."""
    import numpy
    from bench_tasks import last_of, same

    list(peer.imap(same, range(100), 1))
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(MAP_BYTES)
        mapped = numpy.memmap(file.name, "u1", "r")
        with Watch(True) as watch:
            assert list(peer.imap(last_of, [mapped] * N_MAPPED, 1)) == [0] * N_MAPPED
    peer.close()
    return {"growth_mb": watch.growth_mb}


def results_of(peer: Peer, fn: Callable, n: int, what: str) -> Iterator[Any]:
    if isinstance(peer, Evenload):
        bytes_ahead = None if what == "stream" else LOOK_AHEAD_BYTES
        return iter(peer.executor.map(fn, (at for at in range(n)), look_ahead_bytes=bytes_ahead))
    if isinstance(peer, MultiprocessingPool):
        return peer.pool.imap(fn, (at for at in range(n)), chunksize=CHUNK if what == "stream" else 1)
    if peer.name == "joblib":
        return peer.imap(fn, (at for at in range(n)), None)  # type: ignore[arg-type]
    return peer.imap(fn, range(n), CHUNK if what == "stream" else 1)


def main() -> None:
    given = asked(__doc__ or "", measure, peers="", items=1_000_000)
    rows = []
    for name in given.peers.split(";") if given.peers else PEERS:
        row: dict[str, float | str] = {"peer": name}
        for what in ("stream", "slow reader", "map"):
            got = in_fresh_interpreter(name, what, given.items, script=__file__)
            row |= {f"{what} {key}": value for key, value in got.items()}
        rows.append(row)
    told("executor_memory", rows, not given.peers, items=given.items)


if __name__ == "__main__":
    main()
