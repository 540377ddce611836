"""``Router``: exact integer routing of batch after batch over one placement, into its own arrays."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from evenload._arguments import array_of, instance_of, whole
from evenload._optional import require
from evenload.balance.flow.graph import REPLICATED, UNPLACED, ReplicaGraph
from evenload.balance.flow.routing import Routing
from evenload.errors import ConfigError, quoted

__all__ = ["Router", "route"]

SPEED_STEPS = 4096  # speeds are kept in 1/4096 of the fastest
UNLIMITED = 1 << 62
LINE = 8  # words of 8 bytes in a cache line: where each array begins


class Pool(Protocol):
    """A pool that runs parts of a call at the same time, such as a ``ThreadPoolExecutor``."""

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterable[Any]: ...


class Router:
    """An exact router of demands over ``graph``, all layers in one call; calls allocate no memory.

    speeds   [gpus] relative speeds, kept to 1/4096 of the fastest (whole numbers up to 4096 exactly); the
             peak is then the largest load / speed
    cost     what a GPU's load counts: "tokens"; "experts", one for each expert that it serves, each served by
             one replica (for memory-bound decoding); or a whole number: tiles of that many tokens
    even     find the least-majorised loads of all optimal ones, not just the least maximum; slower
    warm     start from the last call's quotas. The peak is the same, with fewer steps if batches are alike,
             but quotas depend on the calls before, so all ranks must have made the same ones
    parts    how many parts a call with ``pool=`` is divided into

    ``routing`` is the last answer. Not safe to use from two threads at once.
    """

    def __init__(
        self,
        graph: ReplicaGraph,
        *,
        speeds: ArrayLike | None = None,
        cost: Literal["tokens", "experts"] | int = "tokens",
        even: bool = False,
        warm: bool = False,
        parts: int = 1,
    ):
        require("llvmlite.binding", extra="moe", why="exact routing")
        from evenload.balance.flow.kernels.route import route_layers

        self.graph = instance_of(
            "graph", graph, ReplicaGraph, "a ReplicaGraph, such as ReplicaGraph.from_slots(...)"
        )
        self._kernel = route_layers
        self._given = {"speeds": speeds, "cost": cost, "even": even, "warm": warm, "parts": parts}
        self._speeds = None if speeds is None else _whole_speeds(graph, speeds)
        self._tile = _tile(cost)
        self._even = even
        self._warm = warm
        self._parts = max(1, min(whole("parts", parts), graph.n_layers))
        block, self._arrays = _memory(graph, self._parts)
        self._flow, width = self._arrays["flow"], self._arrays["scratch"].shape[2]
        self._fixed_arguments = (graph.n_gpus, graph.n_slots, width, block)
        self.routing = self._routing = Routing(graph, self._speeds, self._arrays, self._tile)
        self._shape = (graph.n_layers, graph.n_experts)
        self._is_plain = self._speeds is None and self._tile == 1 and not even
        self._plain_arguments = (0, graph.n_layers, 0, *self._fixed_arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Router, **self._given), (self.graph,)  # a copy has a kernel and memory of its own

    def solve(
        self,
        demands: ArrayLike,
        *,
        fixed: ArrayLike | None = None,
        capacities: ArrayLike | None = None,
        pool: Pool | None = None,
    ) -> Routing:
        """Divide each expert's demand over its replicas so that the busiest GPU does least.

        demands     [layers, experts] or, for one layer, [experts]: tokens, integers; int64 in C order: no
                    copy
        fixed       [gpus] or [layers, gpus] load that GPUs have anyway, in units of cost
        capacities  [slots] or [layers, slots] tokens a replica can take at most (cost="tokens" only)
        pool        runs ``parts`` parts of the layers at the same time; the kernel releases the GIL

        The same input gives the same quotas on every machine. Returns the router's own ``Routing``.
        Raises ConfigError if a demand is negative, an expert with demand is on no living GPU, an expert's
        replicas have too little capacity, or a layer's total reaches 2**39.
        """
        array = demands if isinstance(demands, np.ndarray) and self._is_ready(demands) else None
        if array is None:
            array = _whole("demands", demands, self._shape)
        if not self._is_plain or fixed is not None or capacities is not None or pool is not None:
            return self._solve_any(array, fixed, capacities, pool)
        self._routing.demands, self._routing.fixed, self._routing.capacities = array, None, None
        if self._kernel(*self._plain_arguments, array, None, None, None, self._warm):
            self._refuse(array)
        return self._routing

    def _solve_any(
        self,
        demands: NDArray[np.int64],
        fixed: ArrayLike | None,
        capacities: ArrayLike | None,
        pool: Pool | None,
    ) -> Routing:
        routing, graph, speeds, capacity = self._routing, self.graph, self._speeds, None
        costs = routing.demands = demands if self._tile == 1 else self._to_cost(demands)
        routing.fixed = None if fixed is None else _whole("fixed", fixed, (graph.n_layers, graph.n_gpus))
        routing.capacities = None
        if capacities is not None:
            capacity = self._edge_capacity(costs, capacities)
        if speeds is not None or capacity is not None or fixed is not None or self._even:
            # All or none, so that the kernel is compiled for only two sets of types.
            speeds = graph.alive.astype(np.int64) if speeds is None else speeds
            capacity = np.full(len(self._flow), UNLIMITED) if capacity is None else capacity
            if routing.fixed is None:
                routing.fixed = np.zeros((graph.n_layers, graph.n_gpus), dtype=np.int64)

        def run(part: int) -> int:
            first, last = (part * graph.n_layers // n_parts, (part + 1) * graph.n_layers // n_parts)
            return self._run(first, last, part, costs, speeds, capacity)

        n_parts = 1 if pool is None else self._parts
        status = run(0) if pool is None else max(pool.map(run, range(n_parts)))
        if status:
            self._refuse(costs)
        if self._tile != 1:
            self._to_tokens(demands)
        return routing

    def _is_ready(self, demands: NDArray) -> bool:
        return demands.dtype == np.int64 and demands.shape == self._shape and demands.flags.c_contiguous

    def _run(self, first: int, last: int, part: int, costs: Any, speeds: Any, capacity: Any) -> int:
        routing = self._routing
        status = self._kernel(
            first, last, part, *self._fixed_arguments, costs, routing.fixed, speeds, capacity, self._warm
        )
        if self._even and not status:
            from evenload.balance.flow.kernels.even import even_out

            graph = self.graph
            even_out(
                first, last, graph.row_start, graph.row_edge, graph.edge2gpu, graph.edge2slot,
                graph.gpu_start, graph.gpu_edges, graph.gpu_rows, speeds, capacity, self._flow, routing.loads,
                routing.quotas,
            )  # fmt: skip
        return status

    def _to_cost(self, demands: NDArray[np.int64]) -> NDArray[np.int64]:
        if demands.min() < 0:
            return demands  # for the kernel to refuse
        if self._tile == 0:
            return np.sign(demands)
        return -(-demands // self._tile)

    def _to_tokens(self, demands: NDArray[np.int64]) -> None:
        """Convert quotas from units of cost to tokens; one replica of an expert gets its partial tile."""
        routing, phy2log = self._routing, self.graph.phy2log
        quotas, tile = routing.quotas, self._tile
        layer, slot = np.nonzero(quotas)
        expert = phy2log[layer, slot]
        if tile == 0:
            quotas[layer, slot] = demands[layer, expert]
            return
        quotas *= tile
        last_slot = np.zeros_like(demands)
        last_slot[layer, expert] = slot
        spare = routing.demands * tile - demands
        np.subtract.at(quotas, (np.arange(len(demands))[:, None], last_slot), spare)

    def _edge_capacity(self, demands: NDArray[np.int64], capacities: ArrayLike) -> NDArray[np.int64]:
        graph = self.graph
        if self._tile != 1:
            raise ConfigError(
                "capacities count tokens, the router counts something else", hint='use cost="tokens"'
            )
        slots = _whole("capacities", capacities, (graph.n_layers, graph.n_slots))
        if slots.min() < 0:
            raise ConfigError(f"capacity {slots.min()}", hint="give capacities of 0 or more")
        self._routing.capacities = slots
        at_home = (graph.home >= 0) & (demands > np.take_along_axis(slots, np.maximum(graph.home_slot, 0), 1))
        if at_home.any():
            layer, expert = np.argwhere(at_home)[0].tolist()
            demand = demands[layer, expert]
            raise ConfigError(
                f"demand {demand} of expert {expert} in layer {layer}: its one slot has less room",
                hint="raise capacities, or drop tokens first",
            )
        n_edges = np.diff(graph.row_edge[graph.row_start])
        layer = np.repeat(np.arange(graph.n_layers), n_edges)
        return np.ascontiguousarray(np.minimum(slots[layer, graph.edge2slot], UNLIMITED))

    def _refuse(self, costs: Any) -> None:
        from evenload.balance.flow.kernels.level import BAD_CAPACITY, NEGATIVE, UNPLACED_DEMAND

        routing, graph = self._routing, self.graph
        layer = int(np.flatnonzero(routing.summary[:, 0])[0])
        status = routing.summary[layer, 0]
        if status == NEGATIVE and costs[layer].min() < 0:
            raise ConfigError(
                f"demand {costs[layer].min()} of expert {costs[layer].argmin()} in layer {layer}",
                hint="count from 0",
            )
        if status == NEGATIVE:
            raise ConfigError(f"fixed load below 0 or on a dead GPU in layer {layer}", hint="count from 0")
        if status == UNPLACED_DEMAND:
            lost = [e for e in graph.unplaced(layer).tolist() if costs[layer, e] > 0]
            raise ConfigError(
                f"experts {lost[:5]} of layer {layer} have demand, and no living GPU holds them",
                hint="place them on a living GPU, or mask their tokens with -1",
            )
        if status == BAD_CAPACITY:
            raise ConfigError(
                f"replicas of an expert in layer {layer} have less capacity together than it has demand",
                hint="raise capacities, or drop tokens first",
            )
        raise ConfigError(f"layer {layer} has too many tokens to count", hint="use smaller demands")


def route(
    phy2log: ArrayLike,
    demands: ArrayLike,
    n_gpus: int,
    *,
    slot2gpu: ArrayLike | None = None,
    dead: Iterable[int] = (),
    fixed: ArrayLike | None = None,
    capacities: ArrayLike | None = None,
    **options: Any,
) -> Routing:
    """Route once: ``ReplicaGraph.from_slots``, ``Router`` (``options``) and ``solve`` in one step.

    phy2log [slots] or [layers, slots], demands [experts] or [layers, experts] integers.
    """
    if not np.ndim(demands):
        raise ConfigError(f"demands are {quoted(demands)}", hint="give one for each expert")
    n_experts = np.shape(demands)[-1]
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu, dead=dead)
    return Router(graph, **options).solve(demands, fixed=fixed, capacities=capacities)


def _memory(graph: ReplicaGraph, n_parts: int) -> tuple[NDArray[np.int64], dict[str, NDArray]]:
    """The kernel's block of memory, which holds the graph, and its arrays by name."""
    from evenload.balance.flow.kernels.current import springs
    from evenload.balance.flow.kernels.route import SCRATCH_ROWS, TABLES

    spread_order, fill_start, fill_gpu, pivots, fill_value = springs(graph)
    tables = _graph_tables(graph)
    tables |= {"spread_order": spread_order, "fill_start": fill_start, "fill_gpu": fill_gpu}
    known = {name: tables[name] for name in TABLES} | {"pivots": pivots, "fill_value": fill_value}
    n_rows = int(np.diff(graph.row_start).max())
    block, arrays = lay_out(
        {name: (array.shape, array.dtype) for name, array in known.items()}
        | {"flow": ((graph.n_edges,), np.int64)}
        | Routing.shapes(graph)
        | {"alive": ((graph.n_gpus,), np.bool_)}
        | {"scratch": ((n_parts, SCRATCH_ROWS, -(-max(graph.n_gpus + 2, n_rows) // LINE) * LINE), np.int64)}
    )
    for name, array in known.items():
        arrays[name][...] = array
    arrays["alive"][...] = graph.alive
    return block, arrays


def lay_out(
    shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
) -> tuple[NDArray[np.int64], dict[str, NDArray]]:
    """A block of zeros, and arrays cut from it by name, so that the kernel takes one argument for them all.

    The block begins with a table: word i is the start of array i, and one more word is the end of the last.
    """
    sizes = [-(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 8) for shape, dtype in shapes.values()]
    where = [-(-(len(sizes) + 1) // LINE) * LINE]
    for size in sizes:
        where.append(where[-1] + -(-size // LINE) * LINE)
    block = np.zeros(where[-1], np.int64)
    block[: len(where)] = where
    arrays = {}
    for at, (name, (shape, dtype)) in zip(where, shapes.items(), strict=False):
        arrays[name] = block[at:].view(dtype)[: int(np.prod(shape))].reshape(shape)
    return block, arrays


def _graph_tables(graph: ReplicaGraph) -> dict[str, NDArray[np.int32]]:
    """The kernel's tables: the graph, its connected components, and trees that span them."""
    from evenload.balance.flow.kernels.forests import spanning_forests

    home, home_slot = _homes(graph)
    component, n_linked, forests = spanning_forests(graph)
    n_components = np.count_nonzero(component == np.arange(graph.n_gpus), axis=1).astype(np.int32)
    of_graph = (
        "row_start",
        "row2log",
        "row_edge",
        "edge2gpu",
        "edge2slot",
        "gpu_start",
        "gpu_edges",
        "gpu_rows",
    )
    return {name: getattr(graph, name) for name in of_graph} | {
        "home": home, "home_slot": home_slot, "component": component, "n_linked": n_linked,
        "n_components": n_components, "forests": forests,
    }  # fmt: skip


def _homes(graph: ReplicaGraph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """``home`` and ``home_slot`` as places to write to whatever the expert: see ``place_homes``.

    An expert with several replicas has the slot of its first one, one without any a slot that serves nothing.
    """
    home, slot = graph.home.copy(), graph.home_slot.copy()
    home[graph.home == REPLICATED] = graph.n_gpus
    home[graph.home == UNPLACED] = graph.n_gpus + 1
    layer_of_row = np.repeat(np.arange(graph.n_layers), np.diff(graph.row_start))
    slot[layer_of_row, graph.row2log] = graph.edge2slot[graph.row_edge[:-1]]
    lost = graph.home == UNPLACED  # it has slots on dead GPUs, which are empty here
    slot[lost] = np.broadcast_to(graph.phy2log.argmin(axis=1)[:, None], slot.shape)[lost]
    return home, slot


def _tile(cost: Any) -> int:
    """Tokens in a tile; 0 if experts are counted."""
    if isinstance(cost, str) and cost in ("tokens", "experts"):
        return int(cost == "tokens")
    try:
        return whole("cost", cost, least=1)
    except ConfigError as error:
        raise ConfigError(
            f"cost={quoted(cost)}", hint='use "tokens", "experts", or the number of tokens in a tile'
        ) from error


def _whole(name: str, values: ArrayLike, shape: tuple[int, int]) -> NDArray[np.int64]:
    """``values`` as int64 [layers, n]; a single row serves one layer, or (but for demands) every layer."""
    array = array_of(name, values)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name} has dtype {array.dtype}", hint=f"give {name} as integers")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"{name} holds {array.max()}", hint="use numbers below 2**63")
    if array.ndim == 1 and (shape[0] == 1 or name != "demands"):
        array = np.broadcast_to(array, (shape[0], len(array)))
    if array.shape != shape:
        raise ConfigError(f"{name} has shape {np.shape(values)}", hint=f"give {name} as {list(shape)}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _whole_speeds(graph: ReplicaGraph, speeds: ArrayLike) -> NDArray[np.int64]:
    given = array_of("speeds", speeds)
    if given.shape != (graph.n_gpus,) or given.dtype.kind not in "iuf" or not np.isfinite(given).all():
        raise ConfigError(f"speeds {quoted(given.tolist())}", hint=f"give {graph.n_gpus} finite numbers")
    if (given[graph.alive] <= 0).any():
        raise ConfigError(
            f"speed {given[graph.alive].min()} of a living GPU", hint="name dead GPUs with dead="
        )
    if given.dtype.kind == "f" or given.max() > SPEED_STEPS:
        given = np.maximum(np.rint(given / given[graph.alive].max() * SPEED_STEPS), 1)
    return np.where(graph.alive, given, 0).astype(np.int64)
