"""``leave_out_waits``: stops a clock while its rank waits for others in any exchange of torch.distributed.

    forward: own work ── broadcast, gather, wait ── own work ── backward
                         └───── clock stands ────┘

torch has no hook for this. So the few methods that every exchange of Python's goes through are wrapped, once
in a process: those of groups, ``Work.wait``, DDP's broadcast of buffers, functional collectives. No model has
to be known for it. What waits within C++ alone, or by other means than torch.distributed, is not seen.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

EXCHANGES = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather",
    "monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip
WAITS = ("synchronize", "wait")


class WaitClock(Protocol):
    """A stopwatch of one rank."""

    def hold(self) -> bool:
        """Stop if it is running, and counts what this thread does; returns whether it was stopped."""

    def resume(self) -> None:
        """Go on."""


_clocks: tuple[weakref.ref[Any], ...] = ()  # replaced as a whole: threads that wait read it


def leave_out_waits(clock: WaitClock) -> None:
    """Have ``clock`` stand, for as long as it lives, while a thread that it counts is in an exchange."""
    global _clocks
    if not _clocks:
        _wrap_all()
    _clocks = (*(one for one in _clocks if one() is not None), weakref.ref(clock))


def _wrap_all() -> None:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    for owner, names in (
        (dist.ProcessGroup, EXCHANGES),
        (dist.Work, WAITS),
        (dist, ("_broadcast_coalesced",)),
        (functional, ("wait_tensor",)),
    ):
        for name in names:
            call = getattr(owner, name, None)
            if call is not None and not hasattr(call, "leaves_out_waits"):
                setattr(owner, name, _wrapped(call, name))


def _wrapped(call: Callable[..., Any], name: str) -> Any:
    """Return ``call`` with all clocks held meanwhile."""

    def waiting(first: Any, /, *args: Any, **kwargs: Any) -> Any:
        clocks = [clock for clock in (one() for one in _clocks) if clock is not None and clock.hold()]
        try:
            return call(first, *args, **kwargs)
        finally:
            for clock in clocks:
                clock.resume()

    # pybind11 takes a Python method for an override, unless the code that calls it has its name.
    waiting.__code__ = waiting.__code__.replace(co_name=name)
    waiting.__name__, waiting.__doc__ = name, call.__doc__
    if "torch._dynamo" in sys.modules:  # as DDP has it: the compiler is not to look into this
        import torch

        waiting = torch.compiler.disable(waiting)
    waiting.leaves_out_waits = True  # pyrefly: ignore
    return waiting
