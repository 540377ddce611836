"""A fused step as one compiled graph.

The step is traced to plain tensor operations first, with vmap and gradients applied, and that flat graph
is compiled. So the compiler never sees the user's code: what vmap can do, it can compile. Every shape gets a
graph of its own, compiled once; nothing is left to recompile, and nothing to fall back to eager silently.
"""

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from evenload.clients.fused.speedups import CompilerOptions, Speedups, find_speedups
from evenload.clients.step.fuse import StackedClients, StepFn, StepOutput, Tensors
from evenload.clients.values.data import Batch, leaves_of

__all__ = ["compile_step"]

# The compiler of torch 2.13 fails on some graphs when it fuses loops widely (a KeyError of its own about a
# buffer); narrower fusion compiles them.
COMPILER_OPTIONS: tuple[CompilerOptions, ...] = (None, {"max_fusion_size": 4})


# Tracing changes nn.Module itself while it lasts: two threads that trace at a time break torch for both.
_ONE_AT_A_TIME = threading.Lock()


def compile_step(
    traced: StepFn, clients: StackedClients, draw: Tensor, x: Batch, y: Tensor, w: Tensor, s: Tensors
) -> StepFn:
    """Compile ``traced`` for arguments of these shapes. Raises whatever tracing or compiling raises."""
    layout = tree_flatten((clients.tables(), draw, x, y, w, dict(s)))[1]
    names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        tables, *rest = tree_unflatten(list(tensors), layout)
        out = traced(StackedClients(*tables), *rest)
        names[:] = out.metrics
        return [out.losses, *out.metrics.values()]

    def arguments(
        clients: StackedClients, draw: Tensor, x: Batch, y: Tensor, w: Tensor, s: Tensors
    ) -> list[Tensor]:
        return [*clients.flat(), draw, *leaves_of(x), y, w, *s.values()]

    # The trace runs once, on copies: its in-place operations must not change the clients.
    example = [t.clone() for t in arguments(clients, draw, x, y, w, s)]
    speedups = find_speedups()
    with _ONE_AT_A_TIME, speedups.inside():
        graph, finish = speedups.rewrite(make_fx(flat)(*example), example)
        run = _compile(graph, example, speedups)
    n_own = 1 + len(names)

    def step(clients: StackedClients, draw: Tensor, x: Batch, y: Tensor, w: Tensor, s: Tensors) -> StepOutput:
        given = arguments(clients, draw, x, y, w, s)
        out = run(*given)
        if finish is not None:
            finish(given, out[n_own:])
        return StepOutput(out[0], dict(zip(names, out[1:n_own], strict=True)) if names else {})

    return step


def _compile(graph: GraphModule, example: list[Tensor], speedups: Speedups) -> Callable[..., Any]:
    """Compile ``graph`` with the first of COMPILER_OPTIONS that works; it runs without gradients."""
    for options in COMPILER_OPTIONS:
        try:
            with torch.no_grad():
                run = speedups.compile(copy.deepcopy(graph), example, options)
            break
        except Exception:
            if options is COMPILER_OPTIONS[-1]:
                raise
    else:
        raise AssertionError("no options to compile with")

    def without_gradients(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return run(*tensors)

    return without_gradients
