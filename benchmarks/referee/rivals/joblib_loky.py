"""joblib.Parallel on loky, its default, with results as they come.

``batch_size="auto"`` and ``pre_dispatch`` are joblib's own; ``initializer`` is loky's, which joblib hands on.
``timeout`` is for a single task, and ends the whole call.
https://joblib.readthedocs.io/en/stable/generated/joblib.Parallel.html
"""

from collections.abc import Iterator
from contextlib import contextmanager

from device import claim, on_claimed

NAME, PACKAGE, KEEPS_WORKERS = "joblib/loky", "joblib", True


@contextmanager
def workers(n: int, limit_s: float | None) -> Iterator:
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    parallel = Parallel(n, return_as="generator_unordered", timeout=limit_s, initializer=claim)
    yield lambda task, items: parallel(delayed(on_claimed)(task, item) for item in items)
    get_reusable_executor().shutdown(wait=True, kill_workers=True)
