"""The executors that are compared with, those that are installed, each behind ``map(fn, items)``."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from evenload._optional import is_installed

__all__ = ["PEERS", "missing_peers", "same"]

Map = Callable[[Callable[[Any], Any], Sequence[Any], int], list[Any]]


def same(item: Any) -> Any:
    return item


@contextlib.contextmanager
def evenload_(n: int) -> Iterator[Map]:
    from evenload.executor import Executor

    with Executor(f"cpu*{n}", echo=False) as executor:
        yield lambda fn, items, chunk: list(executor.map(fn, items, policy="measured"))


@contextlib.contextmanager
def process_pool(n: int) -> Iterator[Map]:
    with ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda fn, items, chunk: list(pool.map(fn, items, chunksize=chunk))


@contextlib.contextmanager
def multiprocessing_pool(n: int) -> Iterator[Map]:
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        yield lambda fn, items, chunk: pool.map(fn, items, chunk)
        pool.close()
        pool.join()


@contextlib.contextmanager
def loky(n: int) -> Iterator[Map]:
    from loky import get_reusable_executor  # type: ignore[import-not-found]

    pool = get_reusable_executor(max_workers=n, timeout=60)
    yield lambda fn, items, chunk: list(pool.map(fn, items, chunksize=chunk))
    pool.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def joblib(n: int) -> Iterator[Map]:
    from joblib import Parallel, delayed  # type: ignore[import-not-found]

    with Parallel(n, batch_size="auto") as parallel:
        yield lambda fn, items, chunk: list(parallel(delayed(fn)(item) for item in items))
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-not-found]

    get_reusable_executor().shutdown(wait=True, kill_workers=True)


# name -> (package that must be there, how)
PEERS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "evenload": ("evenload", evenload_),
    "ProcessPoolExecutor": ("concurrent", process_pool),
    "multiprocessing.Pool": ("multiprocessing", multiprocessing_pool),
    "loky": ("loky", loky),
    "joblib": ("joblib", joblib),
}


def missing_peers() -> list[str]:
    """Sentences on the peers that are not installed."""
    absent = [name for name, (package, _) in PEERS.items() if not is_installed(package)]
    return [f"not compared with {', '.join(absent)}: pip install {' '.join(absent)}"] if absent else []
