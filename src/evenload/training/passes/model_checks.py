"""What in a model stands against exact gradients or honest times: found in the graph of its first loss.

Plain BatchNorm takes statistics of a rank's own samples: with other shares its results are others. On a GPU,
FSDP2 waits for other ranks in streams of its own: ``watch`` leaves that out of the times.
"""

from collections.abc import Callable, Iterator
from typing import Any

from evenload.errors import ConfigError

BATCH_NORMS = ("NativeBatchNormBackward", "CudnnBatchNormBackward", "MiopenBatchNormBackward")
SYNC_NORM, FSDP2 = "SyncBatchNormBackward", "RegisterPostBackwardFunctionBackward"
WHY_NOT = "takes statistics of each rank's own samples, so its results would change with the shares"
NOT_PIECES = "takes statistics of one micro-batch of each rank, and ranks have different numbers of them"
NOT_FULL = "the last batch has fewer samples than there are ranks: SyncBatchNorm would be off"
INSTEAD = "use torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), or GroupNorm or LayerNorm"


def check_graph(
    loss: Any, *, n_samples: int, is_watched: bool, is_accumulated: bool, is_last_full: bool
) -> bool:
    """Return whether the graph of a loss could be judged: not if there is one sample only.

    is_last_full  whether each rank has a sample of an epoch's last batch

    Raises ConfigError for BatchNorm without sync, for SyncBatchNorm if gradients are accumulated or the last
    batch is not full, and for FSDP2 that is not watched.
    """
    is_sure = True
    for node in _nodes(loss.grad_fn):
        name = type(node).__name__.rstrip("0123456789")
        if name in BATCH_NORMS and getattr(node, "_saved_training", True):
            # InstanceNorm is a BatchNorm of one sample with many channels, and mixes no samples.
            if _rows(node) > 1:
                raise ConfigError(f"BatchNorm {WHY_NOT}", hint=INSTEAD)
            is_sure = is_sure and n_samples > 1
        if name == SYNC_NORM and is_accumulated:
            raise ConfigError(
                f"SyncBatchNorm {NOT_PIECES}", hint="use GroupNorm or LayerNorm, or no micro_batch"
            )
        if name == SYNC_NORM and not is_last_full:
            raise ConfigError(NOT_FULL, hint="use drop_last=True")
        if name == FSDP2 and not is_watched:
            raise ConfigError(
                "the model has FSDP2, in which ranks wait for each other while they compute",
                hint="call even.watch(model) once, before the first step",
            )
    return is_sure


def _nodes(root: Any) -> Iterator[Any]:
    seen, left = set(), [root]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left.extend(one for one, _ in node.next_functions)


def _rows(node: Any) -> int:
    saved = getattr(node, "_saved_input", None)
    return 2 if saved is None else len(saved)


def watch(model: Any, pause: Callable[[], Any], resume: Callable[[], None], *, is_last_full: bool) -> None:
    """Have ``pause`` and ``resume`` called around each wait of FSDP2 inside ``model``.

    Raises ConfigError for BatchNorm without sync, and for SyncBatchNorm if the last batch is not full.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            if not is_last_full:
                raise ConfigError(NOT_FULL, hint="use drop_last=True")
        elif isinstance(module, _BatchNorm):
            if module.training:
                raise ConfigError(f"{name or 'the model'}: BatchNorm {WHY_NOT}", hint=INSTEAD)
        elif hasattr(module, "set_requires_gradient_sync"):  # of fully_shard
            _around_gathers(module, pause, resume)


def _around_gathers(module: Any, pause: Callable[[], Any], resume: Callable[[], None]) -> None:
    """Leave out the exchanges of FSDP2 before and after a module computes, forward and backward.

    Hooks are called in the order in which they were registered, and FSDP2's are there already: those that
    are put before them stop the clock, those after them have it go on; in the backward pass of its inputs
    it is the other way round.
    """

    def hook_all(values: Any, call: Callable[[], Any]) -> None:
        from torch.utils._pytree import tree_leaves

        def hook(_: Any) -> None:
            call()

        for one in tree_leaves(values):
            if getattr(one, "requires_grad", False):
                one.register_hook(hook)

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        hook_all((args, kwargs), resume)
        pause()

    def entered(_: Any, args: Any, kwargs: Any) -> None:
        hook_all((args, kwargs), pause)
        resume()

    module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
    module.register_forward_pre_hook(entered, with_kwargs=True)
    module.register_forward_hook(lambda _, __, output: hook_all(output, pause), prepend=True)
    module.register_forward_hook(lambda _, __, output: hook_all(output, resume))
