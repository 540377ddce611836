"""Pieces of the clone planner: its one block of memory, cut into arrays."""

import numpy as np
from numpy.typing import NDArray

from evenload.moe.cloning.kernels.moves import Layer, Work
from evenload.moe.cloning.kernels.pairs import BLOCK
from evenload.moe.cloning.kernels.sums import LISTS, MOST_SUMS, WORDS
from evenload.moe.cloning.load_certificate import CloneLayer
from evenload.native.kernel import inlined

# Words of int64: the layer, then the best plan so far, then work.
HEAD = 4  # cap, least, millionths, domains
FIXED = HEAD + BLOCK + WORDS + LISTS + 3 * MOST_SUMS + 8


def most_clones(n_ranks: int, n_experts: int) -> int:
    """The most clones of any plan: each ends the need of a rank, the room of one, or an expert's tokens, or
    leaves just enough for a rank's last one."""
    return 3 * n_ranks + n_experts


def block_words(n_ranks: int, n_experts: int) -> int:
    """The words that the planner's block needs for so many ranks and experts."""
    return 14 * (n_ranks + 8) + 3 * n_experts + 7 * most_clones(n_ranks, n_experts) + FIXED


def layer_words(layer: CloneLayer) -> NDArray[np.int64]:
    """What the block begins with, for ``cut_layer``."""
    head = [layer.cap, layer.least_tokens, layer.millionths, layer.n_domains]
    tables = (layer.expert_start, layer.experts, layer.spare, layer.members, layer.domain_start)
    return np.concatenate([head, *tables]).astype(np.int64)


@inlined
def cut_layer(block, n_ranks, n_experts):
    """The layer at the start of the block, the starts and members of its domains, the millionths that peaks
    may be higher, and where these end."""
    experts = HEAD + n_ranks + 1
    spare = experts + n_experts
    members = spare + n_ranks
    starts = members + n_ranks
    end = starts + block[3] + 1
    layer = Layer(
        n_ranks, block[HEAD:experts], block[experts:spare], block[spare:members], block[0], block[1]
    )
    return layer, (block[starts:end], block[members:starts]), block[2], end


@inlined
def cut_best(block, at, n_ranks, n_experts):
    """The answer: clones' experts, ranks and tokens, loads [ranks], summary [3]; and where it ends."""
    many = 3 * n_ranks + n_experts
    loads = at + 3 * many
    end = loads + n_ranks + 3
    return (
        block[at : at + many], block[at + many : at + 2 * many], block[at + 2 * many : loads],
        block[loads : loads + n_ranks], block[loads + n_ranks : end], end,
    )  # fmt: skip


@inlined
def cut_work(block, at, n_ranks, n_experts):
    """The planner's own arrays, from ``at`` on."""
    many = 3 * n_ranks + n_experts
    edges = at + 3 * n_ranks + 2 * n_experts
    lists = edges + 4 * many
    row = n_ranks + 4
    fixed = lists + 4 * row
    newest = fixed + BLOCK + WORDS
    sums = newest + LISTS
    after = sums + MOST_SUMS
    subset = after + MOST_SUMS
    n = subset + MOST_SUMS
    rest = at + 3 * n_ranks
    return Work(
        block[at : at + n_ranks], block[at + n_ranks : at + 2 * n_ranks], block[at + 2 * n_ranks : rest],
        block[rest : rest + n_experts], block[rest + n_experts : edges], block[edges : edges + many],
        block[edges + many : edges + 2 * many], block[edges + 2 * many : edges + 3 * many],
        block[edges + 3 * many : lists], block[lists : lists + row], block[lists + row : lists + 2 * row],
        block[lists + 2 * row : lists + 3 * row], block[lists + 3 * row : fixed],
        block[fixed : fixed + BLOCK], block[fixed + BLOCK : newest], block[newest:sums], block[sums:after],
        block[after:subset], block[subset:n], block[n : n + 8],
    )  # fmt: skip
