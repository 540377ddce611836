"""The certificate of a placement: the load of its busiest GPU, and what no placement can be below."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.balance.claim import claim, exact, rounded_down
from evenload.certificate import by_copies
from evenload.errors import ConfigError
from evenload.moe.placement.bound import placement_bound
from evenload.moe.placement.fleet import Fleet

MOST_ROUNDING = 40  # halvings of the last digits of a bound until it is proved


def fleet_certificate(
    phy2log: NDArray[np.int64], windows: NDArray, fleet: Fleet, *, is_routed: bool, name: str = "placement"
) -> dict[str, Any]:
    """Return the certificate of a placement for a fleet, as ``placement_certificate`` does.

    phy2log    [layers, GPUs * width];  windows  [windows, layers, experts]
    is_routed  loads, whole numbers then, are routed exactly; else split equally over copies
    """
    is_there, speeds, quotas = fleet.open_slots(), fleet.living_speeds(), None
    phy2log, slot2gpu = phy2log[:, is_there], np.flatnonzero(is_there) // fleet.width
    if is_routed:
        from evenload.balance.flow import ReplicaGraph, Router

        if (windows != np.rint(windows)).any():
            raise ConfigError(
                "loads that are not whole numbers cannot be routed", hint="give counts of tokens"
            )
        n_experts = windows.shape[2]
        graph = ReplicaGraph.from_slots(phy2log, n_experts, fleet.n_gpus, slot2gpu=slot2gpu, dead=fleet.dead)
        router = Router(graph, speeds=speeds)
        quotas = [router.solve(one).quotas.tolist() for one in windows.astype(np.int64)]
    return placement_certificate(phy2log, windows, slot2gpu, speeds, quotas, name)


def placement_certificate(
    phy2log: NDArray[np.int64],
    windows: NDArray,
    slot2gpu: NDArray[np.int64],
    speeds: NDArray[np.float64],
    quotas: Sequence[Sequence[list[int] | None]] | None = None,
    name: str = "placement",
) -> dict[str, Any]:
    """Return the certificate of a placement under windows of loads, for ``json.dumps``.

    phy2log   [layers, slots] the expert in each slot, -1 for an empty one
    windows   [windows, layers, experts] loads;  slot2gpu  [slots] of slots that are there
    speeds    [GPUs], 0 for a dead one
    quotas    [windows][layers] what each slot serves; split equally over copies where None

    It claims the load of the busiest GPU, summed over windows and layers. Raises ConfigError without load.
    """
    n_slots = int((speeds[slot2gpu] > 0).sum())
    gpus, relative = slot2gpu.tolist(), [exact(one) / exact(float(speeds.max())) for one in speeds.tolist()]
    layers, achieved, bound = [], Fraction(0), Fraction(0)
    for number, window in enumerate(windows):
        bounds = placement_bound(window, n_slots, len(speeds), speeds)
        for layer, loads in enumerate(window):
            if not loads.any():
                continue
            demand = [_plain(one) for one in loads.tolist()]
            split = None if quotas is None else quotas[number][layer]
            slots = [None if expert < 0 else expert for expert in phy2log[layer].tolist()]
            part: dict[str, Any] = {"phy2log": slots, "demand": demand, "quotas": split}
            mean = sum(map(exact, demand), Fraction(0)) / sum(relative, Fraction(0))
            part["peak"] = _proved(exact(float(bounds[layer])) * mean, part, gpus, relative)
            layers.append(part)
            achieved += exact_up(_peak(part, gpus, relative))
            bound += exact(part["peak"])
    if not layers:
        raise ConfigError("a placement without load has no certificate", hint="give loads above 0")
    evidence = {"slot2gpu": gpus, "speeds": speeds.tolist(), "layers": layers}
    return claim("placement", name, achieved, bound, evidence)


def exact_up(value: Fraction) -> Fraction:
    """Return billionths, which is how finely the checker adds up layers."""
    return Fraction(-(-value * 10**9 // 1), 10**9)


def _plain(load: float) -> float:
    return int(load) if float(load).is_integer() else float(load)


def _peak(part: dict[str, Any], gpus: list[int], speeds: list[Fraction]) -> Fraction:
    slots, demand = part["phy2log"], [exact(one) for one in part["demand"]]
    copies = {expert: slots.count(expert) for expert in set(slots)}
    loads = [Fraction(0)] * len(speeds)
    for slot, (gpu, expert) in enumerate(zip(gpus, slots, strict=True)):
        if expert is not None:
            shared = demand[expert] / copies[expert] if part["quotas"] is None else part["quotas"][slot]
            loads[gpu] += shared
    return max(load / speed for load, speed in zip(loads, speeds, strict=True) if speed)


def _proved(bound: Fraction, part: dict[str, Any], gpus: list[int], speeds: list[Fraction]) -> float:
    """Return the bound, less the rounding of its search, such that the checker finds it proved."""
    layer = {"demand": [exact(one) for one in part["demand"]]}
    for power in range(MOST_ROUNDING):
        peak = rounded_down(bound * (1 - Fraction(2**power - 1, 10**13)))
        if peak > 0 and by_copies(layer, exact(peak), gpus, speeds):
            return peak
    return 0
