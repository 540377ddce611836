"""Memory of a fused step: how many clients fit into it, from the bytes of one.

Parameters, gradients, optimiser state, buffers and what the forward pass keeps for the backward pass are all
linear in the number of clients; the last is counted on one client's full batch through autograd's own hooks.
"""

import copy

import psutil
import torch
from torch import nn

from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.step.objective import BatchLoss
from evenload.clients.values.data import leaves_of
from evenload.clients.values.task import ClientTask

SHARE = 0.5  # of the free memory
SLACK = 2.0  # grouped convolutions keep copies, kernels need work space: 1.6 was the most measured


def bytes_per_client(model: nn.Module, task: ClientTask) -> int:
    """Estimate the bytes of one client in a fused step. Raises whatever the model raises."""
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
    return int(SLACK * (params * (2 + slots) + 2 * buffers + sum(kept.values()) + batch))


def most_clients(model: nn.Module, task: ClientTask, free_bytes: int | None = None) -> int:
    """Clients that fit into a share of the free memory; 1 if the model fails."""
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    try:
        return max(1, int(SHARE * free / max(1, bytes_per_client(model, task))))
    except Exception:
        return 1  # a plain step fails: training will say so, client by client
