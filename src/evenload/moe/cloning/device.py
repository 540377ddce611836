"""``DeviceCloner``: clones planned on a device, without a copy to the host or a wait."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evenload._arguments import MOST, whole
from evenload._optional import require
from evenload.errors import ConfigError
from evenload.moe.cloning.clone_plan import ClonePlan
from evenload.moe.cloning.cloner import layer_of
from evenload.moe.routing.weighted_copies import usable_device


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
            BLOCK_E=_power_of_two(layer.n_experts), BLOCK_G=_power_of_two(layer.n_ranks),
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


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 1).bit_length()
