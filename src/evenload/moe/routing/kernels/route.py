"""The exact router on a device: one program for each layer, all state in the program's own scratch.

Same method as ``balance.flow.kernel`` up to its trees: even cut, component means as first level, spanning
trees that are known beforehand. What they leave is moved along shortest augmenting paths, found breadth first
by all threads together; ties go to the lowest number, so equal input gives equal bits on every device. If no
path is left, the GPUs that were reached are the certificate, and the level rises.

State lives in global memory. A barrier stands after each phase that writes, and before a write wherever a
warp that lags could otherwise read the new value into a result that all warps must agree on.
"""

import triton
import triton.language as tl

FAR = tl.constexpr(1 << 30)  # no label, no edge


@triton.jit
def _sum_homes(counts, home, home_slot, load, quotas, summary, E, BLOCK_E: tl.constexpr):
    """Load and quotas of experts with one replica; counts demand of experts that have none."""
    lost = 0
    for start in range(0, E, BLOCK_E):
        expert = start + tl.arange(0, BLOCK_E)
        demand = tl.load(counts + expert, mask=expert < E, other=0)
        gpu = tl.load(home + expert, mask=expert < E, other=-1)
        slot = tl.load(home_slot + expert, mask=expert < E, other=-1)
        tl.atomic_add(load + gpu, demand, mask=gpu >= 0)
        tl.store(quotas + slot, demand, mask=gpu >= 0)
        lost += tl.sum(tl.where(gpu == -2, demand, 0))
    tl.store(summary + 3, lost)
    tl.debug_barrier()


@triton.jit
def _cut_evenly(counts, row2log, row_gpu, flow, load, R, C: tl.constexpr, BLOCK_R: tl.constexpr):
    for start in range(0, R, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        edge = row[:, None] * C + tl.arange(0, C)[None, :]
        expert = tl.load(row2log + row, mask=row < R, other=-1)
        demand = tl.load(counts + expert, mask=expert >= 0, other=0)
        gpu = tl.load(row_gpu + edge, mask=(row < R)[:, None], other=-1)
        n = tl.maximum(tl.sum((gpu >= 0).to(tl.int32), axis=1), 1)
        share = demand // n
        left = demand - share * n
        part = share[:, None] + (tl.arange(0, C)[None, :] < left[:, None]).to(tl.int32)
        part = tl.where(gpu >= 0, part, 0)
        tl.store(flow + edge, part, mask=(row < R)[:, None])
        tl.atomic_add(load + gpu, part, mask=gpu >= 0)
    tl.debug_barrier()


@triton.jit
def _first_level(load, fixed, component, weight, alive, sums, slack, cut, summary, G, BLOCK_G: tl.constexpr):
    """Level and slack from component means and what cannot leave a GPU. Returns the level."""
    gpu = tl.arange(0, BLOCK_G)
    inside = gpu < G
    here = tl.load(component + gpu, mask=inside, other=0)
    loads = tl.load(load + gpu, mask=inside, other=0)
    tl.atomic_add(sums + here, loads, mask=inside)
    tl.debug_barrier()
    total = tl.load(sums + gpu, mask=inside, other=0)
    size = tl.load(weight + gpu, mask=inside, other=0)  # living GPUs of the component that this GPU names
    mean = tl.where(size > 0, (total + size - 1) // tl.maximum(size, 1), 0)
    level = tl.max(mean, axis=0)
    where = tl.min(tl.where((mean == level) & (size > 0), gpu, FAR), axis=0)
    single = tl.max(fixed, axis=0)
    stuck = tl.min(tl.where(fixed == single, gpu, FAR), axis=0)
    living = tl.load(alive + gpu, mask=inside, other=0) > 0
    members = (here == where) & living & inside
    bound = tl.sum(tl.where(gpu == where, total, 0), axis=0)
    n = tl.sum(tl.where(gpu == where, size, 0), axis=0)
    is_single = single > level
    members = tl.where(is_single, gpu == stuck, members)
    level = tl.maximum(level, single)
    tl.store(cut + gpu, members.to(tl.int8), mask=inside)
    tl.store(summary + 1, tl.where(is_single, single, bound))
    tl.store(summary + 2, tl.where(is_single, 1, n))
    tl.store(slack + gpu, tl.where(living, level - loads, 0), mask=inside)
    tl.debug_barrier()
    return level


@triton.jit
def _least(slack, G, BLOCK_G: tl.constexpr):
    gpu = tl.arange(0, BLOCK_G)
    return tl.min(tl.load(slack + gpu, mask=gpu < G, other=0), axis=0)


@triton.jit
def _flow_along(tree, n, flow, slack, room, G, BLOCK_G: tl.constexpr):
    """Excess up from subtrees that are too full, then down into those with room: GPU by GPU."""
    gpus = tl.arange(0, BLOCK_G)
    tl.store(room + gpus, tl.load(slack + gpus, mask=gpus < G, other=0), mask=gpus < G)
    tl.debug_barrier()
    for i in range(0, n):
        spot = tree + n - 1 - i
        gpu = tl.load(spot)
        above = tl.load(spot + G)
        if above >= 0:
            up = tl.load(spot + 2 * G)
            down = tl.load(spot + 3 * G)
            mine = tl.load(room + gpu)
            flow_down = tl.load(flow + down)
            flow_up = tl.load(flow + up)
            surplus = tl.minimum(tl.maximum(-mine, 0), flow_down)
            space = tl.minimum(tl.maximum(mine, 0), flow_up + surplus)
            slack_here = tl.load(slack + gpu)
            slack_above = tl.load(slack + above)
            room_above = tl.load(room + above)
            tl.store(flow + down, flow_down - surplus)
            tl.store(flow + up, flow_up + surplus)
            tl.store(slack + gpu, slack_here + surplus)
            tl.store(slack + above, slack_above - surplus)
            tl.store(room + above, room_above + space - surplus)
        tl.debug_barrier()
    for i in range(0, n):
        gpu = tl.load(tree + i)
        above = tl.load(tree + i + G)
        if above >= 0:
            up = tl.load(tree + i + 2 * G)
            down = tl.load(tree + i + 3 * G)
            flow_down = tl.load(flow + down)
            flow_up = tl.load(flow + up)
            slack_here = tl.load(slack + gpu)
            slack_above = tl.load(slack + above)
            step = tl.maximum(tl.minimum(tl.minimum(tl.load(room + gpu), -slack_above), flow_up), 0)
            tl.store(flow + up, flow_up - step)
            tl.store(flow + down, flow_down + step)
            tl.store(slack + above, slack_above + step)
            tl.store(slack + gpu, slack_here - step)
        tl.debug_barrier()


@triton.jit
def _reach(
    flow, slack, row_gpu, gpu_edge, label, via, row_label, giver, G, R, C: tl.constexpr, S: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Breadth first from all overloaded GPUs until one with room is met. Its number, FAR if none."""
    gpu = tl.arange(0, BLOCK_G)
    inside = gpu < G
    room = tl.load(slack + gpu, mask=inside, other=0)
    tl.store(label + gpu, tl.where(room < 0, 0, FAR), mask=inside)
    for start in range(0, R, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        tl.store(row_label + row, FAR, mask=row < R)
    tl.debug_barrier()
    depth = 0
    found = FAR + 0
    grew = 1
    while (found == FAR) & (grew > 0):
        for start in range(0, R, BLOCK_R):
            row = start + tl.arange(0, BLOCK_R)
            edge = row[:, None] * C + tl.arange(0, C)[None, :]
            host = tl.load(row_gpu + edge, mask=(row < R)[:, None], other=-1)
            here = tl.load(label + host, mask=host >= 0, other=FAR)
            gives = (here == depth) & (tl.load(flow + edge, mask=host >= 0, other=0) > 0)
            first = tl.min(tl.where(gives, edge, FAR), axis=1)
            is_new = (tl.load(row_label + row, mask=row < R, other=0) == FAR) & (first < FAR)
            tl.store(row_label + row, depth, mask=is_new)
            tl.store(giver + row, first, mask=is_new)
        tl.debug_barrier()
        takes = tl.load(
            gpu_edge + gpu[:, None] * S + tl.arange(0, S)[None, :], mask=inside[:, None], other=-1
        )
        reached = tl.load(row_label + takes // C, mask=takes >= 0, other=FAR)
        first = tl.min(tl.where(reached == depth, takes, FAR), axis=1)
        is_new = inside & (tl.load(label + gpu, mask=inside, other=0) == FAR) & (first < FAR)
        tl.debug_barrier()
        tl.store(label + gpu, depth + 1, mask=is_new)
        tl.store(via + gpu, first, mask=is_new)
        tl.debug_barrier()
        grew = tl.sum(is_new.to(tl.int32), axis=0)
        found = tl.min(tl.where(is_new & (room > 0), gpu, FAR), axis=0)
        depth += 1
    return found


@triton.jit
def _augment(found, flow, slack, row_gpu, label, via, giver, C: tl.constexpr):
    """Move as much as the path to ``found`` carries."""
    amount = tl.load(slack + found)
    gpu = found
    far = tl.load(label + gpu)
    while far > 0:
        edge = tl.load(giver + tl.load(via + gpu) // C)
        amount = tl.minimum(amount, tl.load(flow + edge))
        gpu = tl.load(row_gpu + edge)
        far = tl.load(label + gpu)
    amount = tl.minimum(amount, -tl.load(slack + gpu))
    slack_root = tl.load(slack + gpu)
    slack_found = tl.load(slack + found)
    tl.store(slack + gpu, slack_root + amount)
    tl.store(slack + found, slack_found - amount)
    gpu = found
    far = tl.load(label + gpu)
    while far > 0:
        into = tl.load(via + gpu)
        edge = tl.load(giver + into // C)
        flow_into = tl.load(flow + into)
        flow_from = tl.load(flow + edge)
        tl.store(flow + into, flow_into + amount)
        tl.store(flow + edge, flow_from - amount)
        gpu = tl.load(row_gpu + edge)
        far = tl.load(label + gpu)
    tl.debug_barrier()


@triton.jit
def _raise_level(level, slack, label, alive, cut, summary, G, BLOCK_G: tl.constexpr):
    """The GPUs that were reached are shut in: lift the level as far as they force it. Returns it."""
    gpu = tl.arange(0, BLOCK_G)
    inside = gpu < G
    room = tl.load(slack + gpu, mask=inside, other=0)
    members = inside & (tl.load(label + gpu, mask=inside, other=FAR) < FAR)
    n = tl.sum(members.to(tl.int32), axis=0)
    over = -tl.sum(tl.where(members, room, 0), axis=0)
    step = (over + n - 1) // n
    living = inside & (tl.load(alive + gpu, mask=inside, other=0) > 0)
    tl.debug_barrier()
    tl.store(cut + gpu, members.to(tl.int8), mask=inside)
    tl.store(summary + 1, level * n + over)
    tl.store(summary + 2, n)
    tl.store(slack + gpu, room + step, mask=living)
    tl.debug_barrier()
    return level + step


@triton.jit
def route_kernel(
    counts, home, home_slot, row2log, row_gpu, row_slot, gpu_edge, component, weight, alive, n_linked, trees,
    flow, scratch, quotas, loads, cut, summary, E, P, G, R, C: tl.constexpr, S: tl.constexpr,
    N_TREES: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Route layer ``program_id(0)``. All int32 but ``cut`` (int8); a leading layer, but for ``alive``.

    counts [E] demand; home, home_slot [E]; row2log [R], row_gpu and row_slot [R, C], gpu_edge [G, S]: -1 for
    none, an edge being row * C + its place in the row; component [G], weight [G] living GPUs of a component,
    at its name; alive [G]; n_linked; trees [N_TREES, 4, G]. Written: flow [R, C], quotas [P], loads [G], cut
    [G], summary [4]: peak, the certificate's load and GPUs, demand that no living GPU can serve. scratch [6 G
    + 2 R].
    """
    layer = tl.program_id(0).to(tl.int64)
    counts += layer * E
    home += layer * E
    home_slot += layer * E
    row2log += layer * R
    row_gpu += layer * R * C
    row_slot += layer * R * C
    gpu_edge += layer * G * S
    component += layer * G
    weight += layer * G
    trees += layer * N_TREES * 4 * G
    flow += layer * R * C
    quotas += layer * P
    loads += layer * G
    cut += layer * G
    summary += layer * 4
    slack = scratch + layer * (6 * G + 2 * R)
    room, label, via, sums = slack + G, slack + 2 * G, slack + 3 * G, slack + 4 * G
    row_label = slack + 6 * G
    giver = row_label + R

    gpu = tl.arange(0, BLOCK_G)
    tl.store(loads + gpu, 0, mask=gpu < G)
    tl.store(sums + gpu, 0, mask=gpu < G)
    tl.debug_barrier()
    _sum_homes(counts, home, home_slot, loads, quotas, summary, E, BLOCK_E)
    fixed = tl.load(loads + gpu, mask=gpu < G, other=0)
    _cut_evenly(counts, row2log, row_gpu, flow, loads, R, C, BLOCK_R)
    level = _first_level(loads, fixed, component, weight, alive, sums, slack, cut, summary, G, BLOCK_G)
    n = tl.load(n_linked + layer)
    for tree in range(0, N_TREES):
        if _least(slack, G, BLOCK_G) < 0:
            _flow_along(trees + tree * 4 * G, n, flow, slack, room, G, BLOCK_G)
    while _least(slack, G, BLOCK_G) < 0:
        found = _reach(
            flow, slack, row_gpu, gpu_edge, label, via, row_label, giver, G, R, C, S, BLOCK_G, BLOCK_R
        )
        if found < FAR:
            _augment(found, flow, slack, row_gpu, label, via, giver, C)
        else:
            level = _raise_level(level, slack, label, alive, cut, summary, G, BLOCK_G)

    left = tl.load(slack + gpu, mask=gpu < G, other=0)
    living = tl.load(alive + gpu, mask=gpu < G, other=0) > 0
    tl.store(loads + gpu, tl.where(living, level - left, 0), mask=gpu < G)
    tl.store(summary, level)
    for start in range(0, R, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        edge = row[:, None] * C + tl.arange(0, C)[None, :]
        slot = tl.load(row_slot + edge, mask=(row < R)[:, None], other=-1)
        tl.store(quotas + slot, tl.load(flow + edge, mask=slot >= 0, other=0), mask=slot >= 0)
