"""``MoveCosts``: serving windows and moving experts in one unit, the tokens of one GPU."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import number
from evenload.errors import ConfigError
from evenload.moe.placement.bound import equal_split_loads
from evenload.moe.placement.fleet import Fleet
from evenload.moe.search.plan import PlacementPlan, imbalance_of
from evenload.moe.search.transfers import schedule_transfers

# 400e12 FLOP/s over 50e9 bytes/s. An expert of P parameters takes 2 P FLOP a token, and in bfloat16 a link
# carries 2 P bytes; in 8 bits half of them, at twice the FLOP/s. So the number does not depend on the expert.
FETCH_TOKENS = 8000.0


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """The costs that ``MoveRule`` goes by, in tokens that the fastest GPU serves in the same time.

    A window costs what its busiest GPU does, in each layer. Moving costs ``fetch_tokens`` for each batch of
    fetches in which no GPU sends or receives two experts. A layer's batches count as if serving stood still
    for them and no other layer's went beside them: so moves never cost more than that.

    is_routed     loads are routed exactly over copies; else split equally
    fetch_tokens  tokens that a GPU serves while it fetches one expert of one layer: its bytes over the link's
                  bytes a second, times tokens a second. By default those of an H100 that computes at 400
                  TFLOP/s and fetches at 50 GB/s; more where the weights of experts are read anew for few
                  tokens, or a change stops the engine for other reasons
    """

    fleet: Fleet
    is_routed: bool = True
    fetch_tokens: float = FETCH_TOKENS

    def __post_init__(self) -> None:
        number("fetch_tokens", self.fetch_tokens)

    def serving(self, phy2log: NDArray[np.int64], windows: NDArray) -> NDArray[np.float64]:
        """[windows, layers] tokens of the busiest GPU, over its speed."""
        speeds = self.fleet.living_speeds() / self.fleet.living_speeds().max()
        windows = np.asarray(windows, np.float64)
        if self.is_routed:
            mean = windows.sum(axis=2) / speeds.sum()
            return imbalance_of(phy2log, windows, self.fleet, is_routed=True) * mean
        alive = speeds > 0
        loads = [equal_split_loads(phy2log, window, len(speeds))[:, alive] for window in windows]
        return (np.reshape(loads, (*windows.shape[:2], -1)) / speeds[alive]).max(axis=2)

    def moving(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.float64]:
        """[layers] tokens that fetching takes, from ``old`` to ``new`` [layers, GPUs * width]."""
        found = np.zeros(len(old))
        for layer in np.flatnonzero((old != new).any(axis=1)):
            schedule = schedule_transfers(old[layer : layer + 1], new[layer : layer + 1], self.fleet)
            found[layer] = len(schedule.batches) * self.fetch_tokens
        return found

    def pays(self, plan: PlacementPlan, old: NDArray, tokens_to_come: float) -> NDArray[np.bool_]:
        """[layers] whether a plan made with ``old`` saves more than going there costs, in such tokens.

        A layer that lacks an expert on a living GPU has to. Raises ConfigError if the plan knows no ``old``.
        """
        if plan.stay is None or old.shape != plan.phy2log.shape:
            raise ConfigError(
                f"the plan knows nothing of the placement {old.shape} that it would replace",
                hint="make it by place(..., old=old), with the same old",
            )
        speeds, living = self.fleet.living_speeds(), np.where(self.fleet.open_slots(), old, -1)
        lacks = [len({*row} - {-1}) < plan.placement.logcnt.shape[1] for row in living.tolist()]
        mean = number("tokens_to_come", tokens_to_come) * speeds.max() / speeds.sum()
        return (mean * (plan.stay - plan.imbalance) > self.moving(old, plan.phy2log)) | lacks
