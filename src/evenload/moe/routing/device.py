"""Routing and dispatch on a device: without a copy to the host or a wait, so fit for a CUDA graph."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._optional import require
from evenload.balance.flow import ReplicaGraph, Routing
from evenload.errors import ConfigError
from evenload.moe.routing.dispatch import Dispatcher, power_of_two, without_padding
from evenload.moe.routing.exchange import Exchange, attempt

BLOCK_IDS = 128  # ids for each program of the count and map kernels


class DeviceRouter:
    """A ``balance.flow.Router`` that is a Triton kernel, one program for each layer.

    It counts tokens and takes all GPUs for equally fast.

    device  a torch device; with TRITON_INTERPRET=1 the kernel runs in Triton's interpreter, on CPU tensors
    """

    def __init__(self, graph: ReplicaGraph, device: Any):
        torch = require("torch", extra="moe", why="routing on a device")
        require("triton", extra="moe", why="routing on a device")
        from evenload.moe.routing.kernels.route import route_kernel

        self.graph = graph
        self._kernel: Any = route_kernel
        tables, self._sizes = _dense_tables(graph)
        self._tables = [torch.from_numpy(np.ascontiguousarray(t, np.int32)).to(device) for t in tables]
        n_layers, n_gpus = graph.n_layers, graph.n_gpus
        n_rows, n_copies = self._sizes["R"], self._sizes["C"]

        def zeros(*shape: int, dtype: Any = torch.int32) -> Any:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._scratch = [zeros(n_layers, n_rows, n_copies), zeros(n_layers, 6 * n_gpus + 2 * n_rows)]
        self.quotas = zeros(n_layers, graph.n_slots)
        self.loads = zeros(n_layers, n_gpus)
        self.cuts = zeros(n_layers, n_gpus, dtype=torch.int8)
        self.summary = zeros(
            n_layers, 4
        )  # peak, the certificate's load and GPUs, demand that nobody can serve

    def solve(self, counts: Any) -> Any:
        """Route counts [layers, experts] int32 on the device. Returns ``quotas`` [layers, slots] int32 there.

        The next call overwrites the tensors of the answer. A layer's total must be below 2**30.
        """
        self._kernel[(self.graph.n_layers,)](
            counts, *self._tables, *self._scratch, self.quotas, self.loads, self.cuts, self.summary,
            self.graph.n_experts, self.graph.n_slots, self.graph.n_gpus, **self._sizes,
        )  # fmt: skip
        return self.quotas

    def routing(self, counts: Any) -> Routing:
        """The last answer as a ``Routing`` on the host, with certificates; waits for the device."""
        routing = Routing(self.graph, None)
        routing.quotas[:] = self.quotas.cpu().numpy()
        routing.loads[:] = self.loads.cpu().numpy()
        routing.cuts[:] = self.cuts.cpu().numpy() != 0
        routing.summary[:, 1:] = self.summary.cpu().numpy()[:, 1:3]
        routing.demands = counts.cpu().numpy().astype(np.int64)
        return routing


class DevicePlanner:
    """The part of a ``Planner`` that runs on a device.

    dispatcher  of the placement's one layer
    exchange    of the ranks' counts; None: this process routes alone
    is_summed   whether ranks exchange the sum of their counts only
    n_groups    what ``avail_counter`` counts for each batch
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        device: Any,
        exchange: Exchange | None,
        *,
        is_summed: bool,
        n_groups: int,
    ):
        self._torch = torch = require("torch", extra="moe")
        from evenload.moe.routing.kernels.dispatch import count_kernel, map_kernel, share_kernel

        kernels: tuple[Any, ...] = (count_kernel, share_kernel, map_kernel)
        self._count, self._share, self._map = kernels
        graph, log2slot = dispatcher.graph, dispatcher.padded_slots()
        self._router = DeviceRouter(graph, device)
        self._exchange, self._is_summed, self._n_groups = exchange, is_summed, n_groups
        self._rank = 0 if exchange is None else exchange.rank
        self._log2slot, self._slot2gpu, self._rank2gpu, self._gpu2node = (
            torch.from_numpy(np.ascontiguousarray(table, np.int32)).to(device)
            for table in (log2slot, graph.slot2gpu, dispatcher.rank2gpu, dispatcher.gpu2node)
        )
        self._n_ranks = 1 if exchange is None else exchange.n_ranks
        self._totals = torch.zeros((1, graph.n_experts), dtype=torch.int32, device=device)
        self._ends = torch.zeros(log2slot.shape, dtype=torch.int32, device=device)
        self._wrong = torch.zeros(1, dtype=torch.int32, device=device)

    def run(self, idx: Any, avail_counter: Any = None, mask: Any = None) -> Any:
        """Physical slot of each id, as ``Planner.run``; starts kernels and waits for none."""
        torch, n_experts = self._torch, self._router.graph.n_experts
        error = self._refusal(idx, avail_counter)
        if error is None:
            idx, error = attempt(lambda: without_padding(idx, mask))
        # A rank whose ids are refused takes part without ids: the others' exchange waits for it.
        flat = self._wrong[:0] if error is not None else idx.reshape(-1).contiguous()
        n_blocks = max(1, -(-flat.numel() // BLOCK_IDS))
        blocks = torch.zeros((n_blocks, n_experts), dtype=torch.int32, device=flat.device)
        self._count[(n_blocks,)](flat, flat.numel(), n_experts, blocks, self._wrong, BLOCK=BLOCK_IDS)
        own = blocks.sum(dim=0, dtype=torch.int32)
        counts = own[None] if self._exchange is None else self._exchange.rows(own, sums=self._is_summed)
        if error is not None:
            raise error
        self._totals.copy_(counts.sum(dim=0, keepdim=True, dtype=torch.int32))
        quotas = self._router.solve(self._totals)
        self._cut(quotas, counts, own)
        before = blocks.cumsum(dim=0, dtype=torch.int32) - blocks
        out = torch.empty_like(flat)
        self._map[(n_blocks,)](
            flat, flat.numel(), n_experts, before, self._ends, self._log2slot, out, C=self._log2slot.shape[1],
            BLOCK=BLOCK_IDS,
        )  # fmt: skip
        if avail_counter is not None:
            avail_counter += (
                self._n_groups if avail_counter.numel() == 1 else quotas[0].view_as(avail_counter)
            )
        return out.view(idx.shape)

    def _refusal(self, idx: Any, avail_counter: Any) -> ConfigError | None:
        """What is wrong with the arguments of ``run``."""
        torch, device, n_slots = self._torch, self._wrong.device, self._router.graph.n_slots
        if not isinstance(idx, torch.Tensor) or idx.dtype not in (torch.int64, torch.int32):
            given = idx.dtype if isinstance(idx, torch.Tensor) else type(idx).__name__
            return ConfigError(f"ids of {given}", hint=f"give an int64 or int32 tensor on {device}")
        if idx.device != device:
            return ConfigError(f"ids on {idx.device}", hint=f"give them on {device}")
        if avail_counter is None:
            return None
        if not isinstance(avail_counter, torch.Tensor) or avail_counter.device != device:
            return ConfigError("avail_counter is not on the device", hint=f"give a tensor on {device}")
        if avail_counter.numel() not in (1, n_slots):
            return ConfigError(
                f"avail_counter has {avail_counter.numel()} elements",
                hint=f"give 1, or {n_slots}: one for each slot",
            )
        return None

    def _cut(self, quotas: Any, counts: Any, own: Any) -> None:
        """Fill ``ends`` [experts, C]: this rank's ids for each expert's first slot, first two, and so on."""
        torch = self._torch
        if not self._is_summed:
            n_copies = self._log2slot.shape[1]
            self._share[(len(own),)](
                quotas, counts, self._log2slot, self._slot2gpu, self._rank2gpu, self._gpu2node, self._ends,
                self._rank, self._n_ranks, len(own), C=n_copies, BLOCK_N=power_of_two(self._n_ranks),
            )  # fmt: skip
            return
        total = self._totals[0].long()[:, None]
        exists = self._log2slot >= 0
        below = torch.where(exists, quotas[0].long()[self._log2slot.clamp(min=0).long()], 0)
        below = torch.where(total > 0, below, exists.long()).cumsum(1)
        whole = torch.where(total > 0, total, exists.sum(1, keepdim=True)).clamp(min=1)
        expert = torch.arange(len(own), device=own.device)[:, None]
        turn = (self._rank + expert * 40503) % self._n_ranks
        scaled = 2 * self._n_ranks * own.long()[:, None] * below + (2 * turn + 1) * whole
        self._ends.copy_(torch.div(scaled, 2 * self._n_ranks * whole, rounding_mode="floor"))

    @property
    def routing(self) -> Routing:
        """The last batch's routing, on the host."""
        return self._router.routing(self._totals)

    def check(self) -> None:
        """Raise ConfigError for ids out of range in any batch so far, or of experts on no living rank."""
        n_wrong, n_lost = int(self._wrong.item()), int(self._router.summary[0, 3].item())
        self._wrong.zero_()
        if n_wrong:
            raise ConfigError(
                f"{n_wrong} expert ids were out of range",
                hint=f"use 0 to {self._router.graph.n_experts - 1}, -1 for none",
            )
        if n_lost:
            raise ConfigError(
                f"{n_lost} ids of the last batch are of experts that no living rank holds",
                hint="place them on a living rank, or mask their tokens with -1",
            )


def _dense_tables(graph: ReplicaGraph) -> tuple[list[NDArray[Any]], dict[str, int]]:
    """The graph as dense tables, in the order of the kernel's arguments, and the kernel's sizes."""
    from evenload.balance.flow.kernels.forests import spanning_forests

    n_layers, n_gpus = graph.n_layers, graph.n_gpus
    rows = np.diff(graph.row_start)
    n_hosts = np.diff(graph.row_edge)
    R, C = max(1, int(rows.max())), power_of_two(int(n_hosts.max(initial=2)))
    row_layer = np.repeat(np.arange(n_layers), rows)
    row = np.arange(len(n_hosts)) - graph.row_start[row_layer]
    edge_row = np.repeat(np.arange(len(n_hosts)), n_hosts)
    place = np.arange(graph.n_edges) - graph.row_edge[edge_row]
    layer, edge = row_layer[edge_row], row[edge_row] * C + place  # where each edge is in the dense tables

    row2log, row_gpu, row_slot = (np.full((n_layers, n), -1) for n in (R, R * C, R * C))
    row2log[row_layer, row] = graph.row2log
    row_gpu[layer, edge], row_slot[layer, edge] = graph.edge2gpu, graph.edge2slot
    degree = np.diff(graph.gpu_start)
    S = power_of_two(int(degree.max(initial=1)))
    gpu_edge = np.full((n_layers * n_gpus, S), -1)
    at = np.repeat(np.arange(len(degree)), degree)
    gpu_edge[at, np.arange(graph.n_edges) - graph.gpu_start[at]] = edge[graph.gpu_edges]

    component, n_linked, trees = spanning_forests(graph)
    if graph.n_edges:
        trees[:, :, 2:] = edge[trees[:, :, 2:]]
    weight = np.zeros((n_layers, n_gpus))
    np.add.at(weight, (np.arange(n_layers)[:, None], component), graph.alive)
    sizes = {"R": R, "C": C, "S": S, "N_TREES": trees.shape[1], "BLOCK_E": 256}
    sizes |= {"BLOCK_G": power_of_two(n_gpus), "BLOCK_R": max(1, min(power_of_two(R), 2048 // C))}
    home, home_slot = graph.home, np.where(graph.home >= 0, graph.home_slot, -1)
    return [
        home, home_slot, row2log, row_gpu, row_slot, gpu_edge, component, weight, graph.alive, n_linked,
        trees,
    ], sizes  # fmt: skip
