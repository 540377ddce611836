"""``where_it_pays``: keep the placement in use wherever its fetches would cost more time than they save."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, instance_of, number
from evenload.errors import ConfigError
from evenload.moe.placement.rebalance import Placement, logical_maps
from evenload.moe.search.plan import PlacementPlan
from evenload.moe.search.transfers import schedule_transfers

__all__ = ["Payback", "where_it_pays"]


@dataclass(frozen=True, slots=True, eq=False)
class Payback:
    """The costs and savings of a change of placement, and the plan that changes layers only where it pays.

    plan     ``old``'s slots in the layers where the change does not pay
    fetch_s  [layers] seconds that the fetches of each layer take, alone
    saved_s  [layers] seconds that the better balance of each layer saves
    pays     [layers] whether it saves more than it costs
    """

    plan: PlacementPlan
    fetch_s: NDArray[np.float64]
    saved_s: NDArray[np.float64]
    pays: NDArray[np.bool_]


def where_it_pays(
    plan: PlacementPlan,
    old: ArrayLike,
    *,
    tokens_to_come: int,
    token_s: float,
    expert_bytes: int,
    **links: Any,
) -> Payback:
    """Compare, layer by layer, what changing from ``old`` to ``plan`` costs with what it saves.

    plan            of ``place(..., old=old)``
    old             [layers, GPUs * width] the placement in use
    tokens_to_come  tokens that will be served before the next change
    token_s         seconds that one layer's experts take for a token when the load is even: those of a
                    large batch, divided by its tokens
    expert_bytes    weights of one expert in one layer; ``links`` are other options of ``schedule_transfers``

    A layer saves tokens x token_s x (imbalance of ``old`` - imbalance of the plan). Its fetches count as if
    serving stood still for them. A layer whose old placement lacks an expert on a living GPU must change.
    Raises ConfigError if the plan was made without ``old``, or a number is below 0 or not finite.
    """
    before = array_of("old", old)
    stay = _checked(plan, before, tokens_to_come, token_s)
    whole = schedule_transfers(before, plan.phy2log, plan.fleet, expert_bytes=expert_bytes, **links)
    rows = zip(before[:, None], whole.phy2log[:, None], strict=True)
    options = {"expert_bytes": expert_bytes, **links}
    fetch_s = np.array([schedule_transfers(*row, plan.fleet, **options).seconds for row in rows])
    saved_s = tokens_to_come * token_s * (stay - plan.imbalance)
    n_experts = plan.placement.logcnt.shape[1]
    living = np.where(plan.fleet.open_slots(), before, -1)
    lacks = np.array([len(np.unique(row[row >= 0])) < n_experts for row in living])
    pays = (saved_s > fetch_s) | lacks
    phy2log = np.where(pays[:, None], whole.phy2log, before)
    log2phy, logcnt = logical_maps(phy2log, n_experts)
    placement = plan.placement
    kept = replace(
        plan,
        placement=Placement(phy2log, log2phy, logcnt, n_gpus=placement.n_gpus, weight=placement.weight),
        imbalance=np.where(pays, plan.imbalance, stay),
        origin=tuple(origin if paid else "old" for origin, paid in zip(plan.origin, pays, strict=True)),
        held_out=None,
    )
    return Payback(kept, fetch_s, saved_s, pays)


def _checked(
    plan: PlacementPlan, before: NDArray[np.int64], tokens_to_come: float, token_s: float
) -> NDArray[np.float64]:
    """The imbalance of ``before``, where all arguments fit."""
    number("tokens_to_come", tokens_to_come)
    number("token_s", token_s)
    instance_of("plan", plan, PlacementPlan, "what place(..., old=old) returned")
    if plan.stay is None or before.shape != plan.phy2log.shape:
        raise ConfigError(
            f"the plan knows nothing of the placement {before.shape} that it would replace",
            hint="make it by place(..., old=old), with the same old",
        )
    return plan.stay
