"""``Cloner`` and ``clone_experts``: which experts are cloned for a batch, where to, and with how many
tokens."""

import threading
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import MOST, array_of, instance_of, number, whole
from evenload._optional import require
from evenload.errors import ConfigError, quoted
from evenload.moe.cloning.clone_plan import ClonePlan
from evenload.moe.cloning.fetch_costs import FetchCosts
from evenload.moe.cloning.load_certificate import CloneLayer

MOST_RANKS = 1 << 12
MOST_COUNT = 1 << 38  # as the kernel's


class Cloner:
    """A planner of clones for one MoE layer, batch after batch; threads may share one.

    homes         [experts] the rank that has each expert anyway
    spare_slots   how many clones a rank has room for: one number for all, or [ranks]
    cap           the most clones of one expert; None: as many as there are ranks
    n_ranks       by default as many as ``spare_slots`` or the homes name
    costs         plan for the least time, by these, instead of the lowest peak
    tolerance     the fewest fetches with a peak of at most so many times the lowest one (1.01: 1 % above it),
                  to the millionth
    least_tokens  that a clone takes: no fetch is made for fewer
    domains       [ranks] the fast domain of each rank: an expert is fetched within its home's domain only

    Raises ConfigError for homes out of range, numbers below 0, and a tolerance beside costs, which weigh
    fetches themselves.
    """

    def __init__(
        self,
        homes: ArrayLike,
        spare_slots: ArrayLike,
        cap: int | None = None,
        *,
        n_ranks: int | None = None,
        costs: FetchCosts | None = None,
        tolerance: float = 1.0,
        least_tokens: int = 1,
        domains: ArrayLike | None = None,
    ):
        require("llvmlite.binding", extra="moe", why="clones of experts")
        from evenload.moe.cloning.kernels.clone import clone_layer
        from evenload.moe.cloning.kernels.memory import block_words, layer_words

        self._kernel, self._given = clone_layer, (homes, spare_slots, cap)
        self._options = {
            "n_ranks": n_ranks, "costs": costs, "tolerance": tolerance, "least_tokens": least_tokens,
            "domains": domains,
        }  # fmt: skip
        self.layer = layer = layer_of(homes, spare_slots, cap, n_ranks, tolerance, least_tokens, domains)
        self._links, self._table = np.zeros(2 * layer.n_ranks), np.zeros(4)
        self._nodes = np.zeros(layer.n_ranks, np.int64)
        if costs is not None:
            costs = instance_of("costs", costs, FetchCosts, "FetchCosts(...), or None for the lowest peak")
            if layer.millionths:
                raise ConfigError(f"tolerance={quoted(tolerance)} beside costs", hint="give one of them")
            self._nodes, self._table = costs.nodes_of(layer.n_ranks), costs.table()
        self.costs = costs
        self._block = np.zeros(block_words(layer.n_ranks, layer.n_experts), np.int64)
        tables = layer_words(layer)
        self._block[: len(tables)] = tables
        self._lock = threading.Lock()  # the kernel lets go of the GIL
        self._at, self._many = len(tables), 3 * layer.n_ranks + layer.n_experts

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._given, self._options)  # a copy has kernels and memory of its own

    def plan(self, counts: ArrayLike) -> ClonePlan:
        """Plan the clones of one batch.

        counts  [experts], or [ranks, experts] for dispatch: whole numbers of tokens that chose each expert,
                over all ranks or on each

        Every rank that plans from the same counts gets the same plan, on any processor. Raises ConfigError
        for counts below 0, or of 2**38 tokens or more together.
        """
        rows = self._checked(counts)
        totals = rows if rows.ndim == 1 else rows.sum(axis=0)
        layer = self.layer
        with self._lock:
            status = self._kernel(
                totals, layer.n_ranks, self._block, self.costs is not None, self._nodes,
                self._table, self._links,
            )  # fmt: skip
            answer = self._block[self._at : self._at + 3 * self._many + layer.n_ranks + 3].copy()
        if status:
            raise ConfigError(
                f"counts from {totals.min()} to {totals.max()}",
                hint=f"give whole numbers of 0 or more, together below {MOST_COUNT}",
            )
        return self._plan_of(answer, totals, rows if rows.ndim == 2 else None)

    def _plan_of(
        self, answer: NDArray[np.int64], totals: NDArray[np.int64], rows: NDArray[np.int64] | None
    ) -> ClonePlan:
        """What the kernel wrote (kernels/memory.py), as a plan."""
        layer, many = self.layer, self._many
        end = 3 * many + layer.n_ranks
        peak, bound, n = answer[end:].tolist()
        experts, ranks, tokens = (answer[at : at + n] for at in (0, many, 2 * many))
        return ClonePlan(
            layer, totals, rows, experts, ranks, tokens, answer[3 * many : end], peak, bound, self.costs
        )

    def _checked(self, counts: Any) -> NDArray[np.int64]:
        n_experts, n_ranks = self.layer.n_experts, self.layer.n_ranks
        array = counts if isinstance(counts, np.ndarray) else array_of("counts", counts)
        if array.shape != (n_experts,) and array.shape != (n_ranks, n_experts):
            raise ConfigError(
                f"counts have shape {array.shape}", hint=f"give [{n_experts}], or {[n_ranks, n_experts]}"
            )
        if array.dtype == np.int64 and array.ndim == 1 and array.flags.c_contiguous:
            return array.copy()  # the plan keeps it; the kernel refuses numbers out of range
        if array.dtype.kind not in "iu":
            raise ConfigError(f"counts have dtype {array.dtype}", hint="give whole numbers")
        if array.min(initial=0) < 0 or array.max(initial=0) >= MOST_COUNT // n_ranks:
            raise ConfigError(
                f"counts from {array.min()} to {array.max()}",
                hint=f"give whole numbers of 0 or more, below {MOST_COUNT // n_ranks}",
            )
        return np.array(array, np.int64, order="C")


def clone_experts(
    counts: ArrayLike, homes: ArrayLike, spare_slots: ArrayLike, cap: int | None = None, **options: Any
) -> ClonePlan:
    """Plan the clones of one batch: copies of experts and token quotas such that the busiest rank does the
    least, with few fetches. For batch after batch make a ``Cloner`` once.

    counts  [experts] int, or [ranks, experts] for dispatch: tokens that chose each expert in this batch

    The other arguments, by name from ``n_ranks`` on, are those of ``Cloner``. A home must send each of its
    experts' clones: ``cap`` limits them.

    Which ranks have which experts for how many tokens is in the plan; ``certificate()`` proves how low any
    peak can be, ``fetch_bound`` how few fetches any plan of this peak has. Raises ConfigError as ``Cloner``
    does. Source: ours; groups after the zero-sum partition of debts (Verhoeff 2004), clones in a group
    after Vose's alias method (1991).
    """
    return Cloner(homes, spare_slots, cap, **options).plan(counts)


def layer_of(
    homes: Any,
    spare_slots: Any,
    cap: Any,
    n_ranks: Any,
    tolerance: Any = 1.0,
    least_tokens: Any = 1,
    domains: Any = None,
) -> CloneLayer:
    """Homes and slots, checked. Raises ConfigError as ``Cloner`` does."""
    of_experts, spare = _whole_numbers("homes", homes), _whole_numbers("spare_slots", spare_slots)
    if of_experts.ndim != 1 or not len(of_experts) or len(of_experts) > MOST or spare.ndim > 1:
        raise ConfigError(
            f"homes of shape {of_experts.shape}, spare_slots of shape {spare.shape}",
            hint="give the rank of each expert, and one number of slots or one for each rank",
        )
    n = len(spare) if spare.ndim else int(of_experts.max()) + 1
    n = n if n_ranks is None else whole("n_ranks", n_ranks, least=1, most=MOST_RANKS)
    if not 1 <= n <= MOST_RANKS or of_experts.max() >= n or (spare.ndim and len(spare) != n):
        raise ConfigError(
            f"homes up to rank {of_experts.max()}, spare_slots {spare.shape}, n_ranks={quoted(n_ranks)}",
            hint=f"give homes of ranks from 0 on, spare slots of each rank, and at most {MOST_RANKS} ranks",
        )
    most = len(of_experts)  # a rank that could have all experts needs no more
    most_clones = n if cap is None else min(whole("cap", cap), n)
    factor = number("tolerance", tolerance)
    if not 1 <= factor <= 2:
        raise ConfigError(f"tolerance={quoted(tolerance)}", hint="give 1 to 2: 1.01 for 1 % above the lowest")
    of_ranks = None if domains is None else _whole_numbers("domains", domains)
    if of_ranks is not None and of_ranks.shape != (n,):
        raise ConfigError(f"domains of shape {of_ranks.shape}", hint=f"give one for each of {n} ranks")
    slots = np.broadcast_to(np.minimum(spare, most), n).astype(np.int64)
    least = whole("least_tokens", least_tokens, least=1, most=MOST_COUNT)
    return CloneLayer(of_experts, slots, most_clones, least, of_ranks, round((factor - 1) * 1e6))


def _whole_numbers(name: str, values: Any) -> NDArray[np.int64]:
    array = array_of(name, values)
    if array.dtype.kind not in "iu" or array.min(initial=0) < 0 or array.max(initial=0) > MOST:
        raise ConfigError(f"{name} is {quoted(values)}", hint=f"give whole numbers from 0 to {MOST}")
    return array.astype(np.int64)


def _made(given: tuple[Any, Any, Any], options: dict[str, Any]) -> Cloner:
    return Cloner(*given, **options)
