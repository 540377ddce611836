"""``Planner``: maps each batch's expert ids to physical slots such that the busiest GPU does least."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._optional import is_installed, require
from evenload.balance.flow import Certificate, ReplicaGraph, Router, Routing
from evenload.errors import ConfigError, MissingExtra
from evenload.moe.routing.device import DevicePlanner
from evenload.moe.routing.dispatch import Dispatcher, bad_id, flat_ids, like
from evenload.moe.routing.exchange import BAD_ID, FINE, Exchange
from evenload.moe.routing.layout import Layout

__all__ = ["BatchPlan", "Planner"]

MOST_COUNT = 1 << 39  # as the router's; so that sums over ranks stay in 64 bits


class Planner:
    """A router of one MoE layer's expert ids, batch after batch, over a fixed pattern of replicas.

    The interface is LPLB's.

    redundant_to_original     [ranks of a group, columns] integers, the rank that each rank's redundant slots
                              back up (see ``create_redundant_mapping`` and ``topology``), or
                              [n_routed_experts]: the expert in each physical slot, for any replica graph
    n_routed_experts          physical slots, redundant ones included
    n_logical_routed_experts  experts that the gate chooses from
    ep_size                   ranks; by default the group's, or else the rows of ``redundant_to_original``
    group                     a ``torch.distributed`` group of one rank for each GPU. Then making a planner,
                              ``update_redundancy_mapping`` and ``run`` are collectives: every rank must call
                              them. Without a group, the ids of this process are taken for all there are
    exchange                  "counts": all-gather every rank's counts, the loads are then exactly optimal;
                              "sums": all-reduce their sum, the loads are then nearly so
    nodes                     [ranks] the node of each rank, to send less between nodes
    backend                   "auto": kernels on the device for CUDA ids if Triton is there, else the CPU;
                              "cpu"; or "triton"
    speeds, cost, dead        as in ``balance.flow``: relative speeds [ranks]; "tokens", "experts" or a tile;
                              dead ranks

    Not safe to use from two threads at once, as batches share its arrays: make a planner for each thread.

    Raises ConfigError if sizes do not fit together, or ranks of the group were given different ones.
    """

    def __init__(
        self,
        redundant_to_original: ArrayLike,
        n_routed_experts: int,
        n_logical_routed_experts: int,
        ep_size: int | None = None,
        group: Any = None,
        *,
        exchange: Literal["counts", "sums"] = "counts",
        nodes: Sequence[int] | None = None,
        backend: Literal["auto", "cpu", "triton"] = "auto",
        speeds: ArrayLike | None = None,
        cost: Literal["tokens", "experts"] | int = "tokens",
        dead: Iterable[int] = (),
    ):
        if exchange not in ("counts", "sums") or backend not in ("auto", "cpu", "triton"):
            raise ConfigError(
                f"exchange={exchange!r}, backend={backend!r}",
                hint='use "counts" or "sums", and "auto", "cpu" or "triton"',
            )
        self._sums, self._backend, self._dead = exchange == "sums", backend, tuple(dead)
        self._nodes, self._options = nodes, {"speeds": speeds, "cost": cost}
        n_nodes = 1 if nodes is None else len(set(nodes))
        self._exchange: Exchange | None = None
        if group is not None:
            n_ranks = self._join(group, n_logical_routed_experts).n_ranks
            ep_size = ep_size or n_ranks
        facts = {"experts": n_logical_routed_experts, "slots": n_routed_experts, "ranks": ep_size or 0}
        self._agree(
            **facts,
            exchange=self._sums,
            redundant_to_original=_digest(redundant_to_original),
            options=zlib.crc32(repr((self._options, nodes, self._dead)).encode()),
        )
        self.n_routed_experts, self.n_logical_routed_experts = n_routed_experts, n_logical_routed_experts
        self._layout = Layout(
            redundant_to_original, n_routed_experts, n_logical_routed_experts, ep_size, n_nodes
        )
        self.ep_size, self.n_group = self._layout.n_ranks, self._layout.n_groups
        self.update_redundancy_mapping()

    def _join(self, group: Any, n_experts: int) -> Exchange:
        dist = require("torch.distributed", extra="torch", why="routing over a process group")
        self._exchange = Exchange(group, n_experts, "cuda" if dist.get_backend(group) == "nccl" else "cpu")
        return self._exchange

    def _agree(self, **facts: int) -> None:
        """Compare ``facts`` over the ranks, before anything that may raise: then all ranks raise, or none."""
        if self._exchange is not None:
            self._exchange.agree(**facts)

    def update_redundancy_mapping(self, load: Any = None) -> tuple[Any, Any, Any]:
        """Place the experts anew for their recent ``load`` [experts]; without one, in order of ids.

        Returns tensors ``phy2log`` [slots], ``log2phy`` [experts, X] padded with -1 and ``logcnt`` [experts],
        int64. The weights must be moved to match before the next ``run``. Raises ConfigError if a load is
        negative or not finite, or ranks were given different loads.
        """
        torch = require("torch", extra="torch", why="the Planner")
        self._agree(load=_digest(load))
        if load is not None:
            try:
                load = np.asarray(load.detach().cpu() if hasattr(load, "detach") else load, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"load is no list of numbers: {error}", hint="give a load for each expert"
                ) from error
            if (
                load.shape != (self.n_logical_routed_experts,)
                or not np.isfinite(load).all()
                or load.min() < 0
            ):
                raise ConfigError(
                    f"load of shape {load.shape}, from {load.min(initial=0)} to {load.max(initial=0)}",
                    hint=f"give {self.n_logical_routed_experts} finite loads of 0 or more",
                )
        slots = self._layout.experts(load)
        self._install(slots)
        self.phy2log = torch.from_numpy(slots.copy())
        log2phy, counts = _log2phy(slots, self.n_logical_routed_experts, self.ep_size)
        return self.phy2log, torch.from_numpy(log2phy), torch.from_numpy(counts)

    def _install(self, slots: NDArray[np.int64]) -> None:
        graph = ReplicaGraph.from_slots(slots, self.n_logical_routed_experts, self.ep_size, dead=self._dead)
        self._agree(placement=_digest(slots))
        if self._exchange is not None and self._exchange.n_ranks != graph.n_gpus:
            raise ConfigError(
                f"{self._exchange.n_ranks} ranks in the group, {graph.n_gpus} by ep_size",
                hint="use a group of ep_size ranks",
            )
        self.graph = graph
        self._router = Router(graph, **self._options)
        self.dispatcher = Dispatcher(graph, nodes=self._nodes)
        self._own = np.zeros((1, graph.n_experts), np.int64)
        self._device: DevicePlanner | None = None

    def run(self, idx: Any, avail_counter: Any = None, n_sms: int | None = None) -> Any:
        """Physical slot of each expert id; -1 stays -1.

        idx            integers of any shape, usually [tokens, top-k]: a tensor, or an array for an array
                       back. A rank without tokens passes an empty one
        avail_counter  a tensor to add to: one element counts the groups that were solved (always all of
                       them); one element for each slot counts the ids, of all ranks, that were sent there
        n_sms          accepted for LPLB's sake; the kernels need no such limit

        Raises ConfigError for an id out of range, on every rank. Kernels on a device do not raise: an id out
        of range becomes -1 there, and ``check`` raises later.
        """
        if self._backend == "triton" or (getattr(idx, "is_cuda", False) and self._backend == "auto"):
            if self._device is None:
                self._device = self._on_device(idx.device)
            if self._device is not None:
                return self._device.run(idx, avail_counter)
        home = idx
        if getattr(idx, "is_cuda", False):
            idx = idx.cpu()
        out = self._run_here(idx, avail_counter)
        return out.to(home.device) if home is not idx else out

    def _run_here(self, idx: Any, avail_counter: Any) -> Any:
        flat = flat_ids(idx)
        dispatcher = self.dispatcher
        bad = dispatcher.count_flat(flat, self._own[0])
        if self._exchange is not None:
            quotas, shares = self._route_together(idx, bad, flat)
        elif bad:
            raise bad_id(flat[bad - 1], self.n_logical_routed_experts)
        else:
            quotas = shares = self._router.solve(self._own).quotas[0]
        out = np.empty_like(flat)
        dispatcher.map_flat(flat, shares, out)
        if avail_counter is not None:
            self._credit(avail_counter, quotas)
        return like(idx, out)

    def _route_together(
        self, idx: Any, bad: int, flat: NDArray
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        exchange, dispatcher = self._exchange, self.dispatcher
        assert exchange is not None
        exchange.counts[:] = 0 if bad else self._own[0]
        width = idx.shape[-1] if len(idx.shape) > 1 else 1
        try:
            counts = (exchange.add if self._sums else exchange.gather)(BAD_ID if bad else FINE, width)
        except ConfigError:
            if bad:
                raise bad_id(flat[bad - 1], self.n_logical_routed_experts) from None
            raise
        if self._sums:
            quotas = self._router.solve(counts).quotas[0]
            return quotas, dispatcher.dithered_shares(
                quotas, counts, self._own[0], exchange.rank, exchange.n_ranks
            )
        quotas = self._router.solve(counts.sum(axis=0)).quotas[0]
        return quotas, dispatcher.exact_shares(quotas, counts, exchange.rank)

    def run_with_stats(self, counts: Any) -> "BatchPlan":
        """Route counts that are known already, without any exchange; the plan's ``apply`` maps ids.

        counts  [experts] over all ranks, of this batch or a recent one; or [ranks, experts], of this batch
        Raises ConfigError if a count is negative, or not one of each expert is given.
        """
        counts = np.asarray(counts.detach().cpu() if hasattr(counts, "detach") else counts)
        if (
            counts.dtype.kind not in "iu"
            or counts.shape[-1:] != (self.n_logical_routed_experts,)
            or counts.ndim > 2
        ):
            raise ConfigError(
                f"counts have shape {counts.shape} and dtype {counts.dtype}",
                hint=f"give whole numbers, [{self.n_logical_routed_experts}] or [ranks, experts]",
            )
        if counts.size and counts.max() >= MOST_COUNT:
            raise ConfigError(f"a count of {counts.max()}", hint=f"give counts below {MOST_COUNT}")
        rank, n_ranks = (0, 1) if self._exchange is None else (self._exchange.rank, self._exchange.n_ranks)
        return BatchPlan(self._router, self.dispatcher, counts.astype(np.int64), rank, n_ranks)

    def certificate(self) -> Certificate:
        """The proof that no routing of the last batch has a lower peak; the same on every rank."""
        return self._last().certificate()

    @property
    def loads(self) -> NDArray[np.int64]:
        """[ranks] loads of the last batch, in units of ``cost``."""
        return self._last().loads[0]

    def _last(self) -> Routing:
        return self._router.routing if self._device is None else self._device.routing

    def check(self) -> None:
        """Raise ConfigError if ids on a device were out of range since the last check; waits for it."""
        if self._device is not None:
            self._device.check()

    def init_from_deep_ep(self, buffer: Any) -> None:
        """Exchange counts over a DeepEP ``Buffer``'s group from now on. Every rank must call this."""
        if not is_installed("deep_ep"):
            raise MissingExtra(
                "'deep_ep' is not installed (init_from_deep_ep needs it)",
                hint="install DeepEP from its sources, or pass its group to Planner(group=...)",
            )
        self._join(buffer.group, self.n_logical_routed_experts)
        self._install(self.graph.phy2log[0].astype(np.int64))

    def _on_device(self, device: Any) -> DevicePlanner | None:
        plain = self._options["speeds"] is None and self._options["cost"] == "tokens"
        if self._backend == "auto" and not (plain and is_installed("triton")):
            return None
        if not plain:
            raise ConfigError(
                "the kernels route tokens over equal GPUs", hint='use backend="cpu" for speeds and cost'
            )
        return DevicePlanner(
            self.dispatcher, device, self._exchange, is_summed=self._sums, n_groups=self.n_group
        )

    def _credit(self, counter: Any, quotas: NDArray[np.int64]) -> None:
        target = counter.reshape(-1)
        if hasattr(target, "numpy") and not target.is_cuda:
            target = target.numpy()  # adds several times faster than the tensor
        if len(target) == 1:
            target += self.n_group
        elif len(target) == self.n_routed_experts:
            target += (
                quotas if isinstance(target, np.ndarray) else counter.new_tensor(quotas, dtype=counter.dtype)
            )
        else:
            raise ConfigError(
                f"avail_counter has {len(target)} elements",
                hint=f"give 1, or {self.n_routed_experts}: one for each slot",
            )


class BatchPlan:
    """The routing of counts that were known in advance.

    quotas       [slots] int64 ids for each slot
    loads        [ranks] int64
    certificate  the proof that no routing has a lower peak
    """

    def __init__(
        self, router: Router, dispatcher: Dispatcher, counts: NDArray[np.int64], rank: int, n_ranks: int
    ):
        routing = router.solve(counts if counts.ndim == 1 else counts.sum(axis=0)).copy()
        self.quotas, self.loads = routing.quotas[0], routing.loads[0]
        self.certificate = routing.certificate()
        self.dispatcher, self._counts, self._rank, self._n_ranks = dispatcher, counts, rank, n_ranks

    def apply(self, idx: Any) -> Any:
        """Physical slot of each id, like ``Planner.run``.

        If the plan has the counts of every rank, ids must be the ones counted, and loads are exact. Otherwise
        this rank's ids are cut in the quotas' proportions; that is exact, too, if they are the ones counted
        and there is one rank.
        """
        dispatcher = self.dispatcher
        if self._counts.ndim == 2:
            shares = dispatcher.exact_shares(self.quotas, self._counts, self._rank)
        else:
            own = dispatcher.count(idx)
            shares = dispatcher.dithered_shares(self.quotas, self._counts, own, self._rank, self._n_ranks)
        return dispatcher.map(idx, shares)


def _digest(values: Any) -> int:
    """A checksum of ``values`` for comparing ranks. Never raises: errors come after all ranks agree."""
    if values is None:
        return 0
    try:
        array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    except ValueError:  # rows of different lengths
        return zlib.crc32(repr(values).encode())
    return zlib.crc32(repr((array.shape, array.dtype.str)).encode() + array.tobytes())


def _log2phy(
    slots: NDArray[np.int64], n_experts: int, n_ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``log2phy`` [experts, X] padded with -1 and ``logcnt`` [experts]: all ranks' first slots come first."""
    counts = np.bincount(slots[slots >= 0], minlength=n_experts)
    log2phy = np.full((n_experts, counts.max()), -1, np.int64)
    seen = np.zeros(n_experts, np.int64)
    for slot in np.arange(len(slots)).reshape(n_ranks, -1).T.reshape(-1):
        expert = slots[slot]
        if expert >= 0:
            log2phy[expert, seen[expert]] = slot
            seen[expert] += 1
    return log2phy, counts
