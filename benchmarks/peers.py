"""The executors that are compared, beside those that ``evenload bench`` compares itself with as well.

To add one: subclass ``Peer`` and put it into ``PEERS``, or into ``cluster_peers`` if it brings a cluster.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cluster_peers import CLUSTER_PEERS

from evenload.cli.bench.measure import peers as measured
from evenload.cli.bench.measure.peers import Joblib, Loky, MultiprocessingPool, Peer, ProcessPool


class Evenload(measured.Evenload):
    def start(self, n_workers: int) -> None:
        from evenload.executor import Executor

        os.environ["EVENLOAD_WARM_START"] = "0"  # no run knows what the one before has measured
        self.executor = Executor(f"cpu*{n_workers}")
        self.executor.start()


class EvenloadAlone(Evenload):
    """What must not run twice never waits for another: each item has a message of its own, both ways."""

    name = "evenload, a message per item"
    has_own_default = False

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        return iter(self.executor.map(fn, items, policy="pull:1", repeatable=False))


class Mpire(Peer):
    name = package = "mpire"
    has_own_default = True

    def start(self, n_workers: int) -> None:
        from mpire import WorkerPool

        self.pool = WorkerPool(n_jobs=n_workers, start_method="spawn", keep_alive=True)

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        packed = [(item,) for item in items]
        if chunk is None:
            return iter(self.pool.map(fn, packed))
        return iter(self.pool.imap(fn, packed, chunk_size=chunk, iterable_len=len(packed)))

    def close(self) -> None:
        self.pool.terminate()


class Pebble(Peer):
    name = package = "pebble"

    def start(self, n_workers: int) -> None:
        import multiprocessing

        from pebble import ProcessPool as PebblePool

        self.pool = PebblePool(max_workers=n_workers, context=multiprocessing.get_context("spawn"))

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        return self.pool.map(fn, items, chunksize=chunk or 1).result()

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Evenload, MultiprocessingPool, ProcessPool, Loky, Joblib, Mpire, Pebble)
}


def all_peers() -> dict[str, type[Peer]]:
    """Those of this machine, and those that bring a cluster, as far as they are installed."""
    from importlib.util import find_spec

    installed = {peer.name: peer for peer in CLUSTER_PEERS if find_spec(peer.package) is not None}
    return PEERS | installed


def versions() -> dict[str, str]:
    """Of every peer that is a package."""
    from importlib import metadata

    found = {}
    for peer in all_peers().values():
        if peer.package and peer.package != "evenload":
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[peer.package] = metadata.version(peer.package)
    return found
