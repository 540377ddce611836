"""The kinds of programs that the pages of joblib and of CPython's ``concurrent.futures`` show, written anew.

Each is a function of what runs the jobs, and returns what the program would print.
"""

from concurrent.futures import FIRST_COMPLETED, Executor, as_completed, wait
from math import isqrt
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from joblib import Memory, Parallel, delayed


def root(x: float) -> float:
    return x**0.5


def store_mean(rows: np.ndarray, out: np.ndarray, i: int) -> None:
    out[i] = rows[i].mean()


def with_default(a: int, *more: int, scale: int = 1) -> int:
    return (a + sum(more)) * scale


class Line:
    """A model with a method that is run for many inputs, and state that it keeps for each process."""

    def __init__(self, slope: float):
        self.slope = slope

    def at(self, x: float) -> float:
        return self.slope * x


def column_sum(table: np.ndarray, column: int) -> float:
    return float(table[:, column].sum())


def inner(n: int) -> list[float]:
    return Parallel(n_jobs=2, prefer="threads")(delayed(root)(i) for i in range(n))


def jobs_with_arguments(folder: Path) -> Any:
    jobs = (delayed(with_default)(i, *range(i), scale=i) for i in range(5))
    return Parallel()(jobs), Parallel()(delayed(root)(i**2) for i in range(6))


def methods_and_nested_parallels(folder: Path) -> Any:
    line = Line(2.5)
    return Parallel()(delayed(line.at)(x) for x in range(4)), Parallel()(delayed(inner)(n) for n in range(3))


def output_in_a_memory_map(folder: Path) -> Any:
    """Rows are dumped and loaded as a memory map; the jobs fill another."""
    rows = np.arange(4000, dtype="f8").reshape(8, 500)
    joblib.dump(rows, folder / "rows")
    out = np.memmap(folder / "out", dtype="f8", shape=8, mode="w+")
    loaded = joblib.load(folder / "rows", mmap_mode="r")
    Parallel()(delayed(store_mean)(loaded, out, i) for i in range(8))
    kept = np.fromfile(folder / "out")
    return type(loaded).__name__, out.tolist(), kept.tolist(), out.tolist() == rows.mean(axis=1).tolist()


def results_that_are_cached(folder: Path) -> Any:
    memory = Memory(folder / "cache", verbose=0)
    cached = memory.cache(column_sum)
    table = np.arange(30.0).reshape(10, 3)
    first = Parallel()(delayed(cached)(table, column) for column in range(3))
    return first, [cached.check_call_in_cache(table, column) for column in range(4)]


def shared_memory_is_required(folder: Path) -> Any:
    """Jobs that change an object of the caller run in threads, whichever backend was chosen."""
    found: set[int] = set()
    Parallel(require="sharedmem")(delayed(found.add)(i) for i in range(5))
    return found


def functions_that_pickle_refuses(folder: Path) -> Any:
    return Parallel()(delayed(lambda x: x + 1)(i) for i in range(3))


JOBLIB = (
    jobs_with_arguments,
    methods_and_nested_parallels,
    output_in_a_memory_map,
    results_that_are_cached,
    shared_memory_is_required,
    functions_that_pickle_refuses,
)

PRIMES = [
    112272535095293,
    112582705942171,
    115280095190773,
    115797848077099,
    117450548693743,
    993960000099397,
]


def is_prime(n: int) -> bool:
    """Trial division by a few numbers: as the page's example, but quick."""
    return n > 1 and all(n % i for i in range(2, min(isqrt(n) + 1, 10_000)))


def load(name: str, n_times: int) -> bytes:
    if name == "missing":
        raise OSError(f"{name} cannot be loaded")
    return n_times * name.encode()


def primes_by_map(pool: Executor) -> Any:
    return list(zip(PRIMES, pool.map(is_prime, PRIMES, chunksize=2), strict=True))


def pages_as_they_are_loaded(pool: Executor) -> Any:
    names = ["a", "bb", "missing", "ccc"]
    waiting = {pool.submit(load, name, n_times=2): name for name in names}
    found = {}
    for future in as_completed(waiting, timeout=500):
        error = future.exception(timeout=500)
        found[waiting[future]] = (
            len(future.result(timeout=500)) if error is None else f"{type(error).__name__}: {error}"
        )
    return dict(sorted(found.items()))


def a_power(pool: Executor) -> Any:
    future = pool.submit(pow, 323, 1235)
    seen: list[bool] = []
    value = future.result(timeout=500)
    future.add_done_callback(lambda one: seen.append(one.done()))
    return value % 1_000_007, seen, future.cancel(), future.running()


def the_first_of_some(pool: Executor) -> Any:
    futures = [pool.submit(pow, i, 2) for i in range(4)]
    done, rest = wait(futures, timeout=500, return_when=FIRST_COMPLETED)
    return bool(done), sorted(one.result(timeout=500) for one in (*done, *rest))


FUTURES = (primes_by_map, pages_as_they_are_loaded, a_power, the_first_of_some)


def printed_by_joblib(backend: str, folder: Path) -> dict[str, str]:
    """What each program of joblib's kind prints under a backend, by their names."""
    found = {}
    with joblib.parallel_config(backend, n_jobs=2):
        for program in JOBLIB:
            place = folder / f"{backend}-{program.__name__}"
            place.mkdir()
            found[program.__name__] = repr(program(place))
    return found


def printed_by_futures(pool: Executor) -> dict[str, str]:
    """What each program of the kind of ``concurrent.futures`` prints with an executor, by their names."""
    return {program.__name__: repr(program(pool)) for program in FUTURES}
