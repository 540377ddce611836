"""Slots of expert ids by weights, in torch operations alone: nothing waits, no shape depends on values.

All arithmetic is on whole numbers, so that ranks with equal ids choose alike, on whatever device they are.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ONE = 1 << 16  # a whole token, a whole share
RELIEF_ONE = 1 << 14  # a token moved for a token too many
MOST_TOKENS = 1 << 22  # of an expert; counts are divided down to it, so that products stay in 64 bits
GOLDEN = 40503  # 2**16 over the golden ratio


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer: tensors that are changed in place when they are refreshed.

    expert   [slots] the expert in each; ``n_experts`` where a slot is empty or a second copy on its GPU
    order    [slots] by expert, those of no expert last
    first    [experts + 1] each expert's first place in ``order``
    share    [slots] of its expert's tokens, in 1/65536; an expert's shares sum to that
    relief   [slots, GPUs] tokens to give to a slot for a token that a GPU has too many, in 1/16384
    n_gpus   slots lie on them in order, as many on each
    """

    expert: Any
    order: Any
    first: Any
    share: Any
    relief: Any
    n_gpus: int


def choose_slots(
    ids: "torch.Tensor",
    weights: LayerWeights,
    *,
    counts: "torch.Tensor | None",
    mask: "torch.Tensor | None",
    rank: int | None,
    n_ranks: int,
    sweeps: int,
) -> "torch.Tensor":
    """The slot of each of ``ids``, in their shape and dtype; other ids than experts become -1.

    counts  [experts] of all ranks' ids, to correct the shares for; None: of these ids
    mask    which ids count; the others are spread over copies in turn
    rank    of ``n_ranks`` whose ids are others; None: thresholds of rounding come from the ids themselves
    sweeps  corrections of the shares for this batch; 0: the shares as they are
    """
    import torch

    n_experts = weights.first.shape[0] - 1
    flat = ids.reshape(-1).long()
    is_expert = (flat >= 0) & (flat < n_experts)
    counted = is_expert if mask is None else is_expert & mask.reshape(-1)
    key = torch.where(counted, flat, n_experts)
    in_order, order = torch.sort(key, stable=True)
    experts = torch.arange(n_experts + 1, device=flat.device)
    start = torch.searchsorted(in_order, experts)
    own = start.diff()
    tokens = _tokens(own if counts is None else counts.long(), weights, sweeps)
    threshold = _thresholds(order, start[:-1], rank, n_ranks)
    cuts = _cuts(tokens, own, start, threshold, weights)
    place = torch.arange(len(flat), device=flat.device)
    at = torch.searchsorted(cuts, place, right=True).clamp(max=len(cuts) - 1)
    slot = torch.empty_like(flat).scatter_(0, order, weights.order[at])
    if mask is not None:
        slot = torch.where(counted, slot, _in_turn(flat, is_expert, place, weights))
    return torch.where(is_expert, slot, -1).to(ids.dtype).reshape(ids.shape)


def _tokens(counts: Any, weights: LayerWeights, sweeps: int) -> Any:
    """[slots] of ``counts`` [experts], in 1/65536 of a token: by shares, evened out ``sweeps`` times.

    A sweep moves what GPUs have over the mean along their copies, as a current would flow, which is one
    product with ``relief``; what would be taken from an empty slot is left over for the next sweep. An expert
    that has none by ``counts``, or none left, is divided by its shares.
    """
    import torch

    held = torch.cat([counts, counts.new_zeros(1)]).clamp(min=0)
    held = held // (held.max() // MOST_TOKENS + 1)
    tokens = held[weights.expert] * weights.share
    for _ in range(sweeps):
        load = tokens.reshape(weights.n_gpus, -1).sum(1)
        excess = (load - load.sum() // weights.n_gpus) // 256  # so that the product stays in 64 bits
        tokens = (tokens - (weights.relief * excess).sum(1) // (RELIEF_ONE // 256)).clamp(min=0)
        total = torch.zeros_like(held).scatter_add_(0, weights.expert, tokens)
        scale = held * (ONE << 12) // total.clamp(min=1)
        tokens = (tokens * scale[weights.expert]) >> 12
    total = torch.zeros_like(held).scatter_add_(0, weights.expert, tokens)
    return torch.where(total[weights.expert] > 0, tokens, weights.share)


def _thresholds(order: Any, start: Any, rank: int | None, n_ranks: int) -> Any:
    """[experts] what parts of a token are rounded up from, in 1/65536; differs between experts and ranks.

    Of known ranks: the midpoints of ``n_ranks`` equal parts, in an order that turns with the expert, so that
    ranks round up and down by turns. Otherwise from the place of the expert's first id: equal ids give equal
    thresholds.
    """
    import torch

    expert = torch.arange(len(start), device=start.device)
    if rank is not None:
        turn = (rank + expert * GOLDEN) % n_ranks
        return (2 * turn + 1) * ONE // (2 * n_ranks)
    place = order.new_zeros(len(start)) if not len(order) else order[start.clamp(max=len(order) - 1)]
    return ((place + 1) * GOLDEN + expert * 26545) % ONE


def _cuts(tokens: Any, own: Any, start: Any, threshold: Any, weights: LayerWeights) -> Any:
    """[slots] in ``order``: where in the sorted ids each slot's end, by its part of ``tokens``."""
    import torch

    expert = weights.expert[weights.order]
    own, start, threshold = (
        torch.cat([one, one.new_zeros(1)])[expert] for one in (own, start[:-1], threshold)
    )
    below = tokens[weights.order].cumsum(0)
    base = torch.cat([below.new_zeros(1), below])[weights.first]
    total = torch.cat([base.diff(), base.new_zeros(1)])[expert]
    below = below - base[expert]
    cut = start + (below * own + (threshold * total >> 16)) // total.clamp(min=1)
    # Slots of an expert without tokens, and those of none, end where their neighbours do.
    return torch.where(own > 0, cut, 0).cummax(0).values


def _in_turn(flat: Any, is_expert: Any, place: Any, weights: LayerWeights) -> Any:
    expert = flat.where(is_expert, flat.new_zeros(()))
    first = weights.first[expert]
    n_copies = (weights.first[expert + 1] - first).clamp(min=1)
    return weights.order[(first + place % n_copies).clamp(max=len(weights.order) - 1)]
