"""Executors that are compared, one adapter each with the same face. To add one: subclass ``Peer`` and put it
into ``PEERS``; those of ``benchmarks/peers.py`` need more packages.

Every adapter imports its library when it starts, so that start-up times include it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from evenload._optional import is_installed


class Peer:
    """An executor with its workers, from ``start`` to ``close``.

    package          what must be installed, if it is not in Python itself
    has_own_default  its documented first example is something else than one item at a time
    has_own_chunks   it chooses how many items travel together better than a number given to it
    """

    name = "?"
    package = ""
    has_own_default = False
    has_own_chunks = False
    has_one_by_one = True
    most_rounds = 100

    def start(self, n_workers: int) -> None:
        self.n_workers = n_workers

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        """Results in input order; ``chunk`` items travel together, None: what the library does by itself."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Evenload(Peer):
    """The executor of evenload, as one of the peers."""

    name = package = "evenload"
    has_own_default = has_own_chunks = True

    def start(self, n_workers: int) -> None:
        from evenload.executor import Executor

        self.executor = Executor(f"cpu*{n_workers}", echo=False)
        self.executor.start()

    def imap(self, fn: Callable, items: Sequence[Any], chunk: int | None) -> Iterator[Any]:
        return iter(self.executor.map(fn, items, policy=None if chunk is None else f"pull:{chunk}"))

    def close(self) -> None:
        self.executor.close()


class MultiprocessingPool(Peer):
    """A ``multiprocessing.Pool``."""

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
    """A ``concurrent.futures.ProcessPoolExecutor``."""

    name = "ProcessPoolExecutor"

    def start(self, n_workers: int) -> None:
        import concurrent.futures
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self.pool: Any = concurrent.futures.ProcessPoolExecutor(n_workers, mp_context=context)

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        return self.pool.map(fn, items, chunksize=chunk or 1)

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


class Loky(ProcessPool):
    """A reusable executor of loky."""

    name = package = "loky"

    def start(self, n_workers: int) -> None:
        import loky  # pyrefly: ignore

        self.pool = loky.get_reusable_executor(max_workers=n_workers, timeout=120)

    def close(self) -> None:
        self.pool.shutdown(wait=True, kill_workers=True)


class Joblib(Peer):
    """A ``joblib.Parallel`` of processes."""

    name = package = "joblib"
    has_own_default = has_own_chunks = True

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        from joblib import Parallel, delayed

        size: Any = chunk or "auto"
        parallel = Parallel(self.n_workers, return_as="generator", batch_size=size)
        return iter(parallel(delayed(fn)(item) for item in items))

    def close(self) -> None:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True, kill_workers=True)


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Evenload, ProcessPool, MultiprocessingPool, Loky, Joblib)
}


def missing_peers() -> list[str]:
    """Sentences on the peers that are not installed."""
    absent = [name for name, peer in PEERS.items() if peer.package and not is_installed(peer.package)]
    return [f"not compared with {', '.join(absent)}: pip install {' '.join(absent)}"] if absent else []
