"""multiprocessing.Pool, an item at a time: "chunksize" is 1, as items are unequal and long.

A device is taken by the worker's ``initializer``. Results are asked for one by one, so that an exception
loses its own item alone; a worker that dies loses its item without a word.
https://docs.python.org/3/library/multiprocessing.html#multiprocessing.pool.Pool.imap_unordered
"""

import functools
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager

from device import claim, on_claimed

NAME, PACKAGE, KEEPS_WORKERS = "multiprocessing.Pool", "", True


@contextmanager
def workers(n: int, limit_s: float | None) -> Iterator:
    def replay(task, items):
        results = pool.imap_unordered(functools.partial(on_claimed, task), items)
        while True:
            try:
                yield next(results)
            except StopIteration:
                return
            except Exception as error:
                print(f"an item raised: {error}")

    with multiprocessing.Pool(n, initializer=claim) as pool:
        yield replay
