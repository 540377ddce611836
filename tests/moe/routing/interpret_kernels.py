"""Started by test_device.py with TRITON_INTERPRET=1: kernels on CPU tensors against the CPU's own answers."""

import sys

import numpy as np
import pytest
import quick_interpreter
import torch

from evenload.balance.flow import ReplicaGraph, Router
from evenload.errors import ConfigError
from evenload.moe.routing.device import DeviceRouter
from evenload.moe.routing.planner import Planner


def graphs():
    """(graph, counts [layers, experts]): random ones, no copies at all, a hard ring, a dead GPU."""
    rng = np.random.default_rng(0)
    for n_gpus, n_experts, n_slots in [(4, 8, 12), (5, 7, 20), (2, 6, 6), (1, 3, 4)]:
        layers = [
            rng.permutation(np.append(np.arange(n_experts), rng.integers(-1, n_experts, n_slots - n_experts)))
            for _ in range(2)
        ]
        counts = (rng.lognormal(0, 1, (2, n_experts)) * rng.choice([1, 30, 1000], (2, 1))).astype(np.int32)
        yield ReplicaGraph.from_slots(layers, n_experts, n_gpus), counts
    n = 8
    ring = [[e, (e + 1) % n] for e in range(n)]
    counts = np.zeros((1, n), np.int32)
    counts[0, : n // 2] = 1000
    yield ReplicaGraph.from_slots(np.ravel(ring), n, n), counts
    graph = ReplicaGraph.from_slots([0, 1, 0, 2, 0, 1], 3, 3, dead=[1])
    yield graph, np.array([[80, 5, 0]], np.int32)


def check_router():
    for at, (graph, counts) in enumerate(graphs()):
        device = DeviceRouter(graph, "cpu")
        both = counts, counts[:, ::-1].copy()  # the second finds the first's scratch
        for batch in both[: 1 + (at == 0)]:
            device.solve(torch.from_numpy(batch))
            found = device.routing(torch.from_numpy(batch))
            twin = Router(graph).solve(batch)
            np.testing.assert_array_equal(found.loads.max(1), twin.loads.max(1))
            for layer in range(graph.n_layers):
                used = graph.phy2log[layer] >= 0
                served = np.bincount(graph.phy2log[layer, used], found.quotas[layer, used], graph.n_experts)
                np.testing.assert_array_equal(served, batch[layer])
                np.testing.assert_array_equal(
                    np.bincount(graph.slot2gpu, found.quotas[layer], graph.n_gpus), found.loads[layer]
                )
                assert found.certificate(layer).proves(graph, layer, batch[layer].astype(np.int64))


class GangOfOne:
    """Three ranks' rows without a network, to run each rank's share on its own."""

    def __init__(self, rank, counts):
        self.rank, self.n_ranks, self._counts = rank, len(counts), torch.from_numpy(counts.astype(np.int32))

    def rows(self, own, *, sums):
        assert torch.equal(own, self._counts[self.rank])
        return self._counts.sum(0, keepdim=True, dtype=torch.int32) if sums else self._counts


def check_dispatch(sums):
    from evenload.moe.routing.device import DevicePlanner

    rng = np.random.default_rng(1)
    slots = [0, 1, 2, 0, 3, 1, 4, 0, 5]
    batches = [torch.from_numpy(rng.integers(-1, 6, (n, 2))) for n in (80, 0, 20)]
    counts = np.stack([np.bincount(b[b >= 0].numpy(), minlength=6) for b in batches])
    planner = Planner(slots, 9, 6, ep_size=3, nodes=[0, 1, 1])
    quotas = Router(planner.graph).solve(counts.sum(0)).quotas[0]
    received = np.zeros(9, np.int64)
    for rank, ids in enumerate(batches):
        device = DevicePlanner(planner.dispatcher, "cpu", GangOfOne(rank, counts), is_summed=sums, n_groups=1)
        counter = torch.zeros(9, dtype=torch.int64)
        out = device.run(ids, counter)
        assert torch.equal(out == -1, ids == -1)
        assert torch.equal(planner.phy2log[out[out >= 0]], ids[ids >= 0])
        mine = np.bincount(out[out >= 0].numpy(), minlength=9)
        twin = planner.dispatcher
        if sums:
            expected = twin.dithered_shares(counter.numpy(), counts.sum(0), counts[rank], rank, 3)
        else:
            expected = twin.exact_shares(counter.numpy(), counts, rank)
        np.testing.assert_array_equal(mine, expected)
        np.testing.assert_array_equal(
            out.numpy(), twin.map(ids, expected).numpy()
        )  # ids go to slots in the order of the batch, as on the CPU
        np.testing.assert_array_equal(counter.numpy(), quotas)
        received += mine
    assert sums or (received == quotas).all()


def check_planner():
    planner = Planner([0, 1, 0, 2], 4, 3, ep_size=2, backend="triton")
    ids = torch.tensor([[0, 1], [2, 1], [0, -1], [0, 0]], dtype=torch.int32)
    out = planner.run(ids)
    assert out.dtype == torch.int32
    assert planner.certificate().peak == planner.loads.max()
    planner.check()
    out = planner.run(torch.tensor([0, 4, -2, 1]))
    assert (out == -1).tolist() == [False, True, True, False]
    with pytest.raises(ConfigError, match="2 expert ids"):
        planner.check()
    planner.check()
    with pytest.raises(ConfigError, match="float32"):
        planner.run(torch.zeros(3))
    with pytest.raises(ConfigError, match="meta"):
        planner.run(torch.zeros(3, dtype=torch.int64, device="meta"))


def check_mask():
    """Padding told by a mask is padding told by ids of -1, in the ids of every rank."""
    rng = np.random.default_rng(2)
    planner, twin = (Planner([0, 1, 0, 2], 4, 3, ep_size=2, backend=b) for b in ("triton", "cpu"))
    cases = ((75, 2), 1, 0.4), ((3, 5, 2), 3, 0.6), ((9, 2), 1, 0.0), ((0, 2), 1, 1.0)
    for shape, n_flags, share in cases:
        ids = torch.from_numpy(rng.integers(0, 3, shape))
        mask = torch.from_numpy(rng.random(shape[:n_flags]) < share)
        each = (mask if mask.ndim == ids.ndim else mask[..., None]).expand(shape)
        counter = torch.zeros(4, dtype=torch.int64)
        out = planner.run(ids, counter, mask=mask)
        assert torch.equal(out == -1, ~each)
        assert torch.equal(planner.phy2log[out[out >= 0]], ids[each])
        assert torch.equal(torch.bincount(out[out >= 0], minlength=4), counter)
        twin.run(ids, mask=mask)
        assert planner.loads.max() == twin.loads.max()
        planner.check()
    seen = planner.run(torch.tensor([0, 9, 1]), mask=torch.tensor([True, False, True]))
    assert (seen == -1).tolist() == [False, True, False]
    planner.check()  # what padding holds is nobody's id
    elsewhere = torch.ones(3, device="meta").bool()
    for wrong in (torch.ones(2, dtype=torch.bool), torch.ones(3), "mask", elsewhere):
        with pytest.raises(ConfigError, match="mask"):
            planner.run(torch.tensor([0, 1, 2]), mask=wrong)


quick_interpreter.replace_once()
check_router()
check_mask()
check_dispatch(sums=False)
check_dispatch(sums=True)
check_planner()
sys.stdout.write("all equal")
