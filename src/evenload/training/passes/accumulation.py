"""``steps``: gradients accumulated over micro-batches, of which ranks have different numbers.

Ranks exchange gradients once a step, with the last micro-batch of each. FSDP2 keeps its parameters gathered
until then: gathers are exchanges, too, and each rank has to take part in as many.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from evenload.errors import ConfigError
from evenload.training.passes.micro_batch import MicroBatch

__all__ = ["steps", "synchroniser"]


def steps(
    loader: Iterable[Any], current: Callable[[], MicroBatch | None], synchronise: Callable[[bool], None]
) -> Iterator[Iterator[Any]]:
    """Yield for each step an iterator of its micro-batches.

    current      the micro-batch that is to be trained next, None if there is none
    synchronise  is called before each one, with whether gradients are exchanged after it
    """
    batches = iter(loader)
    for first in batches:
        step = _step(first, batches, current, synchronise)
        yield step
        for _ in step:
            raise ConfigError("a step was left before its last micro-batch", hint="train all of them")


def _step(
    batch: Any,
    batches: Iterator[Any],
    current: Callable[[], MicroBatch | None],
    synchronise: Callable[[bool], None],
) -> Iterator[Any]:
    while True:
        one = current()
        if one is None:
            raise ConfigError("the loader has batches of another sampler", hint="give the loader of this one")
        synchronise(one.is_last)
        yield batch
        if current() is one:
            raise ConfigError("a micro-batch was not trained", hint="call backward once for each")
        if one.is_last:
            return
        batch = next(batches)


def synchroniser(model: Any, n_ranks: int) -> Callable[[bool], None]:
    """Return what tells DDP or FSDP2 in ``model`` whether to exchange gradients. Raises ConfigError."""
    if n_ranks == 1:
        return lambda _: None
    from torch.nn.parallel import DistributedDataParallel

    modules = list(model.modules()) if hasattr(model, "modules") else []
    wrapped = [one for one in modules if isinstance(one, DistributedDataParallel)]
    sharded = [one for one in modules if hasattr(one, "set_requires_gradient_sync")]
    if not wrapped and not sharded:
        raise ConfigError(
            f"{type(model).__name__} is neither DistributedDataParallel nor sharded by fully_shard",
            hint="give the model whose gradients are exchanged",
        )
    if any(one.static_graph for one in wrapped):
        raise ConfigError(
            "DDP with static_graph=True exchanges gradients after every micro-batch",
            hint="leave static_graph out, or micro_batch",
        )
    for one in sharded:
        one.set_reshard_after_forward(False, recurse=False)

    def tell(is_last: bool) -> None:
        for one in wrapped:
            one.require_backward_grad_sync = is_last
        for one in sharded:
            one.set_requires_gradient_sync(is_last, recurse=False)
            one.set_reshard_after_backward(is_last, recurse=False)

    return tell
