"""Pieces of the search: lower bounds of the costs after a change, found without routing.

The bound is what the old cuts hold after the change, so a change that takes no load off them cannot pay.
"""

from evenload.native.kernel import inlined

__all__ = ["exchange_bound", "relabel_bound"]


@inlined
def _n_copies_inside(problem, state, t, expert):
    """Copies of ``expert`` on the GPUs of the scenario's cut."""
    n = 0
    for k in range(state.n_hosts[expert]):
        if state.cut[t, problem.slot2gpu[state.hosts[expert, k]]]:
            n += 1
    return n


@inlined
def _exchange_change(problem, state, t, leaving, coming):
    """Load that a cut gains if a copy of ``leaving`` goes out of it and one of ``coming`` comes in.

    Under routing, a cut must carry experts with all their copies inside. Under an equal split the cut is one
    GPU, with its shares.
    """
    if not problem.is_routed:
        return (
            problem.demand[t, coming] / state.n_hosts[coming]
            - problem.demand[t, leaving] / state.n_hosts[leaving]
        )
    change = 0.0
    if _n_copies_inside(problem, state, t, leaving) == state.n_hosts[leaving]:
        change -= problem.demand[t, leaving]
    if _n_copies_inside(problem, state, t, coming) == state.n_hosts[coming] - 1:
        change += problem.demand[t, coming]
    return change


@inlined
def exchange_bound(problem, state, scratch, slot, other):
    """A lower bound of the sum of costs after an exchange; writes each scenario's to ``least``."""
    total = 0.0
    for t in range(len(state.cost)):
        cost = state.cost[t]
        inside = state.cut[t, problem.slot2gpu[slot]]
        if cost > 1.0 and inside != state.cut[t, problem.slot2gpu[other]]:
            a, b = (
                (state.slots[slot], state.slots[other]) if inside else (state.slots[other], state.slots[slot])
            )
            cost = max(1.0, cost + _exchange_change(problem, state, t, a, b) / state.cut_speed[t])
        scratch.least[t] = cost
        total += cost
    return total


@inlined
def _relabel_change(problem, state, t, slot, new):
    """Load that the scenario's cut gains if ``slot`` holds ``new`` instead."""
    old, is_inside = state.slots[slot], state.cut[t, problem.slot2gpu[slot]]
    change = 0.0
    if problem.is_routed:
        if not is_inside and old >= 0 and _n_copies_inside(problem, state, t, old) == state.n_hosts[old] - 1:
            change += problem.demand[t, old]
        if not is_inside and _n_copies_inside(problem, state, t, new) == state.n_hosts[new]:
            change -= problem.demand[t, new]
        return change
    m = state.n_hosts[new]
    if old >= 0:
        n = state.n_hosts[old]
        if is_inside:
            change -= problem.demand[t, old] / n
        elif _n_copies_inside(problem, state, t, old) > 0:
            change += problem.demand[t, old] * (1.0 / (n - 1) - 1.0 / n)
    if is_inside:
        change += problem.demand[t, new] / (m + 1)
    elif _n_copies_inside(problem, state, t, new) > 0:
        change += problem.demand[t, new] * (1.0 / (m + 1) - 1.0 / m)
    return change


@inlined
def relabel_bound(problem, state, scratch, slot, new):
    """A lower bound of the sum of costs after a relabel; writes each scenario's to ``least``."""
    total = 0.0
    for t in range(len(state.cost)):
        cost = state.cost[t]
        if cost > 1.0:
            cost = max(1.0, cost + _relabel_change(problem, state, t, slot, new) / state.cut_speed[t])
        scratch.least[t] = cost
        total += cost
    return total
