"""``ExactSums``: sums of tensors, the same bits in whatever order terms are added, and on any ranks.

    term (float32, bfloat16, float64) = high + low + rest     high a multiple of 2^-24, low of 2^-64
    sum of highs, sum of lows: in float64 without rounding, so that any order gives the same

A term is rounded to a fixed grid of 2^-64 on its own, before it meets any other: an error of at most 2^-65
for each. What is added then are whole numbers of grid steps, and additions of these are exact. Rounding and
bins are those of Demmel and Nguyen, "Parallel reproducible summation" (2015), with bins at fixed places: no
maximum of all terms has to be known beforehand.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenload.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

MOST_TERMS = 2**13  # lows of up to 2^-25 in steps of 2^-64 then stay below 2^52 steps
HIGH, LOW = 1.5 * 2.0 ** (52 - 24), 1.5 * 2.0 ** (52 - 64)  # adding and taking them away rounds to the grid
LARGEST = 2.0**27  # of all terms together: what is far below 2^53 steps of 2^-24
BLOCK = 2**15  # numbers at a time, which stay in a core's cache
BLOCK_GPU = 2**24


class ExactSums:
    """Sums of up to ``n_terms`` terms, each a list of tensors; the same bits in any order.

    like    tensors of the shapes, types and device of a term's
    buffer  all that was added, as float64: the sum of the buffers of several is the buffer of all their terms

    Raises ConfigError for more than 8192 terms, and for what is not of floating point.
    """

    def __init__(self, like: Sequence["Tensor"], n_terms: int):
        import torch

        if n_terms > MOST_TERMS:
            raise ConfigError(
                f"{n_terms} terms are more than the {MOST_TERMS} of an exact sum", hint="give larger terms"
            )
        wrong = [str(one.dtype) for one in like if not one.dtype.is_floating_point]
        if wrong or not like:
            raise ConfigError(f"no exact sum of {wrong[0] if wrong else 'nothing'}", hint="give floats")
        self._like = [(one.shape, one.dtype, one.numel()) for one in like]
        self._limit = LARGEST / max(1, n_terms)
        device = like[0].device
        n_all, n_tensors = sum(n for *_, n in self._like), len(like)
        self.buffer = torch.zeros(2 * n_all + 2 * n_tensors, dtype=torch.float64, device=device)
        self._high, self._low, self._seen, self._bad = self.buffer.split([n_all, n_all, n_tensors, n_tensors])
        size = min(n_all, BLOCK if device.type == "cpu" else BLOCK_GPU)
        self._scratch = torch.empty(2, size, dtype=torch.float64, device=device)
        self._blocks = _blocks([n for *_, n in self._like], size)

    def clear(self) -> None:
        """Begin again with sums of 0."""
        self.buffer.zero_()

    def add(self, term: Sequence["Tensor | None"]) -> None:
        """Add a term; a tensor of it that is None is left out."""
        import torch

        nothing = self.buffer.new_zeros(())
        flat = [
            nothing.expand(n) if one is None else one.detach().reshape(-1)
            for one, (_, _, n) in zip(term, self._like, strict=True)
        ]
        ends = [end for one in flat for end in (torch.aminmax(one) if len(one) else (nothing, nothing))]
        is_bad = ~(torch.stack(ends).double().abs() < self._limit)  # least and largest: NaN if one number is
        self._bad += is_bad.view(-1, 2).any(1)
        self._seen += self._seen.new_tensor([one is not None for one in term])
        start, size = 0, self._scratch.shape[1]
        for pieces in self._blocks:  # of several tensors: models have many that are far smaller than a block
            parts = [flat[at][first:stop] for at, first, stop in pieces]
            self._add(parts[0] if len(parts) == 1 else torch.cat(parts), start)
            start += size

    def _add(self, numbers: "Tensor", at: int) -> None:
        import torch

        n = len(numbers)
        rest, high = self._scratch[0, :n], self._scratch[1, :n]
        rest.copy_(numbers)
        torch.add(rest, HIGH, out=high).sub_(HIGH)
        self._high[at : at + n].add_(high)
        self._low[at : at + n].add_(rest.sub_(high).add_(LOW).sub_(LOW))

    def carry(self) -> None:
        """Make room for as many terms again, in total up to four times as many; the sums stay the same."""
        moved = (self._low + HIGH).sub_(HIGH)
        self._high.add_(moved)
        self._low.sub_(moved)

    def values(self) -> list["Tensor | None"]:
        """Return the sums, in the types of the terms; None for a tensor that was None in every term.

        A tensor of which one term was not finite, or so large that it might not be exact, is inf.
        """
        seen, bad = self._seen.tolist(), self._bad.tolist()
        sums = (self._high + self._low).split([n for *_, n in self._like])
        found: list[Tensor | None] = []
        for one, (shape, dtype, n), n_seen, n_bad in zip(sums, self._like, seen, bad, strict=True):
            value = one.new_full((n,), float("inf")) if n_bad else one
            found.append(value.to(dtype, copy=True).view(shape) if n_seen or not n else None)
        return found


def _blocks(lengths: Sequence[int], size: int) -> list[list[tuple[int, int, int]]]:
    """Cut tensors, laid end to end, into blocks of ``size``; a block's parts are (tensor, first, stop)."""
    blocks: list[list[tuple[int, int, int]]] = []
    free = 0
    for at, n in enumerate(lengths):
        first = 0
        while first < n:
            if not free:
                blocks.append([])
                free = size
            stop = min(n, first + free)
            blocks[-1].append((at, first, stop))
            free -= stop - first
            first = stop
    return blocks
