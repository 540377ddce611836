"""Started by test_device.py with TRITON_INTERPRET=1: the clone kernel on CPU tensors, against a plain
twin."""

import sys

import numpy as np
import pytest
import torch

from evenload.errors import ConfigError
from evenload.moe import clone_experts
from evenload.moe.cloning.device import DeviceCloner


def fitting(mine, rest, made, tokens, cap):
    may = [e for e in mine if rest[e] > 0 and made[e] < cap]
    fits = [e for e in may if rest[e] >= tokens]
    if fits:
        return min(fits, key=lambda e: (rest[e], e))
    return max(may, key=lambda e: (rest[e], -e), default=-1)


def twin(counts, layer, target):
    """[(expert, rank, tokens)] of all ranks as one group, as kernels/chain.py does it."""
    homes, rest, made = layer.homes, counts.copy(), np.zeros(len(counts), int)
    slack = target - np.bincount(homes, counts, layer.n_ranks).astype(np.int64)
    slots, stuck, clones = layer.spare.copy(), set(), []
    ranks = range(layer.n_ranks)
    while True:
        over = [r for r in ranks if slack[r] < 0 and r not in stuck]
        under = [r for r in ranks if slack[r] > 0 and slots[r] > 0]
        if not over or not under:
            return clones
        home = min(over, key=lambda r: (slack[r], -r))
        mine = np.flatnonzero(homes == home).tolist()
        expert = fitting(mine, rest, made, -slack[home], layer.cap)
        if expert < 0:
            stuck.add(home)
            continue
        tokens = min(-slack[home], rest[expert])
        to = max(under, key=lambda r: (slack[r] / slots[r], slack[r], r))
        if slack[to] > tokens and slots[to] < 2:
            other = fitting(mine, rest, made, slack[to], layer.cap)
            if slots[home] > 0 and rest[other] >= slack[to] and len(over) > 1:
                tokens = slack[to]
            else:
                to = max((r for r in under if slack[r] <= tokens), key=lambda r: (slack[r], r), default=to)
        tokens = min(tokens, slack[to])
        expert = fitting(mine, rest, made, tokens, layer.cap)
        clones.append((expert, to, int(tokens)))
        rest[expert] -= tokens
        made[expert] += 1
        slack[home] += tokens
        slack[to] -= tokens
        slots[to] -= 1


def check(n_ranks, n_experts, spare, cap):
    rng = np.random.default_rng(n_ranks)
    homes = rng.integers(0, n_ranks, n_experts)
    device = DeviceCloner(homes, spare, cap, n_ranks=n_ranks, n_layers=2, device="cpu")
    counts = (rng.lognormal(0, 1, (2, n_experts)) * [[30], [9000]]).astype(np.int64)
    given = torch.from_numpy(counts)
    summary = device.plan(given)
    for index in range(2):
        plan = device.on_host(given, index)
        expected = twin(counts[index], plan.layer, int(summary[index, 1]))
        assert list(zip(plan.experts, plan.ranks, plan.tokens, strict=True)) == expected
        best = clone_experts(counts[index], homes, spare, cap, n_ranks=n_ranks)
        assert (plan.first_bound, plan.peak >= best.peak) == (best.first_bound, True)
        assert plan.peak == plan.loads.max()
        assert plan.loads.sum() == counts[index].sum()


for shape in [(2, 5, 1, None), (5, 9, 2, 2), (8, 8, 1, None), (7, 20, np.array([0, 1, 2, 1, 3, 0, 1]), None)]:
    check(*shape)
with pytest.raises(ConfigError, match="int64"):
    DeviceCloner([0, 1], 1, device="cpu").plan(torch.zeros(1, 2))
sys.stdout.write("all equal")
