"""One adapter per executor, all with the same face. To add one: subclass ``Peer`` and put it into ``PEERS``.

Every adapter imports its library when it starts, so that start-up times include it.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any


class Peer:
    """``chunk`` is how many items travel together; None is what the library does if one says nothing."""

    name = "?"
    package = ""
    has_own_default = False  # its documented first example is something else than one item at a time
    has_one_by_one = True
    most_rounds = 100

    def start(self, n_workers: int) -> None:
        self.n_workers = n_workers

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        """Results in input order."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Evenload(Peer):
    name = package = "evenload"
    has_own_default = True

    def start(self, n_workers: int) -> None:
        from evenload.executor import Executor

        os.environ["EVENLOAD_WARM_START"] = "0"  # no run knows what the one before has measured
        self.executor = Executor(f"cpu*{n_workers}")
        self.executor.start()

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        return iter(self.executor.map(fn, items, policy=None if chunk is None else f"pull:{chunk}"))

    def close(self) -> None:
        self.executor.close()


class EvenloadAlone(Evenload):
    """What must not run twice never waits for another: each item has a message of its own, both ways."""

    name = "evenload, a message per item"
    has_own_default = False

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        return iter(self.executor.map(fn, items, policy="pull:1", repeatable=False))


class MultiprocessingPool(Peer):
    name = "multiprocessing.Pool"
    has_own_default = True

    def start(self, n_workers: int) -> None:
        import multiprocessing

        self.pool = multiprocessing.get_context("spawn").Pool(n_workers)

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        return iter(self.pool.map(fn, items)) if chunk is None else self.pool.imap(fn, items, chunksize=chunk)

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


class ProcessPool(Peer):
    name = "ProcessPoolExecutor"

    def start(self, n_workers: int) -> None:
        import concurrent.futures
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(n_workers, mp_context=context)

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        return self.pool.map(fn, items, chunksize=chunk or 1)

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


class Loky(ProcessPool):
    name = package = "loky"

    def start(self, n_workers: int) -> None:
        import loky

        self.pool = loky.get_reusable_executor(max_workers=n_workers, timeout=120)

    def close(self) -> None:
        self.pool.shutdown(wait=True, kill_workers=True)


class Joblib(Peer):
    name = package = "joblib"
    has_own_default = True

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        from joblib import Parallel, delayed

        parallel = Parallel(self.n_workers, return_as="generator", batch_size=chunk or "auto")
        return iter(parallel(delayed(fn)(item) for item in items))

    def close(self) -> None:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True, kill_workers=True)


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

    from cluster_peers import CLUSTER_PEERS

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
