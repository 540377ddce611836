"""``WeightedCopies``: which copy serves an expert's tokens, by quotas of a recent window."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, places, whole
from evenload._optional import require
from evenload.balance.flow import ReplicaGraph, Router
from evenload.errors import ConfigError, quoted
from evenload.moe.placement.bound import is_first_on_gpu

if TYPE_CHECKING:
    import torch

ONE = 1 << 16  # a whole token, a whole share
RELIEF_ONE = 1 << 14  # a token moved for a token too many
MOST_TOKENS = 1 << 22  # of an expert; counts are divided down to it, so that products stay in 64 bits
GOLDEN = 40503  # 2**16 over the golden ratio


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer: tensors that are changed in place when they are refreshed.

    expert   [slots] the expert in each; ``n_experts`` where a slot is empty or a second copy on its GPU
    order    [slots] by expert, those of no expert last
    first    [experts + 1] each expert's first place in ``order``
    share    [slots] of its expert's tokens, in 1/65536; an expert's shares sum to that
    relief   [slots, GPUs] tokens to give to a slot for a token that a GPU has too many, in 1/16384
    n_gpus   slots lie on them in order, as many on each
    """

    expert: Any
    order: Any
    first: Any
    share: Any
    relief: Any
    n_gpus: int


def choose_slots(
    ids: "torch.Tensor",
    weights: LayerWeights,
    *,
    counts: "torch.Tensor | None",
    mask: "torch.Tensor | None",
    rank: int | None,
    n_ranks: int,
    sweeps: int,
) -> "torch.Tensor":
    """The slot of each of ``ids``, in their shape and dtype; other ids than experts become -1.

    In torch operations alone: nothing waits, no shape depends on values. All arithmetic is on whole numbers,
    so that ranks with equal ids choose alike, on whatever device they are.

    counts  [experts] of all ranks' ids, to correct the shares for; None: of these ids
    mask    which ids count; the others are spread over copies in turn
    rank    of ``n_ranks`` whose ids are others; None: thresholds of rounding come from the ids themselves
    sweeps  corrections of the shares for this batch; 0: the shares as they are
    """
    import torch

    n_experts = weights.first.shape[0] - 1
    flat = ids.reshape(-1).long()
    is_expert = (flat >= 0) & (flat < n_experts)
    counted = is_expert if mask is None else is_expert & mask.reshape(-1)
    key = torch.where(counted, flat, n_experts)
    in_order, order = torch.sort(key, stable=True)
    experts = torch.arange(n_experts + 1, device=flat.device)
    start = torch.searchsorted(in_order, experts)
    own = start.diff()
    tokens = _tokens(own if counts is None else counts.long(), weights, sweeps)
    threshold = _thresholds(order, start[:-1], rank, n_ranks)
    cuts = _cuts(tokens, own, start, threshold, weights)
    place = torch.arange(len(flat), device=flat.device)
    at = torch.searchsorted(cuts, place, right=True).clamp(max=len(cuts) - 1)
    slot = torch.empty_like(flat).scatter_(0, order, weights.order[at])
    if mask is not None:
        slot = torch.where(counted, slot, _in_turn(flat, is_expert, place, weights))
    return torch.where(is_expert, slot, -1).to(ids.dtype).reshape(ids.shape)


def _tokens(counts: Any, weights: LayerWeights, sweeps: int) -> Any:
    """[slots] of ``counts`` [experts], in 1/65536 of a token: by shares, evened out ``sweeps`` times.

    A sweep moves what GPUs have over the mean along their copies, as a current would flow, which is one
    product with ``relief``; what would be taken from an empty slot is left over for the next sweep. An expert
    that has none by ``counts``, or none left, is divided by its shares.
    """
    import torch

    held = torch.cat([counts, counts.new_zeros(1)]).clamp(min=0)
    held = held // (held.max() // MOST_TOKENS + 1)
    tokens = held[weights.expert] * weights.share
    for _ in range(sweeps):
        load = tokens.reshape(weights.n_gpus, -1).sum(1)
        excess = (load - load.sum() // weights.n_gpus) // 256  # so that the product stays in 64 bits
        tokens = (tokens - (weights.relief * excess).sum(1) // (RELIEF_ONE // 256)).clamp(min=0)
        total = torch.zeros_like(held).scatter_add_(0, weights.expert, tokens)
        scale = held * (ONE << 12) // total.clamp(min=1)
        tokens = (tokens * scale[weights.expert]) >> 12
    total = torch.zeros_like(held).scatter_add_(0, weights.expert, tokens)
    return torch.where(total[weights.expert] > 0, tokens, weights.share)


def _thresholds(order: Any, start: Any, rank: int | None, n_ranks: int) -> Any:
    """[experts] what parts of a token are rounded up from, in 1/65536; differs between experts and ranks.

    Of known ranks: the midpoints of ``n_ranks`` equal parts, in an order that turns with the expert, so that
    ranks round up and down by turns. Otherwise from the place of the expert's first id: equal ids give equal
    thresholds.
    """
    import torch

    expert = torch.arange(len(start), device=start.device)
    if rank is not None:
        turn = (rank + expert * GOLDEN) % n_ranks
        return (2 * turn + 1) * ONE // (2 * n_ranks)
    place = order.new_zeros(len(start)) if not len(order) else order[start.clamp(max=len(order) - 1)]
    return ((place + 1) * GOLDEN + expert * 26545) % ONE


def _cuts(tokens: Any, own: Any, start: Any, threshold: Any, weights: LayerWeights) -> Any:
    """[slots] in ``order``: where in the sorted ids each slot's end, by its part of ``tokens``."""
    import torch

    expert = weights.expert[weights.order]
    own, start, threshold = (
        torch.cat([one, one.new_zeros(1)])[expert] for one in (own, start[:-1], threshold)
    )
    below = tokens[weights.order].cumsum(0)
    base = torch.cat([below.new_zeros(1), below])[weights.first]
    total = torch.cat([base.diff(), base.new_zeros(1)])[expert]
    below = below - base[expert]
    cut = start + (below * own + (threshold * total >> 16)) // total.clamp(min=1)
    # Slots of an expert without tokens, and those of none, end where their neighbours do.
    return torch.where(own > 0, cut, 0).cummax(0).values


def _in_turn(flat: Any, is_expert: Any, place: Any, weights: LayerWeights) -> Any:
    expert = flat.where(is_expert, flat.new_zeros(()))
    first = weights.first[expert]
    n_copies = (weights.first[expert + 1] - first).clamp(min=1)
    return weights.order[(first + place % n_copies).clamp(max=len(weights.order) - 1)]


MOST_LOAD = 1 << 38  # as the router takes them
FRACTIONS = 20  # bits that loads with fractions are scaled up to


class WeightedCopies:
    """The weights of all copies of experts, which map ids to slots in plain torch operations.

    Nothing in ``map`` waits for a device, and no shape in it depends on values: it can be compiled, and held
    by a CUDA graph. ``refresh`` changes the tensors in place, so that what was captured follows.

    phy2log    [layers, slots] or [slots] the expert in each slot, -1 for an empty one; slots lie on GPUs in
               order, as many on each
    n_experts  that the gate chooses from
    n_gpus     that the slots lie on
    device     of the tensors, a torch device or its name
    dead       GPUs that get nothing

    Until the first ``refresh`` an expert's copies have equal weights. Raises ConfigError if sizes do not fit.
    """

    def __init__(
        self,
        phy2log: ArrayLike,
        n_experts: int,
        n_gpus: int,
        *,
        device: Any = "cpu",
        dead: Iterable[int] = (),
    ):
        torch = require("torch", extra="moe", why="weighted copies")
        self.n_experts = whole("n_experts", n_experts, least=1)
        self.n_gpus = whole("n_gpus", n_gpus, least=1)
        try:
            self._dead = tuple(dead)
        except TypeError as error:
            raise ConfigError(f"dead is {quoted(dead)}", hint="give the GPUs by their places") from error
        slots = _placement(phy2log, self.n_gpus)
        n_layers, n_slots = slots.shape
        device = usable_device(device)
        empty = lambda *shape: torch.zeros(n_layers, *shape, dtype=torch.int64, device=device)  # noqa: E731
        self._expert, self._order, self._share = empty(n_slots), empty(n_slots), empty(n_slots)
        self._first = empty(self.n_experts + 1)
        self._relief = empty(n_slots, self.n_gpus).to(torch.int32)
        self.refresh(np.zeros((n_layers, self.n_experts)), slots)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, slots)."""
        return self._phy2log.shape[0], self._phy2log.shape[1]

    @property
    def phy2log(self) -> NDArray[np.int64]:
        """[layers, slots] the placement that the weights are for; a copy."""
        return self._phy2log.copy()

    def layer(self, index: int) -> LayerWeights:
        """The weights of one layer: views, which ``refresh`` changes."""
        n_layers = len(self._expert)
        i = whole("layer", index, most=n_layers - 1)
        return LayerWeights(
            self._expert[i], self._order[i], self._first[i], self._share[i], self._relief[i], self.n_gpus
        )

    def refresh(
        self, loads: ArrayLike, phy2log: ArrayLike | None = None, layers: Iterable[int] | None = None
    ) -> None:
        """Set the weights for ``loads`` [layers, experts] of a recent window, in place.

        phy2log  [layers, slots] when experts have moved; None: where they are
        layers   those to set; None: all of them. Loads and placement have a row for each layer all the same

        Raises ConfigError if a load is negative or not finite, shapes differ, or an expert has no copy on a
        living GPU.
        """
        torch = require("torch", extra="moe", why="weighted copies")
        n_layers = len(self._expert)
        slots = self._phy2log if phy2log is None else _placement(phy2log, self.n_gpus)
        if slots.shape != tuple(self._expert.shape):
            raise ConfigError(
                f"phy2log has shape {slots.shape}",
                hint=f"give {list(self._expert.shape)}, or make new weights",
            )
        demands = _demands(loads, (n_layers, self.n_experts))
        rows = np.arange(n_layers) if layers is None else _rows(layers, n_layers)
        if not len(rows):
            return
        placed = slots[rows]
        made = layer_arrays(placed, demands[rows], self.n_experts, self.n_gpus, self._dead)
        at = torch.from_numpy(rows).to(self._expert.device)
        mine = (self._expert, self._order, self._first, self._share, self._relief)
        for tensor, array in zip(mine, made, strict=True):
            tensor.index_copy_(0, at, torch.from_numpy(array).to(tensor))
        if layers is None:
            self._phy2log = slots
        else:
            self._phy2log[rows] = placed

    def map(
        self,
        ids: Any,
        layer: int = 0,
        *,
        counts: Any = None,
        mask: Any = None,
        rank: int | None = None,
        n_ranks: int = 1,
        sweeps: int = 2,
    ) -> Any:
        """Slot of each id, in the shape of ``ids``; -1 for any id that is no expert's.

        ids      tensor of integers, any shape, on the weights' device. Slots are int32 for int32, else int64
        counts   tensor [experts] of all ranks' ids of this batch, where ``ids`` are only this rank's
        mask     tensor of truth values in their shape, or [tokens]: False for padding, which has no part in
                 the weights, and gets a slot all the same, as engines compute padded rows
        rank     this rank of ``n_ranks``, where each has ids of its own: thresholds of rounding are then
                 spread over the ranks. None: ranks with equal ids choose alike
        sweeps   how often the weights are corrected for the batch's own counts. Give 0 where ``ids`` are but
                 a small part of the batch and ``counts`` are not known

        Raises ConfigError if ``ids`` are no tensor of integers, or options do not fit.
        """
        import torch  # by this name alone, for torch's compiler

        device = self._share.device
        if not isinstance(ids, torch.Tensor):
            raise ConfigError(f"ids are {quoted(ids)}", hint=f"give a tensor of integers on {device}")
        _check_tensor("ids", ids, tuple(ids.shape), device)
        _check_tensor("counts", counts, (self.n_experts,), device)
        mask = _of_ids(mask, ids)
        _check_tensor("mask", mask, tuple(ids.shape), device, is_flag=True)
        n_ranks = whole("n_ranks", n_ranks, least=1)
        rank = None if rank is None else whole("rank", rank, most=n_ranks - 1)
        ids = ids if ids.dtype in (torch.int32, torch.int64) else ids.long()  # slots are more than ids
        return choose_slots(
            ids, self.layer(layer), counts=counts, mask=mask, rank=rank, n_ranks=n_ranks,
            sweeps=whole("sweeps", sweeps, most=64),
        )  # fmt: skip


def _of_ids(mask: Any, ids: Any) -> Any:
    """``mask`` for each id, if it is for each row of ids."""
    import torch

    is_tensor = isinstance(mask, torch.Tensor) and mask.layout == torch.strided
    is_of_rows = is_tensor and 0 < mask.ndim == ids.ndim - 1 and mask.shape == ids.shape[:-1]
    return mask[..., None].expand(ids.shape) if is_of_rows else mask


def _check_tensor(
    name: str, value: Any, shape: tuple[int, ...], device: Any, *, is_flag: bool = False
) -> None:
    import torch

    if value is None:
        return
    is_right = isinstance(value, torch.Tensor) and value.layout == torch.strided
    kind = "truth values" if is_flag else "integers"
    if is_right:
        is_bool = value.dtype == torch.bool
        is_right = is_bool if is_flag else not (is_bool or value.is_floating_point() or value.is_complex())
        is_right = is_right and tuple(value.shape) == shape and value.device == device
    if not is_right:
        found = [getattr(value, "dtype", quoted(value)), tuple(getattr(value, "shape", ()))]
        raise ConfigError(
            f"{name}: {found}", hint=f"give a tensor of {kind} of shape {list(shape)} on {device}"
        )


def usable_device(device: Any) -> Any:
    """``device`` as a torch device. Raises ConfigError if no tensors can be made there."""
    import torch

    if not isinstance(device, str | torch.device):
        raise ConfigError(f"device is {quoted(device)}", hint='give "cpu" or "cuda"')
    try:
        torch.ones(1, device=device).cpu()
        return torch.device(device)
    except (ValueError, RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"no tensors on device {quoted(device)}: {quoted(error)}", hint='give "cpu" or "cuda"'
        ) from error


def _placement(phy2log: ArrayLike, n_gpus: int) -> NDArray[np.int64]:
    slots = places("phy2log", phy2log)
    slots = slots[None] if slots.ndim == 1 else slots
    if slots.ndim != 2 or not slots.size or slots.shape[1] % n_gpus:
        raise ConfigError(
            f"phy2log has shape {slots.shape}",
            hint=f"give integers [layers, slots], as many slots on each of {n_gpus} GPUs",
        )
    return slots.astype(np.int64)


def _rows(layers: Any, n_layers: int) -> NDArray[np.int64]:
    rows = array_of("layers", list(layers) if isinstance(layers, range | set) else layers)
    is_right = rows.ndim == 1 and (rows.dtype.kind in "iu" or not rows.size)
    if not is_right or (rows.size and not 0 <= rows.min() <= rows.max() < n_layers):
        raise ConfigError(f"layers is {quoted(layers)}", hint=f"give whole numbers from 0 to {n_layers - 1}")
    return np.unique(rows.astype(np.int64))


def _demands(loads: ArrayLike, shape: tuple[int, int]) -> NDArray[np.int64]:
    found = np.asarray(array_of("loads", loads), np.float64)
    found = found[None] if found.ndim == 1 else found
    if found.shape != shape or not np.isfinite(found).all() or found.min(initial=0) < 0:
        raise ConfigError(
            f"loads of shape {found.shape}, from {found.min(initial=0)} to {found.max(initial=0)}",
            hint=f"give finite loads of 0 or more, {list(shape)}",
        )
    total = found.sum(axis=1)
    if (found % 1).any():  # not tokens but shares or means of them: as exact as whole numbers let them be
        exponents = np.maximum(FRACTIONS - np.frexp(total)[1], 0)
        found, total = np.ldexp(found, exponents[:, None]), np.ldexp(total, exponents)
    return np.rint(found * min(1.0, MOST_LOAD / max(total.max(), 1.0))).astype(np.int64)


MOST_RELIEF = 8  # tokens moved for one too many
LEAST_SHARE = 0.1  # that a copy counts for when loads are evened out
N_SWEEPS = 32
SLACK = 1.01  # shares away from the ends may have loads so much higher


def layer_arrays(
    slots: NDArray[np.int64], demands: NDArray[np.int64], n_experts: int, n_gpus: int, dead: tuple[int, ...]
) -> tuple[NDArray, ...]:
    """The arrays of ``LayerWeights``, [layers, ...] each, for ``demands`` [layers, experts].

    Many divisions of the tokens are optimal, and the router's has most shares at 0 or 1, from where they
    can give way to one side only. So it is averaged with the division nearest to equal shares, if that is
    about as good: loads are linear in shares, and a batch that differs can be evened out both ways.
    """
    graph = ReplicaGraph.from_slots(slots, n_experts, n_gpus, dead=dead)
    quotas = Router(graph).solve(demands).quotas
    expert = np.where(is_first_on_gpu(graph.phy2log, graph.slot2gpu), slots, n_experts)
    order = np.argsort(expert, axis=1, kind="stable")
    layers = np.arange(len(slots))[:, None]
    n_copies = np.zeros((len(slots), n_experts + 1), np.int64)
    np.add.at(n_copies, (layers, expert), 1)
    lost = np.argwhere(n_copies[:, :-1] == 0)
    if len(lost):
        raise ConfigError(
            f"layer {lost[0, 0]} has expert {lost[0, 1]} on dead GPUs only", hint="place it on a living one"
        )
    first = np.concatenate([np.zeros((len(slots), 1), np.int64), n_copies[:, :-1].cumsum(axis=1)], axis=1)
    demand = np.pad(demands, ((0, 0), (0, 1)))[layers, expert].astype(np.float64)
    even = np.where(expert < n_experts, 1.0 / np.maximum(n_copies[layers, expert], 1), 0.0)
    exact = np.divide(quotas, demand, out=even.copy(), where=demand > 0)
    share = np.stack(
        [_inner(*row, n_experts, n_gpus) for row in zip(expert, demand, even, exact, strict=True)]
    )
    relief = np.stack(
        [relief_of(e, d, s, n_experts, n_gpus) for e, d, s in zip(expert, demand, share, strict=True)]
    )
    whole = np.rint(share * ONE).astype(np.int64)
    sums = np.zeros((len(slots), n_experts + 1), np.int64)
    np.add.at(sums, (layers, expert), whole)
    largest = np.lexsort((-share, expert), axis=1)[layers, first[:, :-1]]  # each expert's slot with most
    np.add.at(whole, (layers, largest), ONE - sums[:, :-1])
    relief = np.rint(np.clip(relief, -MOST_RELIEF, MOST_RELIEF) * RELIEF_ONE).astype(np.int32)
    return expert, order, first, whole, relief


def _inner(
    expert: NDArray, demand: NDArray, even: NDArray, exact: NDArray, n_experts: int, n_gpus: int
) -> NDArray[np.float64]:
    """[slots] shares of one layer: ``exact``, or halfway to those nearest to equal ones."""
    relief = relief_of(expert, demand, even, n_experts, n_gpus)
    total = np.bincount(expert, demand * even, minlength=n_experts + 1)
    tokens = demand * even
    for _ in range(N_SWEEPS):
        load = _loads(tokens, n_gpus)
        tokens = np.maximum(tokens - relief @ (load - load.mean()), 0.0)
        found = np.bincount(expert, tokens, minlength=n_experts + 1)
        tokens *= np.divide(total, found, out=np.ones_like(total), where=found > 0)[expert]
    if _loads(tokens, n_gpus).max() > SLACK * _loads(demand * exact, n_gpus).max():
        return exact
    near = np.divide(tokens, demand, out=even.copy(), where=demand > 0)
    return (near + exact) / 2


def _loads(tokens: NDArray[np.float64], n_gpus: int) -> NDArray[np.float64]:
    return tokens.reshape(n_gpus, -1).sum(axis=1)


def relief_of(
    expert: NDArray[np.int64],
    demand: NDArray[np.float64],
    share: NDArray[np.float64],
    n_experts: int,
    n_gpus: int,
) -> NDArray[np.float64]:
    """[slots, GPUs] of one layer: what leaves each slot for a token too many on each GPU.

    The flow that makes all loads equal with the least sum of squares over what the slots have: potentials of
    the GPUs by the Laplacian of the graph whose edges are shared experts, as of a current between them.
    """
    weight = np.maximum(demand, 1.0) * np.maximum(share, LEAST_SHARE) * (expert < n_experts)
    gpu = np.arange(len(expert)) // (len(expert) // n_gpus)
    on_gpu = np.zeros((n_experts + 1, n_gpus))
    np.add.at(on_gpu, (expert, gpu), weight)
    per_expert = np.maximum(on_gpu.sum(axis=1, keepdims=True), 1e-300)
    laplacian = np.diag(on_gpu.sum(axis=0)) - on_gpu.T @ (on_gpu / per_expert)
    # Never singular; what it adds for each connected part is a constant, which cancels below.
    laplacian += np.eye(n_gpus) * max(laplacian.trace() / n_gpus, 1.0) * 1e-7
    lean = np.eye(n_gpus)[gpu] - (on_gpu / per_expert)[expert]
    return weight[:, None] * (lean @ np.linalg.inv(laplacian))
