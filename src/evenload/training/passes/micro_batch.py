"""``MicroBatch``: what a rank trains in one go, and ``micro_batches``, which cuts its share into them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MicroBatch", "exact", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a rank's share of one step; the whole share if gradients are not accumulated.

    step          of the epoch, from 0
    n_samples     that count; 0: one sample is there, for the exchanges, and counts nothing
    n_step        samples of the rank in this step
    global_batch  samples of all ranks in this step
    is_last       of this rank's in this step: the one at which gradients are exchanged
    """

    step: int
    n_samples: int
    n_step: int
    global_batch: int
    is_last: bool


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
        yield MicroBatch(step, n_here, n, batch, first + n_here == n), range(at, at + n_here)


def exact(weight: Any, loss: Any) -> Any:
    """Return a weight as exact as its loss: torch makes whole numbers in a tensor times a float float32."""
    import torch

    if not isinstance(weight, torch.Tensor):
        return weight
    return weight.to(torch.promote_types(loss.dtype, torch.float32))
