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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._pytree import tree_flatten, tree_unflatten

from .fuse import Lane, StepFn, StepOutput, Tensors

__all__ = ["compile_step"]

NARROW = 16  # columns: fewer do not fill a vector

# The compiler of torch 2.13 fails on some graphs when it fuses loops widely (a KeyError of its own about a
# buffer); narrower fusion compiles them.
COMPILER_OPTIONS: tuple[dict[str, Any] | None, ...] = (None, {"max_fusion_size": 4})


# Tracing changes nn.Module itself while it lasts: two threads that trace at a time break torch for both.
_ONE_AT_A_TIME = threading.Lock()


def compile_step(
    traced: StepFn, lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors
) -> StepFn:
    """``traced`` compiled for arguments of these very shapes; raises whatever tracing or compiling raises."""
    layout = tree_flatten((lane.tables(), draw, x, y, w, dict(s)))[1]
    names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        tables, *rest = tree_unflatten(list(tensors), layout)
        out = traced(Lane(*tables), *rest)
        names[:] = out.metrics
        return [out.losses, *out.metrics.values()]

    def arguments(lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors) -> list[Tensor]:
        return [*lane.flat(), draw, x, y, w, *s.values()]

    # The trace runs once on copies: in-place operations are recorded, and change nothing of the clients.
    example = [t.clone() for t in arguments(lane, draw, x, y, w, s)]
    with _ONE_AT_A_TIME:
        run = _compile(_turn_narrow_products(make_fx(flat)(*example), example), example)

    def step(lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors) -> StepOutput:
        losses, *metrics = run(*arguments(lane, draw, x, y, w, s))
        return StepOutput(losses, dict(zip(names, metrics, strict=True)))

    return step


def _turn_narrow_products(graph: torch.fx.GraphModule, example: list[Tensor]) -> torch.fx.GraphModule:
    """``a @ b`` with few columns becomes ``(bT @ aT)T``: the batched product then takes a third of the time.

    And the losses that follow are computed for sixteen rows at a time, not for the ten classes of one row. A
    graph that views such a product in a way that this order of its numbers does not allow gets it in order.
    """
    turned_products = []
    bmm, turn = torch.ops.aten.bmm.default, torch.ops.aten.transpose.int
    for node in graph.graph.find_nodes(op="call_function", target=bmm):
        rows, columns = node.meta["tensor_meta"].shape[-2:]
        if not columns < NARROW <= rows:
            continue
        with graph.graph.inserting_before(node):
            a, b = (graph.graph.call_function(turn, (t, 1, 2)) for t in node.args)
            product = graph.graph.call_function(bmm, (b, a))
            turned = graph.graph.call_function(turn, (product, 1, 2))
        node.replace_all_uses_with(turned)
        graph.graph.erase_node(node)
        turned_products.append(turned)
    if turned_products and not _is_possible(graph, example):
        for turned in turned_products:
            with graph.graph.inserting_after(turned):
                copied = graph.graph.call_function(torch.ops.aten.clone.default, (turned,))
            turned.replace_all_uses_with(copied)
            copied.args, copied.kwargs = (turned,), {"memory_format": torch.contiguous_format}
    graph.recompile()
    return graph


def _is_possible(graph: torch.fx.GraphModule, example: list[Tensor]) -> bool:
    """Can every operation take what the others give it? Seen by shapes and strides, without computing."""
    try:
        FakeTensorProp(copy.deepcopy(graph), FakeTensorMode(allow_non_fake_inputs=True)).propagate(*example)
    except Exception:
        return False
    return True


def _compile(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
    compiled = None
    for options in COMPILER_OPTIONS:
        try:
            with torch.no_grad():
                compiled: Any = torch._inductor.compile(copy.deepcopy(graph), [*example], options=options)
            break
        except Exception:
            if options is COMPILER_OPTIONS[-1]:
                raise

    def run(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return compiled(*tensors)

    return run
