"""A way to take many steps of a compiled graph in one call, if it does what the graph does."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenload._terminal import log_of
from evenload.clients.fused.inductor.direct_call import DirectCall
from evenload.clients.fused.inductor.product_updates import ProductUpdates
from evenload.clients.fused.inductor.recording import record
from evenload.clients.fused.inductor.replay import KernelReplay, make_replay

STEPS = 2  # taken both ways: the second with what the first has written
CLOSE = 1e-4  # of a tensor's largest number: products are summed in another order

log = log_of(__name__)


def replayed_steps(run: Any, finish: Any, example: Sequence[Tensor], n_own: int) -> KernelReplay | None:
    """The replay of ``run``, followed by ``finish``; None if it cannot be recorded, or gives other numbers.

    run      what ``compile_directly`` gave; ``finish``: what ``rewrite`` gave
    example  arguments of a step, not changed
    n_own    outputs of the graph that the step wants
    """
    is_known = isinstance(run, DirectCall) and (finish is None or isinstance(finish, ProductUpdates))
    is_on_cpu = all(t.device.type == "cpu" for t in example)
    if not (is_known and is_on_cpu and torch.get_num_threads() == 1):
        return None
    try:
        recording = record(run.function, _copies(example))
        replay = make_replay(recording, finish, example, n_own) if recording is not None else None
    except Exception as error:  # of torch's compiler, whose insides these are
        log.warning(f"steps are taken one by one, which is slower: {type(error).__name__}: {error}")
        return None
    return replay if replay and is_same(replay, run, finish, example, n_own) else None


def is_same(
    replay: KernelReplay, run: Callable[..., Any], finish: Any, example: Sequence[Tensor], n_own: int
) -> bool:
    """Do both change copies of the arguments in the same way, and give the same outputs, but for rounding?"""
    replayed, stepped = _copies(example), _copies(example)
    outputs = replay.replay_steps(replayed, [], STEPS)
    with torch.no_grad():
        for step in range(STEPS):
            out = run(*stepped)
            if finish is not None:
                finish(stepped, out[n_own:])
            if not all(_are_close(own[step], o) for own, o in zip(outputs, out, strict=False)):
                return False
    return all(_are_close(a, b) for a, b in zip(replayed, stepped, strict=True))


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def _are_close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    largest = b.nan_to_num(0.0, 0.0, 0.0).abs().max() if b.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=CLOSE * float(largest), equal_nan=True)
