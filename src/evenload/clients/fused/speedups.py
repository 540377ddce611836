"""The seam to ``inductor``, the room that knows the insides of torch's compiler.

Without that room, or where this torch's compiler has other insides than it knows, a step is compiled as it
was traced: the results are the same, and it takes longer.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

CompilerOptions = dict[str, Any] | None
Finish = Callable[[list[Tensor], list[Tensor]], None]


StepReplay = Any  # ``inductor.replay.KernelReplay``, which needs that room


@dataclass(frozen=True, slots=True)
class Speedups:
    """The ways in which compiling a step can be made faster, each of which may do nothing.

    rewrite  (graph, example arguments) -> a faster graph, and what remains to be done after each of its runs
             with its arguments and its outputs beyond those of the given graph; None if nothing remains
    compile  (graph, example arguments, compiler options) -> a function of these arguments
    inside   a context manager for compiling in
    replay   (compiled function, what remains to be done, example arguments, number of outputs that the step
             wants) -> a way to take many steps in one call; None if there is none
    """

    rewrite: Callable[[GraphModule, list[Tensor]], tuple[GraphModule, Finish | None]]
    compile: Callable[[GraphModule, list[Tensor], CompilerOptions], Any]
    inside: Callable[[], AbstractContextManager[Any]]
    replay: Callable[[Any, Finish | None, list[Tensor], int], StepReplay | None]


def _compile_plainly(
    graph: GraphModule, example: list[Tensor], options: CompilerOptions
) -> Callable[..., Any]:
    import torch._inductor

    return torch._inductor.compile(graph, [*example], options=options)  # pyrefly: ignore


PLAIN = Speedups(lambda graph, example: (graph, None), _compile_plainly, nullcontext, lambda *_: None)


def find_speedups() -> Speedups:
    """Speed-ups of the room ``inductor`` if it can be imported; else ``PLAIN``."""
    try:
        from evenload.clients.fused.inductor.compiling import compile_directly, unlocked_kernels
        from evenload.clients.fused.inductor.replay import replayed_steps
        from evenload.clients.fused.inductor.rewrite import rewrite
    except ImportError:
        return PLAIN
    return Speedups(rewrite, compile_directly, unlocked_kernels, replayed_steps)
