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


def fitting(mine, rest, made, tokens, layer):
    may = [e for e in mine if rest[e] >= layer.least_tokens and made[e] < layer.cap]
    fits = [e for e in may if rest[e] >= tokens]
    if fits:
        return min(fits, key=lambda e: (rest[e], e))
    return max(may, key=lambda e: (rest[e], -e), default=-1)


def twin(counts, layer, target):
    """[(expert, rank, tokens)] of each domain as one group, as kernels/moves.py does it, and the peak; of all
    domains, that of the rank with the most to give is next."""
    homes, rest, made = layer.homes, counts.copy(), np.zeros(len(counts), int)
    slack = target - np.bincount(homes, counts, layer.n_ranks).astype(np.int64)
    slots, stuck, clones, least = layer.spare.copy(), set(), [], layer.least_tokens
    while over := [r for r in range(layer.n_ranks) if slack[r] < 0 and r not in stuck]:
        home = min(over, key=lambda r: (slack[r], -r))
        near = [r for r in range(layer.n_ranks) if layer.domains[r] == layer.domains[home]]
        under = [r for r in near if slack[r] >= least and slots[r] > 0]
        mine, need = np.flatnonzero(homes == home).tolist(), max(-slack[home], least)
        expert = fitting(mine, rest, made, need, layer)
        if expert < 0 or not under:
            stuck.add(home)
            continue
        tokens = min(need, rest[expert])
        to = max(under, key=lambda r: (slack[r] / slots[r], slack[r], r))
        if slack[to] > tokens and slots[to] < 2:
            other = fitting(mine, rest, made, slack[to], layer)
            if slots[home] > 0 and rest[other] >= slack[to] and len({*over} & {*near}) > 1:
                tokens = slack[to]
            else:
                to = max((r for r in under if slack[r] <= tokens), key=lambda r: (slack[r], r), default=to)
        tokens = min(tokens, slack[to])
        if 0 < least + slack[home] + tokens < least <= -slack[home] - least:
            tokens = -slack[home] - least  # leave enough for one more clone
        expert = fitting(mine, rest, made, tokens, layer)
        clones.append((expert, to, int(tokens)))
        rest[expert] -= tokens
        made[expert] += 1
        slack[home] += tokens
        slack[to] -= tokens
        slots[to] -= 1
    return clones, int((target - slack).max())


def twin_within(counts, layer, bound):
    """The twin's clones for the bound with its tolerance, or without, where that is missed and none is more
    even."""
    goal = bound + bound * layer.millionths // 1_000_000
    near = twin(counts, layer, goal)
    lowest = twin(counts, layer, bound)
    return near[0] if near[1] <= goal or lowest[1] >= near[1] else lowest[0]


def compare(device, counts, given):
    """Both layers' plans on the device are the twin's, hold what they claim by plain sums, and have a peak
    that a tolerance does not raise beyond itself; ``Cloner`` has the same bound, and no higher a peak without
    a tolerance."""
    tensor = torch.from_numpy(counts)
    summary = device.plan(tensor)
    for index in range(len(counts)):
        plan = device.on_host(tensor, index)
        layer, of = plan.layer, counts[index]
        expected = twin_within(of, layer, int(summary[index, 1]))
        assert list(zip(plan.experts, plan.ranks, plan.tokens, strict=True)) == expected
        check_plan(plan, of, layer.homes, layer.spare, layer.cap, layer.least_tokens, layer.domains)
        best = clone_experts(of, n_ranks=layer.n_ranks, **given | {"tolerance": 1.0})
        assert (plan.first_bound, plan.peak >= best.peak) == (best.first_bound, True)
        _, lowest = twin(of, layer, plan.first_bound)
        assert plan.peak <= max(given.get("tolerance", 1.0) * plan.first_bound, lowest)


def check(n_ranks, n_experts, seed, **given):
    rng = np.random.default_rng(seed)
    given["homes"] = rng.integers(0, n_ranks, n_experts)
    device = DeviceCloner(**given, n_ranks=n_ranks, n_layers=2, device="cpu")
    scale = rng.choice([0, 1, 30, 9000, 2**30], 2)[:, None]
    compare(device, (rng.lognormal(0, 1, (2, n_experts)) * scale).astype(np.int64), given)


def check_random(seed):
    """A layer of any shape: ranks without experts, without slots, no clones allowed, domains of any size."""
    rng = np.random.default_rng(seed)
    n_ranks = int(rng.integers(1, 9))
    given = {"spare_slots": rng.integers(0, 4, n_ranks) if rng.random() < 0.5 else int(rng.integers(0, 4))}
    given["cap"] = None if rng.random() < 0.5 else int(rng.integers(0, 4))
    if rng.random() < 0.7:
        given["tolerance"] = float(rng.choice([1.0, 1.01, 1.3, 2.0]))
        given["least_tokens"] = int(rng.choice([1, 2, 40, 5000]))
        given["domains"] = rng.choice([3, 7, 900], n_ranks)
    check(n_ranks, int(rng.integers(1, 20)), seed, **given)


def check_strange():
    """Any value in the place of any argument: an answer, or a reason."""
    fits = {"homes": [0, 1, 1], "spare_slots": 1, "cap": 2, "n_ranks": 2, "n_layers": 1, "device": "cpu",
            "tolerance": 1.1, "least_tokens": 2, "domains": [0, 0]}  # fmt: skip
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
        assert 0 <= device.summary[0, 2] <= 9
        with pytest.raises(ConfigError, match=r"counts|whole"):
            device.on_host(torch.tensor([[3, 3, 4]]))


quick_interpreter.replace_once()
seed, n = map(int, sys.argv[1:3])
check(7, 20, seed, spare_slots=np.array([0, 1, 2, 1, 3, 0, 1]), cap=None)
for one in range(n):
    check_random([seed, one])
with pytest.raises(ConfigError, match="int64"):
    DeviceCloner([0, 1], 1, device="cpu").plan(torch.zeros(1, 2))
check_strange()
sys.stdout.write("all equal")
