"""``MicroBatch``: what a rank trains in one go; how its share is cut, and gradients added up."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a rank's share of one step; the whole share if gradients are not accumulated.

    step          of the epoch, from 0
    n_samples     that count; 0: one sample is there, for the exchanges, and counts nothing
    n_step        samples of the rank in this step
    global_batch  samples of all ranks in this step
    is_last       of this rank's in this step: the one at which gradients are exchanged
    place         of its first sample in the global batch
    """

    step: int
    n_samples: int
    n_step: int
    global_batch: int
    is_last: bool
    place: int = 0


def micro_batches(
    step: int, counts: Sequence[int], rank: int, most: int | None
) -> Iterator[tuple[MicroBatch, range]]:
    """Yield a rank's micro-batches of a step, each with where its samples are in the global batch.

    counts  [ranks] samples of each; ``most``: in a micro-batch, None for all of a share
    """
    n, start, batch = counts[rank], sum(counts[:rank]), sum(counts)
    if not n:
        yield MicroBatch(step, 0, 0, batch, True), range(1)
        return
    size = n if most is None else min(most, n)
    for first in range(0, n, size):
        n_here = min(size, n - first)
        at = start + first
        yield MicroBatch(step, n_here, n, batch, first + n_here == n, at), range(at, at + n_here)


def as_exact(weight: Any, loss: Any) -> Any:
    """Return a weight as exact as its loss: torch makes whole numbers in a tensor times a float float32."""
    import torch

    if not isinstance(weight, torch.Tensor):
        return weight
    return weight.to(torch.promote_types(loss.dtype, torch.float32))


def steps(
    loader: Iterable[Any], current: Callable[[], MicroBatch | None], synchronise: Callable[[bool], None]
) -> Iterator[Iterator[Any]]:
    """Yield for each step an iterator of its micro-batches, of which ranks have different numbers.

    Ranks exchange gradients once a step, with the last micro-batch of each. FSDP2 keeps its parameters
    gathered until then: gathers are exchanges, too, and each rank has to take part in as many.

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
