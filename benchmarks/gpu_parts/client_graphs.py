"""Fused steps of clients in CUDA graphs, in the place of compiled ones: what graphs would be worth.

evenload has no such strategy. A step's inputs are copied to where the graph reads them, and the clients' new
state back, so that everything around a step is what it is without graphs.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from cuda_timing import graph_of
from part import Part


class GraphedSteps:
    """A maker of steps like ``compile_step``, whose steps are CUDA graphs.

    inner  what compiles the step beforehand; None: the step as it was traced
    """

    def __init__(self, part: Part, inner: Callable[..., Any] | None) -> None:
        from evenload.clients.tune.engine_checks import why_not_compiled

        self._part, self._inner = part, inner
        self.why_not: Callable[[], str | None] = why_not_compiled if inner else lambda: None

    def __call__(self, traced: Any, clients: Any, given: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map

        from evenload.clients.step.fuse import StackedClients, StepArguments, StepOutput

        step = traced if self._inner is None else self._inner(traced, clients, given)
        held = StackedClients(*tree_map(torch.clone, clients.tables()))
        inputs, scalars = [t.clone() for t in given.batch], {n: t.clone() for n, t in given.s.items()}
        made: dict[str, Any] = {}

        def call() -> None:
            made["out"] = step(held, StepArguments(*inputs, scalars))

        replay = graph_of(self._part, call)
        into = [*held.flat(), *inputs, *scalars.values()]

        def run(clients: Any, given: Any) -> Any:
            torch._foreach_copy_(into, [*clients.flat(), *given.batch, *given.s.values()])
            replay()
            torch._foreach_copy_([*clients.changing(), clients.alive], [*held.changing(), held.alive])
            out = made["out"]
            return StepOutput(out.losses.clone(), {name: t.clone() for name, t in out.metrics.items()})

        return run


@contextlib.contextmanager
def steps_by(maker: GraphedSteps | None) -> Iterator[None]:
    """Inside the block, ``maker`` makes compiled steps, also without a C++ compiler; None: evenload's own."""
    from evenload.clients.fused import engine
    from evenload.clients.tune import engine_checks

    if maker is None:
        yield
        return
    before = engine.compile_step, engine_checks.why_not_compiled
    engine.compile_step, engine_checks.why_not_compiled = maker, maker.why_not
    try:
        yield
    finally:
        engine.compile_step, engine_checks.why_not_compiled = before
