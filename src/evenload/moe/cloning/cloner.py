"""``Cloner`` and ``clone_experts``: which experts are cloned for a batch, where to, and with how many
tokens."""

import threading
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import MOST, array_of, instance_of, number, whole
from evenload._optional import require
from evenload.errors import ConfigError, quoted
from evenload.moe.cloning.clone_plan import ClonePlan
from evenload.moe.cloning.fetch_bound import FetchCosts
from evenload.moe.cloning.load_certificate import CloneLayer
from evenload.moe.routing.dispatch import power_of_two
from evenload.moe.routing.weighted_copies import usable_device

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
        from evenload.moe.cloning.kernels.clone import block_words, clone_layer, layer_words

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
        return partial(Cloner, **self._options), self._given  # a copy has kernels and memory of its own

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
        """What the kernel wrote (``cut_best``), as a plan."""
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
    tolerance: Any,
    least_tokens: Any,
    domains: Any,
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


class DeviceCloner:
    """A planner of clones that is a Triton kernel, one program for each layer; fit for a CUDA graph.

    n_layers  planned in one call
    device    a torch device with CUDA; with TRITON_INTERPRET=1 "cpu", for Triton's interpreter

    The other arguments are those of ``Cloner``, the same for all layers. Unlike ``Cloner`` it puts all ranks
    of a domain into one group: the peak is the same where two spare slots are enough for the bound, and there
    are up to as many fetches as ranks less one. A tolerance is of the bound that ``plan`` returns. Raises
    ConfigError as ``Cloner`` does.
    """

    def __init__(
        self,
        homes: ArrayLike,
        spare_slots: ArrayLike,
        cap: int | None = None,
        *,
        n_ranks: int | None = None,
        tolerance: float = 1.0,
        least_tokens: int = 1,
        domains: ArrayLike | None = None,
        n_layers: int = 1,
        device: Any = "cuda",
    ):
        torch = require("torch", extra="moe", why="planning on a device")
        require("triton", extra="moe", why="planning on a device")
        from evenload.moe.cloning.kernels.device_clone import clone_kernel

        self.layer = layer = layer_of(homes, spare_slots, cap, n_ranks, tolerance, least_tokens, domains)
        device = usable_device(device)
        if device.type == "cpu" and type(clone_kernel).__name__ != "InterpretedFunction":
            raise ConfigError("Triton's kernels do not run on a CPU", hint="use Cloner, or a CUDA device")
        self._kernel: Any = clone_kernel
        self._n = 3 * layer.n_ranks + layer.n_experts  # as many clones as ``Cloner``'s kernel may make
        n_layers = whole("n_layers", n_layers, least=1, most=MOST // self._n)
        self._shape = (n_layers, layer.n_experts)
        domain = np.unique(layer.domains, return_inverse=True)[1].astype(np.int64)
        self._tables = [torch.from_numpy(table).to(device) for table in (layer.homes, layer.spare, domain)]

        def zeros(n: int) -> Any:
            return torch.zeros((n_layers, n), dtype=torch.int64, device=device)

        self.experts, self.ranks, self.tokens = zeros(self._n), zeros(self._n), zeros(self._n)
        self.loads, self.summary = zeros(layer.n_ranks), zeros(3)  # peak, bound and clones

    def plan(self, counts: Any) -> Any:
        """Plan each layer's clones; returns ``summary`` [layers, 3] there: peak, a bound of it, clones.

        counts  [layers, experts] int64 tensor on the device, 0 or more, each layer's together below 2**38

        The clones are the first ones in the rows of ``experts``, ``ranks`` and ``tokens``; the next call
        overwrites them. Raises ConfigError for another shape, dtype or device.
        """
        self._check(counts)
        layer = self.layer
        self._kernel[(len(counts),)](
            counts.contiguous(), *self._tables, self.experts, self.ranks, self.tokens, self.loads,
            self.summary, layer.n_experts, layer.n_ranks, self._n, layer.n_domains, layer.cap,
            layer.least_tokens, layer.millionths,
            BLOCK_E=power_of_two(max(layer.n_experts, 2)), BLOCK_G=power_of_two(max(layer.n_ranks, 2)),
        )  # fmt: skip
        return self.summary

    def on_host(self, counts: Any, index: int = 0) -> ClonePlan:
        """The last plan of one layer, with its proofs and dispatch; waits for the device.

        counts  those of the last ``plan``

        Raises ConfigError for others: the plan's loads are not theirs.
        """
        self._check(counts)
        index = whole("index", index, most=self._shape[0] - 1)
        peak, bound, n = self.summary[index].cpu().tolist()
        experts, ranks, tokens = (
            of[index, :n].cpu().numpy() for of in (self.experts, self.ranks, self.tokens)
        )
        totals = np.ascontiguousarray(counts[index].cpu().numpy(), np.int64)
        loads = self.loads[index].cpu().numpy()
        homed = np.bincount(self.layer.homes, totals, self.layer.n_ranks)
        moved = np.bincount(ranks, tokens, self.layer.n_ranks)
        moved -= np.bincount(self.layer.homes[experts], tokens, self.layer.n_ranks)
        if totals.min() < 0 or (homed + moved != loads).any():
            raise ConfigError("these are not the counts of the last plan", hint="plan them first")
        return ClonePlan(self.layer, totals, None, experts, ranks, tokens, loads, peak, bound, None)

    def _check(self, counts: Any) -> None:
        torch = require("torch", extra="moe")
        is_tensor = isinstance(counts, torch.Tensor) and counts.layout == torch.strided
        if not is_tensor or counts.shape != self._shape or counts.dtype != torch.int64:
            given = f"{counts.dtype} {tuple(counts.shape)}" if is_tensor else type(counts).__name__
            raise ConfigError(f"counts are {given}", hint=f"give an int64 tensor {list(self._shape)}")
        if counts.device != self.summary.device:
            raise ConfigError(f"counts on {counts.device}", hint=f"give them on {self.summary.device}")
