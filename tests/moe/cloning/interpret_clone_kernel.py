"""Started by test_device.py with TRITON_INTERPRET=1: the clone kernel on CPU tensors, against a plain
twin."""

import sys
from functools import partial

import numpy as np
import pytest
import quick_interpreter
import strange_values
import torch
from clone_plan_claims import check_plan
from strange_values import STRANGE

from evenload.errors import ConfigError
from evenload.moe import DeviceCloner, clone_experts


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


def compare(device, counts, spare, cap):
    """Both layers' plans on the device are the twin's, and as good as the CPU's claims allow."""
    given = torch.from_numpy(counts)
    summary = device.plan(given)
    for index in range(len(counts)):
        plan = device.on_host(given, index)
        expected = twin(counts[index], plan.layer, int(summary[index, 1]))
        assert list(zip(plan.experts, plan.ranks, plan.tokens, strict=True)) == expected
        best = clone_experts(counts[index], plan.layer.homes, spare, cap, n_ranks=plan.layer.n_ranks)
        assert (plan.first_bound, plan.peak >= best.peak) == (best.first_bound, True)
        check_plan(plan, counts[index], plan.layer.homes, plan.layer.spare, cap)


def check(n_ranks, n_experts, spare, cap, seed):
    rng = np.random.default_rng(seed)
    homes = rng.integers(0, n_ranks, n_experts)
    device = DeviceCloner(homes, spare, cap, n_ranks=n_ranks, n_layers=2, device="cpu")
    scale = rng.choice([0, 1, 30, 9000, 2**30], 2)[:, None]
    compare(device, (rng.lognormal(0, 1, (2, n_experts)) * scale).astype(np.int64), spare, cap)


def check_random(seed):
    """A layer of any shape: ranks without experts, without slots, no clones allowed."""
    rng = np.random.default_rng(seed)
    n_ranks = int(rng.integers(1, 9))
    spare = rng.integers(0, 4, n_ranks) if rng.random() < 0.5 else int(rng.integers(0, 4))
    cap = None if rng.random() < 0.5 else int(rng.integers(0, 4))
    check(n_ranks, int(rng.integers(1, 20)), spare, cap, seed)


def check_strange():
    """Any value in the place of any argument: an answer, or a reason."""
    fits = {"homes": [0, 1, 1], "spare_slots": 1, "cap": 2, "n_ranks": 2, "n_layers": 1, "device": "cpu"}
    for argument in fits:
        for value in STRANGE:
            call = f"DeviceCloner({argument}=a {type(value).__name__})"
            strange_values.check(call, partial(DeviceCloner, **fits | {argument: value}), lambda _: True)
    device = DeviceCloner(**fits)
    counts = torch.tensor([[9, 1, 2]])
    device.plan(counts)
    for value in [*STRANGE, counts[0], counts.float(), counts.to("meta"), counts.to_sparse()]:
        for of in (device.plan, device.on_host):
            strange_values.check(
                f"{of.__name__}(a {type(value).__name__})", partial(of, value), lambda _: True
            )
        strange_values.check("on_host's index", partial(device.on_host, counts, value), lambda _: True)
    for many in (-5, 1 << 62, 1 << 40, -(1 << 63)):  # not refused without a wait, and nothing is overwritten
        device.plan(torch.full_like(counts, many))
        assert 0 <= device.summary[0, 2] <= 7
        with pytest.raises(ConfigError, match=r"counts|whole"):
            device.on_host(torch.tensor([[3, 3, 4]]))


quick_interpreter.replace_once()
seed, n = map(int, sys.argv[1:3])
check(7, 20, np.array([0, 1, 2, 1, 3, 0, 1]), None, seed)
for one in range(n):
    check_random([seed, one])
with pytest.raises(ConfigError, match="int64"):
    DeviceCloner([0, 1], 1, device="cpu").plan(torch.zeros(1, 2))
check_strange()
sys.stdout.write("all equal")
