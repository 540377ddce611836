"""Routing and dispatch that stay on the device: no copy to the host, no wait, fit for a CUDA graph."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evenload._optional import require
from evenload.balance.flow import ReplicaGraph, Routing
from evenload.errors import ConfigError
from evenload.moe.routing.dispatch import expert_slots

if TYPE_CHECKING:
    from evenload.moe.routing.exchange import Exchange
    from evenload.moe.routing.planner import Planner

__all__ = ["DevicePlanner", "DeviceRouter"]

BLOCK_IDS = 128  # ids for each program of the count and map kernels


class DeviceRouter:
    """``balance.flow.Router`` as a Triton kernel, one program for each layer; tokens, equal speeds.

    device  a torch device; with TRITON_INTERPRET=1 the kernel runs in Triton's interpreter, on CPU tensors
    """

    def __init__(self, graph: ReplicaGraph, device: Any):
        torch = require("torch", extra="torch", why="routing on a device")
        require("triton", extra="triton", why="routing on a device")
        from evenload.moe.routing.kernels.route import route_kernel

        self.graph = graph
        self._kernel: Any = route_kernel
        tables, self._sizes = _tables(graph)
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

        The tensors of the answer are the router's own. Totals must stay below 2**30 in a layer.
        """
        self._kernel[(self.graph.n_layers,)](
            counts, *self._tables, *self._scratch, self.quotas, self.loads, self.cuts, self.summary,
            self.graph.n_experts, self.graph.n_slots, self.graph.n_gpus, **self._sizes,
        )  # fmt: skip
        return self.quotas

    def routing(self, counts: Any) -> Routing:
        """The last answer on the host, with certificates; waits for the device."""
        routing = Routing(self.graph, None)
        routing.quotas[:] = self.quotas.cpu().numpy()
        routing.loads[:] = self.loads.cpu().numpy()
        routing.cuts[:] = self.cuts.cpu().numpy() != 0
        routing.summary[:, 1:] = self.summary.cpu().numpy()[:, 1:3]
        routing.demands = counts.cpu().numpy().astype(np.int64)
        return routing


class DevicePlanner:
    """The part of a ``Planner`` that runs on ``device``, with its placement and group."""

    def __init__(self, planner: "Planner", device: Any, exchange: "Exchange | None", sums: bool):
        self._torch = torch = require("torch", extra="torch")
        from evenload.moe.routing.kernels.dispatch import count_kernel, map_kernel, share_kernel

        kernels: tuple[Any, ...] = (count_kernel, share_kernel, map_kernel)
        self._count, self._share, self._map = kernels
        graph = planner.graph
        self._router = DeviceRouter(graph, device)
        self._rank, self._exchange, self._sums = 0 if exchange is None else exchange.rank, exchange, sums
        log2slot, slot2gpu, rank2gpu, gpu2node = _dispatch_tables(planner)
        self._log2slot, self._slot2gpu, self._rank2gpu, self._gpu2node = (
            torch.from_numpy(np.ascontiguousarray(t, np.int32)).to(device)
            for t in (log2slot, slot2gpu, rank2gpu, gpu2node)
        )
        self._n_ranks = 1 if exchange is None else exchange.n_ranks
        self._totals = torch.zeros((1, graph.n_experts), dtype=torch.int32, device=device)
        self._ends = torch.zeros(log2slot.shape, dtype=torch.int32, device=device)
        self._wrong = torch.zeros(1, dtype=torch.int32, device=device)
        self._n_group = planner.n_group

    def run(self, idx: Any, avail_counter: Any = None) -> Any:
        """As ``Planner.run``: only kernels are started here."""
        torch, n_experts = self._torch, self._router.graph.n_experts
        if idx.dtype not in (torch.int64, torch.int32) or idx.device != self._wrong.device:
            raise ConfigError(
                f"ids of {idx.dtype} on {idx.device}", hint=f"give int64 or int32 on {self._wrong.device}"
            )
        flat = idx.reshape(-1).contiguous()
        n_blocks = max(1, -(-flat.numel() // BLOCK_IDS))
        blocks = torch.zeros((n_blocks, n_experts), dtype=torch.int32, device=flat.device)
        self._count[(n_blocks,)](flat, flat.numel(), n_experts, blocks, self._wrong, BLOCK=BLOCK_IDS)
        own = blocks.sum(dim=0, dtype=torch.int32)
        counts = own[None] if self._exchange is None else self._exchange.rows(own, sums=self._sums)
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
            avail_counter += self._n_group if avail_counter.numel() == 1 else quotas[0].view_as(avail_counter)
        return out.view(idx.shape)

    def _cut(self, quotas: Any, counts: Any, own: Any) -> None:
        """Fill ``ends`` [experts, C]: this rank's ids for each expert's first slot, first two, and so on."""
        torch = self._torch
        if not self._sums:
            n_copies = self._log2slot.shape[1]
            self._share[(len(own),)](
                quotas, counts, self._log2slot, self._slot2gpu, self._rank2gpu, self._gpu2node, self._ends,
                self._rank, self._n_ranks, len(own), C=n_copies, BLOCK_N=_power_of_two(self._n_ranks),
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
        """The last batch's, on the host."""
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


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _tables(graph: ReplicaGraph) -> tuple[list[NDArray[Any]], dict[str, int]]:
    """The graph as dense tables, in the order of the kernel's arguments, and the kernel's sizes."""
    from evenload.balance.flow.kernels.spanning_forests import N_TREES, plant

    n_layers, n_gpus = graph.n_layers, graph.n_gpus
    rows = np.diff(graph.row_start)
    n_hosts = np.diff(graph.row_edge)
    R, C = max(1, int(rows.max())), _power_of_two(int(n_hosts.max(initial=2)))
    row_layer = np.repeat(np.arange(n_layers), rows)
    row = np.arange(len(n_hosts)) - graph.row_start[row_layer]
    edge_row = np.repeat(np.arange(len(n_hosts)), n_hosts)
    place = np.arange(graph.n_edges) - graph.row_edge[edge_row]
    layer, flat = row_layer[edge_row], row[edge_row] * C + place  # where each edge is in the dense tables

    row2log, row_gpu, row_slot = (np.full((n_layers, n), -1) for n in (R, R * C, R * C))
    row2log[row_layer, row] = graph.row2log
    row_gpu[layer, flat], row_slot[layer, flat] = graph.edge2gpu, graph.edge2slot
    degree = np.diff(graph.gpu_start)
    S = _power_of_two(int(degree.max(initial=1)))
    gpu_edge = np.full((n_layers * n_gpus, S), -1)
    at = np.repeat(np.arange(len(degree)), degree)
    gpu_edge[at, np.arange(graph.n_edges) - graph.gpu_start[at]] = flat[graph.gpu_edges]

    component = np.zeros((n_layers, n_gpus), np.int32)
    n_linked = np.zeros(n_layers, np.int32)
    trees = np.zeros((n_layers, N_TREES, 4, n_gpus), np.int32)
    plant(
        graph.row_start, graph.row_edge, graph.edge2gpu, graph.gpu_start, graph.gpu_edges, graph.gpu_rows,
        component, n_linked, trees,
    )  # fmt: skip
    if graph.n_edges:
        trees[:, :, 2:] = flat[trees[:, :, 2:]]
    weight = np.zeros((n_layers, n_gpus))
    np.add.at(weight, (np.arange(n_layers)[:, None], component), graph.alive)
    block_r = max(1, min(_power_of_two(R), 2048 // C))
    sizes = {
        "R": R,
        "C": C,
        "S": S,
        "N_TREES": N_TREES,
        "BLOCK_E": 256,
        "BLOCK_G": _power_of_two(n_gpus),
        "BLOCK_R": block_r,
    }
    home, home_slot = graph.home, np.where(graph.home >= 0, graph.home_slot, -1)
    return [
        home, home_slot, row2log, row_gpu, row_slot, gpu_edge, component, weight, graph.alive, n_linked,
        trees,
    ], sizes  # fmt: skip


def _dispatch_tables(planner: "Planner") -> tuple[NDArray[Any], ...]:
    dispatcher, graph = planner.dispatcher, planner.graph
    start, slots = expert_slots(graph, 0)
    n_copies = np.diff(start)
    log2slot = np.full((graph.n_experts, _power_of_two(int(n_copies.max(initial=1)))), -1)
    expert = np.repeat(np.arange(graph.n_experts), n_copies)
    log2slot[expert, np.arange(len(slots)) - start[expert]] = slots
    return log2slot, graph.slot2gpu, dispatcher.rank2gpu, dispatcher.gpu2node
