"""A fused step as one compiled graph.

The step is traced to plain tensor operations first, with vmap and gradients applied, and that flat graph
is compiled. So the compiler never sees the user's code: what vmap can do, it can compile. Every shape gets a
graph of its own, compiled once; nothing is left to recompile, and nothing to fall back to eager silently.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from evenload.clients.fused.speedups import CompilerOptions, Finish, Speedups, StepReplay, find_speedups
from evenload.clients.step.fuse import StackedClients, StepArguments, StepFn, StepInputs, StepOutput
from evenload.clients.values.data import leaves_of

# The compiler of torch 2.13 fails on some graphs when it fuses loops widely (a KeyError of its own about a
# buffer); narrower fusion compiles them.
COMPILER_OPTIONS: tuple[CompilerOptions, ...] = (None, {"max_fusion_size": 4})


# Tracing changes nn.Module itself while it lasts: two threads that trace at a time break torch for both.
_ONE_AT_A_TIME = threading.Lock()


def compile_step(traced: StepFn, clients: StackedClients, given: StepArguments) -> StepFn:
    """Compile ``traced`` for arguments of these shapes. Raises whatever tracing or compiling raises."""
    layout = tree_flatten((clients.tables(), given.batch, dict(given.s)))[1]
    names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        tables, (draw, x, y, w), s = tree_unflatten(list(tensors), layout)
        out = traced(StackedClients(*tables), StepArguments(draw, x, y, w, s))
        names[:] = out.metrics
        return [out.losses, *out.metrics.values()]

    # The trace runs once, on copies: its in-place operations must not change the clients.
    example = [t.clone() for t in _arguments(clients, given)]
    speedups = find_speedups()
    with _ONE_AT_A_TIME, speedups.inside():
        graph, finish = speedups.rewrite(make_fx(flat)(*example), example)
        run = _compile(graph, example, speedups)
    return CompiledStep(run, finish, names, speedups.replay(run, finish, example, 1 + len(names)))


class CompiledStep:
    """A compiled step for arguments of one kind.

    run     the compiled function; ``finish``: what follows each of its runs, or None
    names   of the metrics that it returns after the losses
    replay  many steps in one call, if there is a way
    """

    def __init__(
        self, run: Callable[..., Any], finish: Finish | None, names: Sequence[str], replay: StepReplay | None
    ):
        self._run, self._finish, self._names, self._replay = run, finish, names, replay

    def __call__(self, clients: StackedClients, given: StepArguments) -> StepOutput:
        arguments = _arguments(clients, given)
        with torch.no_grad():
            out = self._run(*arguments)
        if self._finish is not None:
            self._finish(arguments, out[1 + len(self._names) :])
        return self._output(out)

    def steps(self, clients: StackedClients, inputs: StepInputs) -> StepOutput | None:
        """Several steps in one call, as ``run_steps`` takes them; None if there is no way to do it."""
        if self._replay is None or not self._replay.fits(_arguments(clients, inputs.first())):
            return None
        draws, x, y, w, scalars = inputs
        rows = [[line[name] for line in scalars] for name in scalars[0]]
        stacked = [draws, *leaves_of(x), y, w, *rows]
        return self._output(self._replay.replay_steps(clients.flat(), stacked, len(scalars)))

    def _output(self, out: Sequence[Tensor]) -> StepOutput:
        return StepOutput(out[0], dict(zip(self._names, out[1:], strict=False)) if self._names else {})


def run_steps(step: StepFn, clients: StackedClients, inputs: StepInputs) -> StepOutput:
    """Take ``step`` for each row of the inputs, in one call if there is a way.

    Returns losses and metrics [steps, K].
    """
    if isinstance(step, CompiledStep) and (out := step.steps(clients, inputs)) is not None:
        return out
    outs = [step(clients, given) for given in inputs.each()]
    losses = torch.stack([out.losses for out in outs])
    return StepOutput(losses, {n: torch.stack([o.metrics[n] for o in outs]) for n in outs[0].metrics})


def _arguments(clients: StackedClients, given: StepArguments) -> list[Tensor]:
    return [*clients.flat(), given.draw, *leaves_of(given.x), given.y, given.w, *given.s.values()]


def _compile(graph: GraphModule, example: list[Tensor], speedups: Speedups) -> Callable[..., Any]:
    """Compile ``graph`` with the first of COMPILER_OPTIONS that works."""
    for options in COMPILER_OPTIONS:
        try:
            with torch.no_grad():
                return speedups.compile(copy.deepcopy(graph), example, options)
        except Exception:
            if options is COMPILER_OPTIONS[-1]:
                raise
    raise AssertionError("no options to compile with")
