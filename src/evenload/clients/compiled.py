"""A fused step as one compiled graph.

The step is traced to plain tensor operations first, with vmap and gradients applied, and that flat graph
is compiled. So the compiler never sees the user's code: what vmap can do, it can compile. Every shape gets a
graph of its own, compiled once; nothing is left to recompile, and nothing to fall back to eager silently.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from .fuse import Lane, StepFn, StepOutput, Tensors

__all__ = ["compile_step"]


def compile_step(
    traced: StepFn, lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors
) -> StepFn:
    """``traced`` compiled for arguments of these very shapes; raises whatever tracing raises."""
    example, layout = tree_flatten((_tables(lane), draw, x, y, w, dict(s)))
    names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        tables, *rest = tree_unflatten(list(tensors), layout)
        out = traced(Lane(*tables), *rest)
        names[:] = out.metrics
        return [out.losses, *out.metrics.values()]

    # The trace runs once on copies: in-place operations are recorded, and change nothing of the clients.
    copies = tree_map_only(Tensor, torch.clone, example)
    graph = make_fx(flat)(*copies)
    run = _compile(graph)

    def step(lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors) -> StepOutput:
        losses, *metrics = run(*tree_flatten((_tables(lane), draw, x, y, w, dict(s)))[0])
        return StepOutput(losses, dict(zip(names, metrics, strict=True)))

    return step


def _compile(graph: torch.fx.GraphModule) -> Callable[..., Any]:
    return torch.compile(graph, fullgraph=True, dynamic=False)


def _tables(lane: Lane) -> tuple:
    return (lane.params, lane.state, lane.buffers, lane.frozen, lane.anchor, lane.correction, lane.alive)
