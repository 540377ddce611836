"""The work and the memory of one plain step of a model: counted while it is done once, no clock is read."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.step.objective import BatchLoss
from evenload.clients.values.data import leaves_of
from evenload.clients.values.task import ClientTask

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}  # of two matrices, the last two tensors that they are given


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one client's step, forward and backward and the update.

    n_ops     operations of torch
    flops     floating point operations in products of matrices (a multiplication and an addition are two)
    elements  numbers written
    """

    n_ops: int
    flops: float
    elements: int


def count_work(model: nn.Module, task: ClientTask) -> StepWork:
    """Count one step on the task's first batch. Raises whatever the model raises; it stays as it is."""
    probed = copy.deepcopy(model).train()
    probed.load_state_dict(task.start)
    x, y = task.rows.at(task.batches.rows[0, : int(task.batches.counts[0])])
    with torch.random.fork_rng(devices=[]), _Counter() as counter:
        key = torch.tensor(int(task.batches.draws[0]))
        BatchLoss(task.recipe, ReplacedFunctions(is_fused=False))(probed, x, y, key)[0].backward()
    trained = [p for p in probed.parameters() if p.grad is not None]
    numbers = sum(p.numel() for p in trained)
    optimizer = task.recipe.optimizer
    slots = len(optimizer.state_names(type(optimizer).form([optimizer])))  # pyrefly: ignore
    return StepWork(
        counter.n_ops + len(trained) * (1 + 2 * slots),
        counter.flops,
        counter.elements + numbers * (1 + slots),
    )


class _Counter(TorchDispatchMode):
    """A count of the operations inside, of their products and of the numbers that they write."""

    def __init__(self) -> None:
        super().__init__()
        self.n_ops, self.flops, self.elements = 0, 0.0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here, and torch's compiler is not loaded to make sure of that."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.n_ops += 1
        outs = [t for t in (out if isinstance(out, tuple | list) else [out]) if isinstance(t, Tensor)]
        self.elements += sum(math.prod(t.shape) for t in outs)
        if func.__name__.split(".")[0] in PRODUCTS:
            factor = [t for t in args if isinstance(t, Tensor)][-2]
            self.flops += 2.0 * math.prod(outs[0].shape) * factor.shape[-1]
        return out


# --- memory -----------------------------------------------------------------------------------------


FILLED = 0.25  # of the free memory: grouped convolutions keep copies, kernels need work space, up to 0.6 more


def bytes_per_client(model: nn.Module, task: ClientTask) -> int:
    """Estimate the bytes of one client in a fused step. Raises whatever the model raises.

    Parameters, gradients, optimiser state, buffers and what the forward pass keeps for the backward pass are
    all linear in the number of clients; the last is counted on one full batch through autograd's own hooks.
    """
    probed = copy.deepcopy(model).train()
    params = sum(p.numel() * p.element_size() for p in probed.parameters() if p.requires_grad)
    buffers = sum(b.numel() * b.element_size() for b in probed.buffers())
    own = {p.untyped_storage().data_ptr() for p in probed.parameters()}
    kept: dict[int, int] = {}

    def count(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    n = int(task.batches.counts[0])
    x, y = task.rows.at(task.batches.rows[0, :n])
    hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda t: t)
    with torch.random.fork_rng(), hooks:
        key = torch.tensor(int(task.batches.draws[0]))
        BatchLoss(task.recipe, ReplacedFunctions()).rows(probed, x, y, key)
    slots = len(task.recipe.optimizer.state_names(type(task.recipe.optimizer).form([task.recipe.optimizer])))  # pyrefly: ignore
    batch = sum(t.numel() * t.element_size() for t in leaves_of(x))
    return params * (2 + slots) + 2 * buffers + sum(kept.values()) + batch


def most_clients(model: nn.Module, task: ClientTask, free_bytes: int | None = None) -> int:
    """Clients that fill a part of the free memory; 1 if the model fails."""
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    try:
        return max(1, int(FILLED * free / max(1, bytes_per_client(model, task))))
    except Exception:
        return 1  # a plain step fails: training will say so, client by client
