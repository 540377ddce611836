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

from evenload.clients.fused.products import turn_narrow
from evenload.clients.fused.updates import apply, take_out_updates
from evenload.clients.step.fuse import Lane, StepFn, StepOutput, Tensors

__all__ = ["compile_step"]

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
        graph = make_fx(flat)(*example)
        updates = take_out_updates(graph) if lane.alive.device.type == "cpu" else []
        run = _compile(turn_narrow(graph, example), example)
    n_own = 1 + len(names)

    def step(lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors) -> StepOutput:
        given = arguments(lane, draw, x, y, w, s)
        out = run(*given)
        if updates:
            apply(updates, given, out[n_own:])
        return StepOutput(out[0], dict(zip(names, out[1:n_own], strict=True)) if names else {})

    return step


def _compile(graph: GraphModule, example: list[Tensor]) -> Callable[..., Any]:
    for options in COMPILER_OPTIONS:
        try:
            whole, core = _compiled(copy.deepcopy(graph), example, options)
            break
        except Exception:
            if options is COMPILER_OPTIONS[-1]:
                raise
    else:
        raise AssertionError("no options to compile with")
    run = core if core is not None and _is_same(core, whole, example) else whole

    def without_gradients(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return run(*tensors)

    return without_gradients


def _compiled(
    graph: GraphModule, example: list[Tensor], options: dict[str, Any] | None
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """The compiled graph, and the function within that does its work, called without what torch wraps round
    it for graphs with gradients and aliases: a tenth of the time of a small step. None if it is not found.
    """
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # two seconds

    cores: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        cores.append(compile_fx_inner(*args, **kwargs))
        return cores[-1]

    with torch.no_grad():
        whole: Any = compile_fx(graph, [*example], noted, config_patches=options)
    if len(cores) != 1 or not callable(cores[0]):
        return whole, None
    core = getattr(cores[0], "current_callable", None) or cores[0]
    return whole, lambda *tensors: core([*tensors])


def _is_same(core: Callable[..., Any], whole: Callable[..., Any], example: list[Tensor]) -> bool:
    """Do both give the same outputs for the same arguments, to the bit, and change these in the same way?"""
    runs = []
    for function in (core, whole):
        arguments = [t.clone() for t in example]
        try:
            with torch.no_grad():
                runs.append([*function(*arguments), *arguments])
        except Exception:
            return False
    return len(runs[0]) == len(runs[1]) and all(
        a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(*runs, strict=True)
    )
