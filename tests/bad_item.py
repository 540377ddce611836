"""Twelve items, one of which misbehaves in its worker."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenload.executor import Executor

N, BAD = 12, 4
HEALTHY = [x for x in range(N) if x != BAD]


def run(executor: Executor, misbehave: Callable[[int], Any], **options: Any) -> Any:
    """Map the items; check the others and return what became of the one that misbehaves."""

    def task(x: int) -> Any:
        if x == BAD:
            return misbehave(x)
        time.sleep(0.005)
        return x

    got = list(executor.map(task, range(N), on_error="return", **options))
    assert [got[x] for x in HEALTHY] == HEALTHY
    assert list(executor.map(abs, range(5))) == list(range(5)), "usable afterwards"
    return got[BAD]


def once(folder: Path, then: Callable[[], Any]) -> Callable[[int], int]:
    """Misbehave the first time only."""

    def misbehave(x: int, marker: str = str(folder / "marker")) -> int:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return x
        then()
        return -1

    return misbehave
