"""Ray Data: a callable class on a fixed pool of actors, one for each device, which Ray names as a GPU's id.

Blocks and tasks in flight are Ray Data's own choice. ``wait_for_min_actors_s``: no item begins before all
actors are up. ``materialize``, as rows that are read while it runs hold its actors back. Actors that die are
started again with their tasks; tasks that raise are tried again because of ``actor_task_retry_on_errors``.
https://docs.ray.io/en/latest/data/api/doc/ray.data.ActorPoolStrategy.html
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NAME, PACKAGE, KEEPS_WORKERS = "Ray Data", "ray", True


class OnDevice:
    def __init__(self, task):
        import ray

        self.task, self.device = task, int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])

    def __call__(self, row):
        return {"item": self.task(self.device, row)}


@contextmanager
def workers(n: int, limit_s: float | None) -> Iterator:
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name)
    import ray

    def replay(task, items):
        pool = ray.data.ActorPoolStrategy(size=n)
        rows = ray.data.from_items(items).map(OnDevice, fn_constructor_args=(task,), compute=pool, num_gpus=1)
        return (row["item"] for row in rows.materialize().iter_rows())

    ray.init("local", num_cpus=n + 2, num_gpus=n, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.actor_task_retry_on_errors, context.wait_for_min_actors_s = True, 60
    yield replay
    ray.shutdown()
