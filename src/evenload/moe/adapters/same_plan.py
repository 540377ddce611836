"""One search plan for all ranks of an engine, each of which plans for itself."""

import sys
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from evenload._optional import require
from evenload.errors import EvenloadError
from evenload.moe.routing.agreement import agree_on
from evenload.moe.routing.exchange import attempt

__all__ = ["agreed"]


def agreed(plan: Callable[[], NDArray[Any]], module: str, group_of: str) -> NDArray[Any]:
    """What ``plan`` returns, or rank 0's where any differs (``agree_on``), over an engine's CPU group.

    module    of the engine, which has the function
    group_of  that returns the engine's group. Where the engine has not made it, there is nobody to agree with

    A collective of that group, called where all its ranks plan from the same loads. A rank whose plan raises
    meets the others all the same: then all of them raise.
    """
    group = _group(module, group_of)
    if group is None:
        return plan()
    mine, error = attempt(plan)
    try:
        return agree_on(() if error is not None else mine, group)
    except EvenloadError:
        if error is None:
            raise
    raise error


def _group(module: str, group_of: str) -> Any:
    engine = sys.modules.get(module)
    if engine is None:
        return None
    try:
        group = getattr(engine, group_of)().cpu_group
    except (AttributeError, AssertionError):  # how the engines say that a group is not there
        return None
    dist = require("torch.distributed", extra="torch", why="agreeing on a plan")
    return group if isinstance(group, getattr(dist, "ProcessGroup", ())) else None
