"""evenload.Executor.map, at its defaults but that failures do not end the run.

``retries`` for a task that raises; ``timeout_s`` where one hangs, which is a failure, too; results as they
come. Nothing measured in an earlier run is used (``EVENLOAD_WARM_START``).
docs/how-to/map.md, docs/how-to/survive-crashes.md
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

NAME, PACKAGE, KEEPS_WORKERS = "evenload", "evenload", True


def on_device(task, item):
    return task(int(os.environ["EVENLOAD_DEVICE"].partition(":")[2] or 0), item)


@contextmanager
def workers(n: int, limit_s: float | None) -> Iterator:
    os.environ["EVENLOAD_WARM_START"] = "0"
    from evenload import Executor

    def replay(task, items):
        work = functools.partial(on_device, task)
        results = executor.map(work, items, ordered=False, on_error="return", retries=1, timeout_s=limit_s)
        for _, value in results.indexed():
            if isinstance(value, int):
                yield value
            else:
                print(f"an item failed: {value!r}")

    with Executor(f"cpu*{n}", echo=False) as executor:
        executor.start()
        yield replay
