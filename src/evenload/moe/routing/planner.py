"""``Planner``: maps each batch's expert ids to physical slots such that the busiest GPU does least."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, choice, places, whole
from evenload._optional import is_installed, require
from evenload.balance.flow import Certificate, ReplicaGraph, Router, Routing
from evenload.errors import ConfigError, EvenloadError, quoted
from evenload.moe.placement.rebalance import logical_maps
from evenload.moe.routing.device import DevicePlanner
from evenload.moe.routing.dispatch import (
    Dispatcher,
    bad_id,
    count_ids,
    flat_ids,
    like,
    map_ids,
    without_padding,
)
from evenload.moe.routing.exchange import Exchange, attempt
from evenload.moe.topology import Layout, create_redundant_mapping

MOST_SLOTS = 1 << 24
MOST_COUNT = 1 << 39  # as the router's; so that sums over ranks stay in 64 bits


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

    def apply(self, idx: Any, *, mask: Any = None) -> Any:
        """Physical slot of each id, like ``Planner.run``; ``mask`` as there.

        If the plan has the counts of every rank, ids must be the ones counted, and loads are exact. Otherwise
        this rank's ids are cut in the quotas' proportions; that is exact, too, if they are the ones counted
        and there is one rank.
        """
        dispatcher, idx = self.dispatcher, without_padding(idx, mask)
        if self._counts.ndim == 2:
            shares = dispatcher.exact_shares(self.quotas, self._counts, self._rank)
        else:
            own = dispatcher.count(idx)
            shares = dispatcher.dithered_shares(self.quotas, self._counts, own, self._rank, self._n_ranks)
        return dispatcher.map(idx, shares)


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
        self._exchange = (
            None
            if group is None
            else Exchange(group, is_summed=isinstance(exchange, str) and exchange == "sums")
        )
        if self._exchange is not None and ep_size is None:
            ep_size = self._exchange.n_ranks
        sizes = (n_routed_experts, n_logical_routed_experts, ep_size)
        gone, error = attempt(lambda: _checked_options(sizes, exchange, backend, dead, nodes))
        self._facts = {
            "slots": n_routed_experts, "ranks": ep_size, "exchange": exchange,
            "redundant_to_original": redundant_to_original, "speeds": speeds, "cost": cost, "nodes": nodes,
            "dead": gone,
        }  # fmt: skip
        if self._exchange is not None:
            self._exchange.open(error, n_logical_routed_experts, **self._facts)
        elif error is not None:
            raise error
        self._sums, self._backend, self._dead = exchange == "sums", backend, gone
        self._made_of = redundant_to_original, n_routed_experts, n_logical_routed_experts, ep_size
        self._nodes, self._options = nodes, {"speeds": speeds, "cost": cost}
        n_nodes = 1 if nodes is None else len(set(places("nodes", nodes).tolist()))
        self.n_routed_experts, self.n_logical_routed_experts = n_routed_experts, n_logical_routed_experts
        self._layout = Layout(
            redundant_to_original, n_routed_experts, n_logical_routed_experts, ep_size, n_nodes
        )
        self.ep_size, self.n_group = self._layout.n_ranks, self._layout.n_groups
        self.update_redundancy_mapping()

    @classmethod
    def from_deep_ep(
        cls,
        buffer: Any,
        n_logical_routed_experts: int,
        n_routed_experts: int | None = None,
        redundant_to_original: Any = None,
        **options: Any,
    ) -> "Planner":
        """A planner over ``buffer.group``, of a DeepEP ``Buffer`` or anything with a ``group``. A collective.

        n_routed_experts       by default each rank has one redundant slot, where there are several
        redundant_to_original  by default a circulant of these sizes, or the experts in order on one rank
        """
        group, n_experts = _group_of(buffer), n_logical_routed_experts
        n_ranks = require("torch.distributed", extra="moe").get_world_size(group)

        def filled_in() -> tuple[Any, Any]:
            n_slots = n_experts + n_ranks * (n_ranks > 1) if n_routed_experts is None else n_routed_experts
            if redundant_to_original is not None:
                return redundant_to_original, n_slots
            if n_ranks == 1:
                return np.arange(n_slots) % n_experts, n_slots
            return create_redundant_mapping(n_experts, n_slots, ep_size=n_ranks), n_slots

        # What cannot be filled in is refused below, after the ranks have met.
        sizes: tuple[Any, Any] = attempt(filled_in)[0] or (redundant_to_original, n_routed_experts)
        return cls(*sizes, n_experts, group=group, **options)

    def init_from_deep_ep(self, buffer: Any) -> None:
        """Exchange counts over ``buffer.group`` from now on. A collective."""
        exchange = Exchange(_group_of(buffer), is_summed=self._sums)
        exchange.open(None, self.n_logical_routed_experts, **self._facts | {"ranks": self.ep_size})
        before, self._exchange = self._exchange, exchange
        try:
            self._install(self.graph.phy2log[0].astype(np.int64))
        except ConfigError:
            self._exchange = before
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        if self._exchange is not None:
            raise ConfigError(
                "a planner of a group of ranks cannot be copied or saved",
                hint="keep planner.phy2log; make a planner in each rank, then restore_mapping(phy2log)",
            )
        named = {"backend": self._backend, "nodes": self._nodes, "dead": self._dead, **self._options}
        return _copied, (self._made_of, named, self.phy2log)

    def update_redundancy_mapping(self, load: Any = None) -> tuple[Any, Any, Any]:
        """Place the experts anew for their recent ``load`` [experts]; without one, in order of ids.

        Returns tensors ``phy2log`` [slots], ``log2phy`` [experts, X] padded with -1 and ``logcnt`` [experts],
        int64. The weights must be moved to match before the next ``run``. Raises ConfigError if a load is
        negative or not finite, or ranks were given different loads.
        """
        loads, error = attempt(lambda: self._checked_load(load))
        if self._exchange is not None:
            self._exchange.agree("update_redundancy_mapping", "load", load, error)
        elif error is not None:
            raise error
        return self._placed(self._layout.experts(loads))

    def restore_mapping(self, phy2log: Any) -> tuple[Any, Any, Any]:
        """Take over a placement of earlier, ``phy2log`` [slots], as a checkpoint holds it. A collective.

        Returns what ``update_redundancy_mapping`` does. Raises ConfigError if it does not fit this planner.
        """
        slots, error = attempt(lambda: self._checked_slots(phy2log))
        if self._exchange is not None:
            self._exchange.agree("restore_mapping", "phy2log", phy2log, error)
        elif error is not None:
            raise error
        return self._placed(slots)

    def resize(self, phy2log: Any, ep_size: int, group: Any = None, **options: Any) -> tuple[Any, Any, Any]:
        """Route over another fleet, after ranks have joined, left or changed numbers. A collective.

        phy2log  [slots] the expert in each slot of the new fleet (see ``renumber`` for one with few fetches)
        ep_size  ranks of the new fleet
        options  ``nodes``, ``speeds`` and ``dead`` of the new fleet, as when a planner is made

        Returns what ``update_redundancy_mapping`` does. Raises ConfigError if something does not fit; the
        planner is then as it was.
        """
        kept: dict[str, Any] = {"exchange": "sums" if self._sums else "counts", "backend": self._backend}
        kept["cost"] = self._options["cost"]
        found = attempt(lambda: array_of("phy2log", phy2log).reshape(-1))[0]
        slots = np.empty(0, np.int64) if found is None else found  # refused, after all ranks have met
        other = type(self)(slots, len(slots), self.n_logical_routed_experts, ep_size, group, **kept | options)
        self.__dict__.update(other.__dict__)
        return self.restore_mapping(slots)

    def _checked_slots(self, phy2log: Any) -> NDArray[np.int64]:
        slots = array_of("phy2log", phy2log)
        if slots.shape != (self.n_routed_experts,) or slots.dtype.kind not in "iu":
            raise ConfigError(
                f"phy2log has shape {slots.shape} and dtype {slots.dtype}",
                hint=f"give the expert in each of {self.n_routed_experts} slots",
            )
        ReplicaGraph.from_slots(slots, self.n_logical_routed_experts, self.ep_size, dead=self._dead)
        return slots.astype(np.int64)

    def _placed(self, slots: NDArray[np.int64]) -> tuple[Any, Any, Any]:
        torch = require("torch", extra="moe", why="the Planner")
        self._install(slots)
        self.phy2log = torch.from_numpy(slots.copy())
        turns = np.arange(len(slots)).reshape(self.ep_size, -1).T.reshape(-1)  # all ranks' first slots first
        (log2phy,), (counts,) = logical_maps(slots[turns][None], self.n_logical_routed_experts)
        log2phy = np.where(log2phy >= 0, turns[log2phy], -1)
        return self.phy2log, torch.from_numpy(log2phy), torch.from_numpy(counts)

    def _checked_load(self, load: Any) -> NDArray[np.float64] | None:
        if load is None:
            return None
        loads = array_of("load", load).astype(np.float64)
        if loads.shape != (self.n_logical_routed_experts,) or not np.isfinite(loads).all() or loads.min() < 0:
            raise ConfigError(
                f"load of shape {loads.shape}, from {loads.min(initial=0)} to {loads.max(initial=0)}",
                hint=f"give {self.n_logical_routed_experts} finite loads of 0 or more",
            )
        return loads

    def _install(self, slots: NDArray[np.int64]) -> None:
        graph = ReplicaGraph.from_slots(slots, self.n_logical_routed_experts, self.ep_size, dead=self._dead)
        if self._exchange is not None:
            self._exchange.agree("update_redundancy_mapping (its placement)", "placement", slots)
            if self._exchange.n_ranks != graph.n_gpus:
                raise ConfigError(
                    f"{self._exchange.n_ranks} ranks in the group, {graph.n_gpus} by ep_size",
                    hint="use a group of ep_size ranks",
                )
        self.graph = graph
        self._router = Router(graph, **self._options)
        self.dispatcher = Dispatcher(graph, nodes=self._nodes)
        self._own = np.zeros((1, graph.n_experts), np.int64)
        self._device: DevicePlanner | None = None

    def run(self, idx: Any, avail_counter: Any = None, n_sms: int | None = None, *, mask: Any = None) -> Any:
        """Physical slot of each expert id; -1 stays -1.

        idx            integers of any shape, usually [tokens, top-k]: a tensor, or an array for an array
                       back. A rank without tokens passes an empty one
        avail_counter  a tensor to add to: one element counts the groups that were solved (always all of
                       them); one element for each slot counts the ids, of all ranks, that were sent there
        n_sms          accepted for LPLB's sake; the kernels need no such limit
        mask           truth values of the ids' shape, or [tokens]: False for padding, which counts nowhere
                       and becomes -1. None: no padding but ids of -1

        Raises ConfigError for an id out of range, on every rank. Kernels on a device do not raise: an id out
        of range becomes -1 there, and ``check`` raises later.
        """
        is_cuda = bool(getattr(idx, "is_cuda", False))
        # Once a batch went over the device, all do: the ranks' exchanges there have another size.
        is_begun = self._device is not None and self._exchange is not None
        if self._backend == "triton" or (self._backend == "auto" and (is_cuda or is_begun)):
            if self._device is None:
                self._device = self._on_device(getattr(idx, "device", "cpu"))
            if self._device is not None:
                return self._device.run(idx, avail_counter, mask)
        out = self._run_here(idx, avail_counter, mask)
        return out.to(idx.device) if is_cuda else out

    def _run_here(self, idx: Any, avail_counter: Any, mask: Any) -> Any:
        counted, error = attempt(lambda: self._count(idx, avail_counter, mask))
        if self._exchange is not None:
            quotas, shares = self._route_together(idx, error)
        elif error is not None:
            raise error
        else:
            quotas = shares = self._router.solve(self._own).quotas[0]
        flat, counter = counted
        out = np.empty_like(flat)
        map_ids(flat, self.dispatcher.slot_start, self.dispatcher.slots, shares, out)
        if counter is not None and len(counter) == 1:
            counter += self.n_group
        elif counter is not None:
            is_array = isinstance(counter, np.ndarray)
            counter += quotas if is_array else counter.new_tensor(quotas, dtype=counter.dtype)
        return like(idx, out)

    def _count(self, idx: Any, avail_counter: Any, mask: Any) -> tuple[NDArray, Any]:
        """Ids in one row and the counter's elements; the ids' counts are in ``_own`` then."""
        ids = without_padding(idx, mask)
        flat = flat_ids(ids.cpu() if getattr(ids, "is_cuda", False) else ids)
        bad = count_ids(flat, self._own[0])
        if bad:
            raise bad_id(flat[bad - 1], self.n_logical_routed_experts)
        return flat, None if avail_counter is None else self._counter(avail_counter)

    def _route_together(
        self, idx: Any, error: EvenloadError | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        exchange, dispatcher = self._exchange, self.dispatcher
        assert exchange is not None
        exchange.counts[:] = self._own[0]
        shape = () if error is not None else np.shape(idx)
        counts = exchange.share("run", shape[-1] if len(shape) > 1 else 1, error)
        if self._sums:
            quotas = self._router.solve(counts[0]).quotas[0]
            return quotas, dispatcher.dithered_shares(
                quotas, counts[0], self._own[0], exchange.rank, exchange.n_ranks
            )
        quotas = self._router.solve(counts.sum(axis=0)).quotas[0]
        return quotas, dispatcher.exact_shares(quotas, counts, exchange.rank)

    def run_with_stats(self, counts: Any) -> BatchPlan:
        """Route counts that are known already, without any exchange; the plan's ``apply`` maps ids.

        counts  [experts] over all ranks, of this batch or a recent one; or [ranks, experts], of this batch
        Raises ConfigError if a count is negative, or not one of each expert is given.
        """
        known = self._checked_counts(counts)
        rank, n_ranks = (0, 1) if self._exchange is None else (self._exchange.rank, self._exchange.n_ranks)
        return BatchPlan(self._router, self.dispatcher, known, rank, n_ranks)

    def _checked_counts(self, counts: Any) -> NDArray[np.int64]:
        known = array_of("counts", counts)
        if known.dtype.kind == "f" and np.isfinite(known).all() and (known == np.rint(known)).all():
            known = known.astype(np.int64)  # as statistics come
        n_experts = self.n_logical_routed_experts
        if known.dtype.kind not in "iu" or known.shape[-1:] != (n_experts,) or known.ndim > 2:
            raise ConfigError(
                f"counts have shape {known.shape} and dtype {known.dtype}",
                hint=f"give whole numbers, [{n_experts}] or [ranks, experts]",
            )
        if known.size and known.max() >= MOST_COUNT:
            raise ConfigError(f"a count of {known.max()}", hint=f"give counts below {MOST_COUNT}")
        return known.astype(np.int64)

    def _sum_over_ranks(self, call: str, counts: Any) -> NDArray[np.int64]:
        """[experts] the sum of every rank's ``counts``, which take part whatever they are."""
        own, error = attempt(lambda: self._checked_counts(counts).reshape(-1, self.n_logical_routed_experts))
        if self._exchange is None:
            if error is not None:
                raise error
            return own.sum(axis=0)
        if error is None:
            self._exchange.counts[:] = own.sum(axis=0)
        return self._exchange.share(call, 1, error).sum(axis=0)

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

    def _counter(self, counter: Any) -> Any:
        """The elements of ``counter``, to be added to in place. Raises ConfigError if that cannot be."""
        is_tensor = hasattr(counter, "detach")
        target = counter.view(-1) if is_tensor else counter.reshape(-1)  # a view of a tensor, or an error
        if not is_tensor and not np.may_share_memory(target, counter):
            raise ConfigError("avail_counter is not contiguous", hint="give a whole array, not a part of one")
        if is_tensor and not target.is_cuda:
            target = target.numpy()  # adds several times faster than the tensor
        if len(target) not in (1, self.n_routed_experts):
            raise ConfigError(
                f"avail_counter has {len(target)} elements",
                hint=f"give 1, or {self.n_routed_experts}: one for each slot",
            )
        if not isinstance(target, np.ndarray):
            return target
        if target.dtype.kind not in "iuf" or target.dtype.itemsize < 4:
            raise ConfigError(f"avail_counter has dtype {target.dtype}", hint="use int32, int64 or float32")
        return target


def _group_of(buffer: Any) -> Any:
    group = getattr(buffer, "group", None)
    if group is None:
        raise ConfigError(
            f"a {type(buffer).__name__} without a group", hint="give a DeepEP Buffer, or Planner(group=...)"
        )
    return group


def _checked_options(
    sizes: tuple[Any, ...], exchange: Any, backend: Any, dead: Any, nodes: Any
) -> tuple[int, ...]:
    """The ``dead`` ranks. Raises ConfigError if an option is not one of those there are."""
    names = ("n_routed_experts", "n_logical_routed_experts", "ep_size")
    for name, n in zip(names, sizes, strict=True):
        if name != "ep_size" or n is not None:
            whole(name, n, least=1, most=MOST_SLOTS - 1)
    choice("exchange", exchange, ("counts", "sums"))
    choice("backend", backend, ("auto", "cpu", "triton"))
    if nodes is not None and places("nodes", nodes).ndim != 1:
        raise ConfigError(f"nodes is {quoted(nodes)}", hint="give the node of each rank")
    return tuple(dead)


def _copied(made_of: tuple[Any, ...], named: dict[str, Any], phy2log: Any) -> Planner:
    planner = Planner(*made_of, **named)
    planner.restore_mapping(phy2log)
    return planner
