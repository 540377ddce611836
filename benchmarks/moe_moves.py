"""What a stream of windows costs if experts move by rule, never, always, and at best in hindsight.

    python benchmarks/moe_moves.py

Tokens of the busiest GPU and of moves, over those of never moving; counts, not times. 64 experts in 80
slots on 16 GPUs, 6 layers, windows of 128 tokens. A fetch of one expert costs a share of what the mean GPU
serves in a window of one layer. ``EPLB``: its plan of the last eight windows, anew after each, tokens split
equally over copies; ``few fetches``: by search after each eight, for exact routing. ``vllm#50647`` is a model
of what that report says: 24 rearrangements of 41.8 s each in a run that takes 463.1 s without, for a busiest
rank at 1.008 times the mean in place of 1.069, on 16 ranks. All of the run's time is taken to follow the
busiest rank, which favours moves.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from moe_workloads import traces, windows_of
from numpy.typing import NDArray
from record import record

from evenload.moe import Fleet, MoveCosts, MoveRule, place, rebalance_experts
from evenload.moe.generators import Popularity, generate
from evenload.moe.replay.moves import replay_moves
from evenload.moe.search.transfers import keep_slots

FLEET, HISTORY, WINDOW, N_WINDOWS, N_LAYERS = Fleet.even(16, 80), 8, 128, 64, 6
REARRANGED_S, SERVED_S, N_REARRANGED = (1466.5 - 463.11) / 24, 463.11, 24


def eplb(recent: NDArray, in_use: NDArray | None, fleet: Fleet = FLEET) -> NDArray:
    new = rebalance_experts(recent.sum(axis=0), fleet.n_living_slots, 1, 1, fleet.n_gpus).phy2log
    return new if in_use is None else keep_slots(in_use, new, fleet.n_gpus)


def few_fetches(recent: NDArray, in_use: NDArray | None) -> NDArray:
    return place(recent, FLEET, old=in_use, target=None if in_use is None else 1.02, warns=False).phy2log


def streams() -> dict[str, NDArray]:
    """[windows, layers, experts] loads."""
    intent, law = (windows_of(ids[::5], 64, WINDOW)[:N_WINDOWS] for ids in traces().values())
    made_up = partial(
        generate, n_windows=N_WINDOWS, n_layers=N_LAYERS, n_experts=64, n_ids=6 * WINDOW * 8, seed=1
    )
    steady, drifting, wild = (made_up(Popularity(drift=drift)).windows(1) for drift in (0.0, 0.1, 0.5))
    half, turn = N_WINDOWS // 2, N_WINDOWS // 8
    nights = drifting.copy()
    nights[np.arange(N_WINDOWS) // turn % 2 == 1] = 0
    return {
        "intent": intent,
        "law": law,
        "intent, then law": np.concatenate([intent[:half], law[:half]]),
        "intent and law in turn": np.concatenate(
            [one[at : at + turn] for at in range(0, half, turn) for one in (intent, law)]
        ),
        "made up, steady": steady,
        "made up, drifting": drifting,
        "made up, drifting, idle half of the time": nights,
        "made up, wild": wild,
    }


def row_of(
    stream: str, windows: NDArray, plan: Any, costs: MoveCosts, price: float, every: int = 1
) -> dict[str, Any]:
    found = replay_moves(windows, plan, MoveRule(costs), history=HISTORY, every=every)
    cost = found.cost
    print(stream, price, cost, file=sys.stderr)
    return {
        "stream": stream,
        "planner": "few fetches" if costs.is_routed else "EPLB",
        "fetch, % of a window": round(100 * price, 1),
        "never, over bound": round(cost["never"] / cost["bound"], 4),
        **{name: round(cost[name] / cost["never"], 4) for name in ("rule", "always", "hindsight")},
        "rule over hindsight": round(cost["rule"] / cost["hindsight"], 4),
        "layers moved": int(found.moved["rule"].sum()),
        "layers moved always": int(found.moved["always"].sum()),
        "worst window, %": round(100 * found.worst / cost["never"], 2),
    }


def report_50647() -> dict[str, Any]:
    """A steady stream whose first placement is 1.069, as the report's; a rearrangement costs what it took."""
    traffic = generate(
        Popularity(spread=0.07),
        n_windows=N_REARRANGED + HISTORY,
        n_layers=N_LAYERS,
        n_experts=384,
        n_ids=10**6,
        seed=3,
    ).windows(1)
    fleet = Fleet.even(16, 400)
    first = np.tile(np.arange(400) % 384, (N_LAYERS, 1))  # as vLLM begins: in order, the first ones twice

    def plan(recent: NDArray, in_use: NDArray | None) -> NDArray:
        return first if in_use is None else eplb(recent, in_use, fleet)

    unit = MoveCosts(fleet, is_routed=False, fetch_tokens=1.0)
    batches = float(unit.moving(first, plan(traffic[:HISTORY], first)).sum())
    window = float(unit.serving(first, traffic[HISTORY:]).sum()) / N_REARRANGED
    fetch = REARRANGED_S / (SERVED_S / N_REARRANGED) * window / batches
    costs = MoveCosts(fleet, is_routed=False, fetch_tokens=fetch)
    return row_of("vllm#50647, a model", traffic, plan, costs, fetch * N_LAYERS / window)


def rows() -> Iterator[dict[str, Any]]:
    for stream, windows in streams().items():
        mean = float(windows[windows.any(axis=(1, 2))].sum(axis=2).mean()) / FLEET.n_gpus
        for price in (0.01, 0.1, 1.0):
            yield row_of(stream, windows, eplb, MoveCosts(FLEET, False, price * mean), price)
        if stream in ("intent, then law", "made up, drifting"):
            costs = MoveCosts(FLEET, True, 0.1 * mean)
            yield row_of(stream, windows, few_fetches, costs, 0.1, every=8)
    yield report_50647()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    record("moe_moves", list(rows()), is_of_speed=False, unit="total cost over that of never moving")
