"""The job of ``pipeline_run`` on Ray Data: two stages that stream, each with a pool of actors of its own.

Ray Data gives no device from one stage to the other, so the pools are chosen beforehand, the best there are.
An actor takes the next device of its pool, loads, then sleeps for as long as an item takes there.
"""

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["ray_data"]

Stage = tuple[
    str, float, float
]  # column, seconds to load, seconds for an item of size 1 on a device of speed 1


def ray_data(
    items: Sequence[tuple[float, float]], speeds: Sequence[float], edit: Stage, score: Stage
) -> float:
    """Seconds from the start of the last actor to the last score."""
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        "local", num_cpus=4 * len(speeds), include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    try:
        return _run(ray, items, _best_pools(items, speeds, (edit, score)), (edit, score))
    finally:
        ray.shutdown()


def _best_pools(items: Sequence, speeds: Sequence[float], stages: tuple[Stage, Stage]) -> list[list[float]]:
    """The speeds of both stages' devices, split so that the slower stage is done soonest."""
    work = [sum(item[at] for item in items) * stages[at][2] for at in (0, 1)]

    def soonest(editors: tuple[int, ...]) -> float:
        pools = [
            [speeds[i] for i in range(len(speeds)) if (i in editors) == is_edit] for is_edit in (True, False)
        ]
        return max(stages[at][1] + work[at] / sum(pools[at]) for at in (0, 1))

    choices = [c for n in range(1, len(speeds)) for c in itertools.combinations(range(len(speeds)), n)]
    editors = min(choices, key=soonest)
    return [[speeds[i] for i in range(len(speeds)) if (i in editors) == is_edit] for is_edit in (True, False)]


def _run(ray: Any, items: Sequence, pools: list[list[float]], stages: tuple[Stage, Stage]) -> float:
    @ray.remote(num_cpus=0)
    class Devices:
        def __init__(self) -> None:
            self.left, self.up_s = [list(pool) for pool in pools], 0.0

        def take(self, at: int) -> float:
            self.up_s = time.time()
            return self.left[at].pop()

        def last_up_s(self) -> float:
            return self.up_s

    devices = Devices.remote()

    class Sleeper:
        def __init__(self, at: int) -> None:
            self.column, load_s, item_s = stages[at]
            self.item_s = item_s / ray.get(devices.take.remote(at))
            time.sleep(load_s)

        def __call__(self, row: dict) -> dict:
            time.sleep(self.item_s * row[self.column])
            return {**row, "done_s": time.time()}

    columns = [stage[0] for stage in stages]
    rows = [dict(zip(columns, item, strict=True)) for item in items]
    ray.data.DataContext.get_current().enable_progress_bars = False
    flow = ray.data.from_items(rows, override_num_blocks=len(rows))
    for at, pool in enumerate(pools):
        flow = flow.map(
            Sleeper, fn_constructor_args=(at,), compute=ray.data.ActorPoolStrategy(size=len(pool)), num_cpus=1
        )
    done_s = [row["done_s"] for row in flow.iter_rows()]
    assert len(done_s) == len(items)
    return max(done_s) - ray.get(devices.last_up_s.remote())
