"""What an item needs, counted by torch: for ``map(work=...)``, and for a stage's ``estimate``."""

from collections.abc import Callable
from typing import Any

from evenload._optional import require
from evenload.errors import ConfigError


def torch_work(fn: Callable[..., Any] | type, *args: Any, **shared: Any) -> dict[str, float]:
    """Run ``fn(*args)`` once here and return ``{"flop": ...}`` as torch's own counter has it.

    fn      as for ``map``; a class is built first, and closed in the end if it has ``close``
    shared  keyword arguments of ``fn``, or of its constructor
    The counter knows products, convolutions and attention, backwards too; others count as nothing.
    Raises ConfigError if it counted none, MissingExtra without torch, and what ``fn`` raises.
    """
    counter: Any = require("torch.utils.flop_counter", extra="torch", why="counting operations")
    is_class = isinstance(fn, type)
    task = fn(**shared) if is_class else fn
    try:
        with counter.FlopCounterMode(display=False) as counted:
            task(*args, **({} if is_class else shared))
    finally:
        close = getattr(task, "close", None) if is_class else None
        if callable(close):
            close()
    flop = counted.get_total_flops()
    if not flop > 0:
        raise ConfigError(
            "torch counted no operation of this task",
            hint="it counts products, convolutions and attention in torch; give the number yourself: "
            'work={"flop": ...}',
        )
    return {"flop": float(flop)}
