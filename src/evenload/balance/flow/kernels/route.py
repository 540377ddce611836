"""The router, compiled: integer min-max flow of expert demand over GPUs, layer by layer.

Per layer the state is ``slack[gpu] = limit[gpu] - load[gpu]`` and ``flow[edge]``. The limit starts at a lower
bound that needs no proof (the mean, or the heaviest load that cannot move; level.py). Every expert is divided
evenly over its replicas (level.py), or, in large sparse graphs, such that excess spreads like a current
(current.py). Most of the remaining excess moves along spanning trees that were made with the graph. Then,
while some slack is negative:

- a *walk* (walks.py) goes breadth first from the most overloaded GPU along edges whose flow may shrink, and
  moves excess to the GPUs with room that it meets;
- after too many walks, a *forest pass* (forests.py) starts from all overloaded GPUs at once and moves excess
  along that forest, up from each subtree that is too full and down into each that has room, one visit per
  GPU;
- if the GPUs reached so far have no room together, no load can leave them: they are a certificate, and the
  limit rises exactly as far as they force it to;
- after a few forest passes, *wave passes* (walks.py) push along exact shortest distances to GPUs with room,
  which bounds the number of passes (preflow waves after Karzanov; the discrete Newton step on the limit is
  Dinkelbach's).

Whole numbers are int64; the current is float64, by sums, products and quotients in a fixed order, which
IEEE 754 rounds in the same way everywhere. So the same input gives the same bits on every rank.
"""

from collections import namedtuple

import numpy as np

from evenload.balance.flow.kernels.current import spread
from evenload.balance.flow.kernels.forests import N_TREES, flow_along, grow_forest
from evenload.balance.flow.kernels.level import ROUTED, first_level, place_homes, set_limits, start
from evenload.balance.flow.kernels.walks import most_overloaded, walk_from_the_worst, wave_pass
from evenload.native.kernel import compiled, inlined

FOREST_PASSES = 3  # before waves, counted anew whenever the limit rises

SCRATCH_ROWS = 11  # of a thread: 4 of int64, 3 of float64, and 4 for twice as many of int32

# The router's block (``lay_out``): these tables of int32, two of float64, then what is written.
TABLES = (
    "home", "home_slot", "row_start", "row2log", "row_edge", "edge2gpu", "edge2slot", "gpu_start",
    "gpu_edges", "gpu_rows", "component", "n_linked", "n_components", "forests", "spread_order", "fill_start",
    "fill_gpu",
)  # fmt: skip
N_TABLES = len(TABLES)

Graph = namedtuple("Graph", ("n_gpus", "alive", *TABLES, "pivots", "fill_value"))
Work = namedtuple(
    "Work",
    "slack limit room level rest sums counts order above edge_up edge_down distance seen near is_near",
)


@inlined
def drain(graph, layer, speeds, capacity, flow, work, cut, summary):
    """Move load until no GPU is over its limit: by known trees, then walks, then forests and waves."""
    n_gpus, slack = graph.n_gpus, work.slack
    for tree in range(N_TREES - 1 if len(graph.pivots) > 0 else N_TREES):
        if slack[most_overloaded(slack)] >= 0:
            return
        at = (layer * N_TREES + tree) * 4 * n_gpus
        n = graph.n_linked[layer]
        order, above = graph.forests[at : at + n_gpus], graph.forests[at + n_gpus : at + 2 * n_gpus]
        up, down = (
            graph.forests[at + 2 * n_gpus : at + 3 * n_gpus],
            graph.forests[at + 3 * n_gpus : at + 4 * n_gpus],
        )
        flow_along(n, order, above, up, down, capacity, flow, slack, work.room)
    if slack[most_overloaded(slack)] < 0:
        walk_from_the_worst(graph, layer, speeds, capacity, flow, work, cut, summary)
    passes = 0
    while True:
        root = most_overloaded(slack)
        if slack[root] >= 0:
            return
        passes += 1
        if passes <= FOREST_PASSES:
            n, rose = grow_forest(graph, layer, root, speeds, capacity, flow, work, cut, summary)
            flow_along(
                n, work.order, work.above, work.edge_up, work.edge_down, capacity, flow, slack, work.room
            )
        else:
            rose = wave_pass(graph, layer, speeds, capacity, flow, work, cut, summary)
        if rose:
            passes = 0


@inlined
def _route_layer(graph, layer, demand, fixed, speeds, capacity, warm, flow, load, work, cut, summary):
    """Route one layer; writes each GPU's ``load``. Returns the status."""
    status, total = place_homes(graph, layer, demand, fixed, work.room)
    if status != ROUTED:
        return status
    for gpu in range(graph.n_gpus):
        load[gpu] = work.room[gpu]
    if speeds is None and capacity is None and not warm and len(graph.pivots) > 0:
        spread(graph, layer, demand, total, flow, load, work)
    else:
        status = start(graph, layer, demand, warm, speeds, capacity, flow, load)
        if status != ROUTED:
            return status
    first_level(graph, layer, speeds, total, work, load, work.room, cut, summary)
    set_limits(graph, work, speeds, load)
    drain(graph, layer, speeds, capacity, flow, work, cut, summary)
    for gpu in range(graph.n_gpus):
        load[gpu] = work.limit[gpu] - work.slack[gpu]
    return ROUTED


@inlined
def _write_quotas(graph, layer, demand, flow, quotas):
    quotas[:] = 0
    for expert in range(len(demand)):  # if it has several replicas, their shares follow below
        quotas[graph.home_slot[layer * len(demand) + expert]] = demand[expert]
    for edge in range(graph.row_edge[graph.row_start[layer]], graph.row_edge[graph.row_start[layer + 1]]):
        quotas[graph.edge2slot[edge]] = flow[edge]


@inlined
def _ints(block, i):
    """Table ``i`` of the block, as signed numbers."""
    return block[block[i] : block[i + 1]].view(np.int32)


@inlined
def _indices(block, i):
    """Table ``i`` of the block, of indices: unsigned, so that no code is made for negative ones."""
    return block[block[i] : block[i + 1]].view(np.uint32)


@inlined
def _read_graph(block, n_gpus, alive):
    return Graph(
        n_gpus, alive, _indices(block, 0), _indices(block, 1), _ints(block, 2), _ints(block, 3),
        _ints(block, 4), _indices(block, 5), _indices(block, 6), _ints(block, 7), _indices(block, 8),
        _indices(block, 9), _ints(block, 10), _ints(block, 11), _ints(block, 12), _ints(block, 13),
        _indices(block, 14), _ints(block, 15), _indices(block, 16),
        block[block[17] : block[18]].view(np.float64), block[block[18] : block[19]].view(np.float64),
    )  # fmt: skip


@inlined
def _room_to_work(scratch, n_gpus, width):
    """``scratch`` [rows * width] int64 as the arrays of Work."""
    floats = scratch[4 * width : 7 * width].view(np.float64)
    ints = scratch[7 * width :].view(np.int32)
    return Work(
        scratch[:n_gpus], scratch[width : 2 * width], scratch[2 * width : 3 * width],
        scratch[3 * width : 4 * width], floats[:width], floats[width : 2 * width], floats[2 * width :],
        ints[:width], ints[width : 2 * width], ints[2 * width : 3 * width], ints[3 * width : 4 * width],
        ints[4 * width : 5 * width], ints[5 * width : 6 * width], ints[6 * width : 7 * width],
        ints[7 * width :],
    )  # fmt: skip


@compiled
def route_layers(first, last, part, n_gpus, n_slots, width, block, demands, fixed, speeds, capacity, warm):
    """Route layers ``first`` to ``last - 1`` as thread ``part``. Returns the highest status: ROUTED if
    all is well.

    block    int64, the router's memory: Graph's tables, then flow [edges], loads [layers, gpus], quotas
             [layers, slots], summary [layers, 3] (status, and the certificate's load and speed), cuts
             [layers, gpus] bool, alive [gpus] bool, scratch [threads, rows, words]
    width    words of a row of scratch
    demands  [layers, experts] int64
    fixed    [layers, gpus] int64 or None
    speeds   [gpus] int64 or None
    capacity [edges] int64 or None
    warm     start from what flow holds of the last batch
    """
    at = N_TABLES + 2
    flow = block[block[at] : block[at + 1]]
    loads = block[block[at + 1] : block[at + 2]]
    quotas = block[block[at + 2] : block[at + 3]]
    summary = block[block[at + 3] : block[at + 4]]
    cuts = block[block[at + 4] : block[at + 5]].view(np.uint8)
    alive = block[block[at + 5] : block[at + 6]].view(np.uint8)
    mine = block[at + 6] + part * SCRATCH_ROWS * width
    scratch = block[mine : mine + SCRATCH_ROWS * width]
    graph = _read_graph(block, n_gpus, alive)
    work = _room_to_work(scratch, n_gpus, width)
    worst = ROUTED
    for layer in range(first, last):
        shift = None if fixed is None else fixed[layer]
        result = summary[3 * layer : 3 * layer + 3]
        of_gpus = slice(layer * n_gpus, (layer + 1) * n_gpus)
        status = _route_layer(
            graph, layer, demands[layer], shift, speeds, capacity, warm, flow,
            loads[of_gpus], work, cuts[of_gpus], result,
        )  # fmt: skip
        result[0] = status
        if status == ROUTED:
            _write_quotas(graph, layer, demands[layer], flow, quotas[layer * n_slots : (layer + 1) * n_slots])
        else:
            worst = max(worst, status)
    return worst
