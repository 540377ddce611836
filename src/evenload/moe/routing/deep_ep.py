"""Planners over the group of a DeepEP buffer, of which nothing but ``group`` is read."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from evenload._optional import require
from evenload.errors import ConfigError
from evenload.moe.routing.exchange import attempt
from evenload.moe.topology import create_redundant_mapping

__all__ = ["FromBuffer"]


class FromBuffer:
    """The two forms of ``init_from_deep_ep``: of the class, a constructor; of a planner, its new group.

    ``Planner.init_from_deep_ep(buffer, redundant_to_original, n_routed_experts, n_logical_routed_experts,
    **options)`` makes a planner over ``buffer.group``, of a DeepEP ``Buffer`` or anything with a ``group``.
    Without the mapping, it is a circulant of those sizes. Without sizes, the planner is made by the first
    ``run_with_stats``: experts are as many as there are counts, and each rank has one redundant slot.

    ``planner.init_from_deep_ep(buffer)`` exchanges counts over ``buffer.group`` from now on.

    Both are collectives: every rank must call them.
    """

    def __get__(self, planner: Any, owner: Any) -> Callable[..., Any]:
        return partial(_planner_of, owner) if planner is None else partial(_join, planner)


def _group_of(buffer: Any) -> Any:
    group = getattr(buffer, "group", None)
    if group is None:
        raise ConfigError(
            f"a {type(buffer).__name__} without a group", hint="give a DeepEP Buffer, or Planner(group=...)"
        )
    return group


def _planner_of(
    owner: Any,
    buffer: Any,
    redundant_to_original: Any = None,
    n_routed_experts: int | None = None,
    n_logical_routed_experts: int | None = None,
    **options: Any,
) -> Any:
    group = _group_of(buffer)
    if redundant_to_original is None and n_routed_experts is None and n_logical_routed_experts is None:
        planner = owner.__new__(owner)
        planner._unmade = partial(_make_for, planner, group, options)
        return planner
    sizes: Any = (n_routed_experts, n_logical_routed_experts)
    if redundant_to_original is None:
        n_ranks = require("torch.distributed", extra="torch").get_world_size(group)
        redundant_to_original, _ = attempt(
            lambda: create_redundant_mapping(sizes[1], sizes[0], ep_size=n_ranks)
        )
    return owner(redundant_to_original, *sizes, group=group, **options)


def _make_for(planner: Any, group: Any, options: dict[str, Any], counts: Any) -> None:
    """Make ``planner`` over ``group`` for as many experts as there are counts."""
    n_ranks = require("torch.distributed", extra="torch").get_world_size(group)
    n_experts, _ = attempt(lambda: np.shape(counts)[-1])
    mapping, _ = attempt(
        lambda: (
            create_redundant_mapping(n_experts, n_experts + n_ranks, ep_size=n_ranks)
            if n_ranks > 1
            else np.arange(n_experts)
        )
    )
    n_slots = n_experts + n_ranks * (n_ranks > 1) if n_experts else None
    planner.__init__(mapping, n_slots, n_experts, group=group, **options)
    planner._unmade = None


def _join(planner: Any, buffer: Any) -> None:
    planner._use_group(_group_of(buffer))
