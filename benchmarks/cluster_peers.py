"""Executors that bring a cluster with them, and torch's pool, with the same face as those of ``peers``.

Left out where they are not installed: ``pip install "ray[data]" "dask[distributed]" parsl torch``.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from evenload.cli.bench.measure.peers import MultiprocessingPool, Peer

OBJECT_STORE_BYTES = 2 * 1024**3


class RayTasks(Peer):
    name = "Ray tasks"
    package = "ray"
    most_rounds = 2

    def start(self, n_workers: int) -> None:
        import ray

        self.n_workers = n_workers
        self.ray = ray
        ray.init(
            address="local",
            num_cpus=n_workers,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
        )

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        remote = self.ray.remote(num_cpus=1)(fn)
        references = [remote.remote(item) for item in items]
        while references:
            yield self.ray.get(references.pop(0))

    def close(self) -> None:
        self.ray.shutdown()


class RayActorPool(RayTasks):
    name = "Ray ActorPool"

    def start(self, n_workers: int) -> None:
        super().start(n_workers)

        class Actor:
            def call(self, fn: Callable, item: Any) -> Any:
                return fn(item)

        actor = self.ray.remote(num_cpus=1)(Actor)
        from ray.util import ActorPool

        self.pool = ActorPool([actor.remote() for _ in range(n_workers)])

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        shared = self.ray.put(fn)
        return self.pool.map(lambda actor, item: actor.call.remote(shared, item), items)


class RayData(RayTasks):
    name = "Ray Data"
    has_own_default = True
    has_one_by_one = False

    def start(self, n_workers: int) -> None:
        super().start(n_workers)
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        import ray.data

        rows = ray.data.from_items([{"at": at, "item": item} for at, item in enumerate(items)])
        results = rows.map(lambda row: {"at": row["at"], "result": fn(row["item"])})
        return iter([row["result"] for row in sorted(results.take_all(), key=lambda row: row["at"])])


class Dask(Peer):
    name = package = "dask"
    most_rounds = 1

    def start(self, n_workers: int) -> None:
        for part in ("distributed", "distributed.nanny", "distributed.worker", "distributed.scheduler"):
            logging.getLogger(part).setLevel(logging.CRITICAL)
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            dashboard_address=None,
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        )
        self.client = Client(self.cluster)

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        futures = self.client.map(fn, list(items), pure=False)
        while futures:
            yield futures.pop(0).result()

    def close(self) -> None:
        self.client.close()
        self.cluster.close()


class Parsl(Peer):
    name = package = "parsl"
    most_rounds = 1

    def start(self, n_workers: int) -> None:
        import parsl
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider

        logging.getLogger("parsl").setLevel(logging.CRITICAL)
        self.folder = tempfile.mkdtemp(prefix="parsl")
        executor = HighThroughputExecutor(
            label="local",
            address="127.0.0.1",
            loopback_address="127.0.0.1",
            max_workers_per_node=n_workers,
            cores_per_worker=0.1,
            encrypted=False,
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
        self.parsl = parsl
        self.kernel = parsl.load(
            Config(
                executors=[executor],
                run_dir=os.path.join(self.folder, "runs"),
                strategy="none",
                usage_tracking=0,
                initialize_logging=False,
            )
        )
        self.apps: dict[Callable, Callable] = {}

    def imap(self, fn: Callable, items: Iterable[Any], chunk: int | None) -> Iterator[Any]:
        if fn not in self.apps:
            self.apps[fn] = self.parsl.python_app(fn, data_flow_kernel=self.kernel)
        futures = [self.apps[fn](item) for item in items]
        while futures:
            yield futures.pop(0).result()

    def close(self) -> None:
        self.kernel.cleanup()
        self.parsl.clear()


class TorchPool(MultiprocessingPool):
    name = "torch.multiprocessing"
    package = "torch"

    def start(self, n_workers: int) -> None:
        import torch.multiprocessing

        self.pool = torch.multiprocessing.get_context("spawn").Pool(n_workers)


CLUSTER_PEERS: Sequence[type[Peer]] = (TorchPool, RayTasks, RayActorPool, RayData, Dask, Parsl)
