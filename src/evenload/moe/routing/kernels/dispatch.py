"""Dispatch on a device: count ids, share out each expert's, map ids to slots in the batch's order."""

import triton
import triton.language as tl


@triton.jit
def count_kernel(ids, n, E, counts, wrong, BLOCK: tl.constexpr):
    """counts [programs, E] int32, zeroed before: each id's number in a program's block. wrong[0]: bad ids."""
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + i, mask=i < n, other=-1).to(tl.int32)
    fits = (expert >= 0) & (expert < E)
    tl.atomic_add(counts + block.to(tl.int64) * E + expert, 1, mask=fits)
    n_wrong = tl.sum(((expert < -1) | (expert >= E)).to(tl.int32), axis=0)
    if n_wrong > 0:
        tl.atomic_add(wrong, n_wrong)


@triton.jit
def share_kernel(
    quotas, counts, log2slot, slot2gpu, rank2gpu, gpu2node, ends, rank, N, E, C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """What ``share_exactly`` of ``moe.routing.dispatch`` does, one program for each expert.

    quotas [slots], counts [N, E], log2slot [E, C] padded with -1, slot2gpu [slots], rank2gpu [N], gpu2node
    [gpus]: int32. ends [E, C] int32, written: running sums of this rank's shares along the expert's slots.
    """
    expert = tl.program_id(0)
    other = tl.arange(0, BLOCK_N)
    place = tl.arange(0, C)
    supply = tl.load(counts + other.to(tl.int64) * E + expert, mask=other < N, other=0)
    home = tl.load(rank2gpu + other, mask=other < N, other=-1)
    home_node = tl.load(gpu2node + home, mask=home >= 0, other=-1)
    slot = tl.load(log2slot + expert * C + place)
    room = tl.load(quotas + slot, mask=slot >= 0, other=0)
    gpu = tl.load(slot2gpu + slot, mask=slot >= 0, other=-1)
    node = tl.load(gpu2node + gpu, mask=slot >= 0, other=-1)
    share = tl.zeros([C], tl.int32)
    for stage in tl.static_range(3):
        for j in range(0, C):
            here = place == j
            its_room = tl.sum(tl.where(here, room, 0), axis=0)
            its_gpu = tl.sum(tl.where(here, gpu, 0), axis=0)
            its_node = tl.sum(tl.where(here, node, 0), axis=0)
            if stage == 0:
                may = (home == its_gpu) & (home >= 0)
            elif stage == 1:
                may = (home_node == its_node) & (home_node >= 0)
            else:
                may = other < N
            offer = tl.where(may, supply, 0)
            before = tl.cumsum(offer, axis=0) - offer
            step = tl.minimum(offer, tl.maximum(its_room - before, 0))
            supply -= step
            room -= tl.where(here, tl.sum(step, axis=0), 0)
            share += tl.where(here, tl.sum(tl.where(other == rank, step, 0), axis=0), 0)
    tl.store(ends + expert * C + place, tl.cumsum(share, axis=0))


@triton.jit
def map_kernel(ids, n, E, before, ends, log2slot, out, C: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = the slot of ids[i]; -1 for what is no expert.

    before [programs, E] int32: how often each id occurs in earlier blocks; ends and log2slot [E, C] as above.
    """
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + i, mask=i < n, other=-1).to(tl.int32)
    fits = (expert >= 0) & (expert < E)
    spot = tl.arange(0, BLOCK)
    same = (expert[:, None] == expert[None, :]) & (spot[None, :] < spot[:, None])
    ordinal = tl.sum(same.to(tl.int32), axis=1)
    ordinal += tl.load(before + block.to(tl.int64) * E + expert, mask=fits, other=0)
    place = tl.zeros([BLOCK], tl.int32)
    for j in range(0, C - 1):
        end = tl.load(ends + expert * C + j, mask=fits, other=0)
        place = tl.where(ordinal >= end, j + 1, place)
    slot = tl.load(log2slot + expert * C + place, mask=fits, other=-1)
    tl.store(out + i, slot.to(out.dtype.element_ty), mask=i < n)
