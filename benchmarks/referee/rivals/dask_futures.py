"""Dask's futures on a LocalCluster: a process with one thread for each device, known by its worker's name.

``pure=False``, as a task has effects; ``retries`` for tasks that raise. ``allowed-failures`` of a worker that
dies, stealing and ``worker-saturation`` are left as Dask has them.
https://docs.dask.org/en/stable/futures.html, https://distributed.dask.org/en/stable/resilience.html
"""

from collections.abc import Iterator
from contextlib import contextmanager

NAME, PACKAGE, KEEPS_WORKERS = "Dask", "distributed", True


def on_worker(item, task):
    from distributed import get_worker

    return task(int(get_worker().name), item)


@contextmanager
def workers(n: int, limit_s: float | None) -> Iterator:
    from distributed import Client, LocalCluster, as_completed

    def replay(task, items):
        futures = client.map(on_worker, items, task=task, pure=False, retries=1)
        for future in as_completed(futures):
            if future.status == "finished":
                yield future.result()
            else:
                print(f"an item failed: {future.exception()!r}")

    cluster = LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    with cluster, Client(cluster) as client:
        yield replay
