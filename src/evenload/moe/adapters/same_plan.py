"""One search plan for all ranks of an engine, each of which plans for itself."""

import sys
from typing import Any

from numpy.typing import NDArray

from evenload._optional import require
from evenload.moe.routing.agreement import agree_on

__all__ = ["agreed"]


def agreed(phy2log: NDArray[Any], module: str, group_of: str) -> NDArray[Any]:
    """``phy2log``, or rank 0's where any differs (``agree_on``), over the CPU group of an engine's ranks.

    module    of the engine, which has the function
    group_of  that returns the engine's group. Where the engine has not made it, there is nobody to agree with

    A collective of that group, called where all its ranks plan from the same loads.
    """
    engine = sys.modules.get(module)
    if engine is None:
        return phy2log
    try:
        group = getattr(engine, group_of)().cpu_group
    except (AttributeError, AssertionError):  # how the engines say that a group is not there
        return phy2log
    dist = require("torch.distributed", extra="torch", why="agreeing on a plan")
    if not isinstance(group, getattr(dist, "ProcessGroup", ())):
        return phy2log
    return agree_on(phy2log, group)
